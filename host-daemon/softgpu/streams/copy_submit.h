// When a copy runs and when its call returns, which depends on where its two sides lie:
// device to device returns at once; pageable sources up to 64 KiB are staged and return at once;
// everything else synchronous has ended when the call returns. Asynchronous copies that touch
// pageable memory do not read or write it after the call, and those from host to host have ended.
#pragma once

#include <memory>

#include "host-daemon/softgpu/memory/copy_plan.h"
#include "host-daemon/softgpu/streams/stream.h"

namespace gantry::softgpu {

CUresult submit_copy_sync(const std::shared_ptr<Stream>& stream, ResolvedCopy copy,
                          const CUDA_MEMCPY3D& params);
CUresult submit_copy_async(const std::shared_ptr<Stream>& stream, ResolvedCopy copy,
                           const CUDA_MEMCPY3D& params);

/// One side of a linear copy: its address, and where the call says that it lies (unified: it does
/// not say).
struct LinearSide {
    std::uint64_t address = 0;
    CUmemorytype type = CU_MEMORYTYPE_UNIFIED;
};
/// A 1D copy as a 3D description, as graph nodes show it.
CUDA_MEMCPY3D describe_copy(LinearSide destination, LinearSide source, std::uint64_t bytes);
CUDA_MEMCPY3D describe_copy(const CUDA_MEMCPY2D& copy);
CUDA_MEMCPY3D describe_copy(const CUDA_MEMCPY3D_PEER& copy);

}  // namespace gantry::softgpu
