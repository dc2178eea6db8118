// The check before every call, for the entry point test: refuses while the test says so.
#pragma once

#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/op_flags.h"

namespace gantry::cuda_impl {

extern CUresult g_enter_result;
extern cuda::Op g_entered;

inline CUresult enter(cuda::Op op) noexcept {
    g_entered = op;
    return g_enter_result;
}

/// Sees every result; nothing to do here.
inline CUresult leave(cuda::Op, CUresult result) noexcept { return result; }

}  // namespace gantry::cuda_impl
