// GuestGraphs: the CUDA graphs of one guest process, and the captures that make them.
//
// Owner: GuestProcess. Threads: each member as its header says.
#pragma once

#include "host-daemon/execution/objects/cuda_graph_book.h"
#include "host-daemon/execution/objects/cuda_graph_params.h"
#include "host-daemon/execution/process/captures.h"

namespace gantry::worker {

struct GuestGraphs {
    GuestGraphs(Device& device, ObjectTable& objects)
        : book(device), kernel_names(device, objects), captures(device) {}

    CudaGraphBook book;
    KernelNames kernel_names;
    Captures captures;
};

}  // namespace gantry::worker
