// A 3D copy of the guest's in the driver's terms, its addresses and arrays checked.
#pragma once

#include "host-daemon/execution/dispatch/call.h"
#include "proto/cuda/wire_hand.h"

namespace gantry::worker {

CUresult to_native_copy(Call& call, const cuda::wire_hand::Copy3DCall& copy, CUDA_MEMCPY3D_v2* out);

}  // namespace gantry::worker
