// The check before every exported call: 3 in a forked child and before cuInit, 4 during exit.
// What needs a context looks for it itself (core/thread_state.h, GANTRY_CURRENT).
#pragma once

#include "host-daemon/softgpu/api/lent_context.h"
#include "host-daemon/softgpu/core/driver.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/op_flags.h"

namespace gantry::cuda_impl {

inline CUresult enter(cuda::Op op) noexcept {
    if ((cuda::op_flags(op) & cuda::kOpBeforeInit) != 0) {
        return softgpu::check_not_forked();
    }
    return softgpu::check_ready();
}

/// Sees every result; nothing to do here.
inline CUresult leave(cuda::Op, CUresult result) noexcept { return result; }

}  // namespace gantry::cuda_impl
