// GuestGraphs: the CUDA graphs of one guest process, and the captures that make them.
//
// Owner: GuestProcess. Threads: each member as its header says.
#pragma once

#include "host-daemon/execution/objects/cuda_graph_book.h"
#include "host-daemon/execution/objects/cuda_graph_params.h"
#include "host-daemon/execution/objects/user_object_book.h"
#include "host-daemon/execution/process/captures.h"

namespace gantry::worker {

struct GuestGraphs {
    GuestGraphs(Device& device, ObjectTable& objects)
        : user_objects(objects),
          book(device, user_objects),
          kernel_names(device, objects),
          captures(device, objects) {}

    UserObjectBook user_objects;
    CudaGraphBook book;
    KernelNames kernel_names;
    Captures captures;
};

}  // namespace gantry::worker
