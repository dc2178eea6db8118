// The checks around every call, for the tests that load the probe: refuses while the test says so,
// or says yes without a look at the arguments.
#pragma once

#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/op_flags.h"

namespace gantry::cuda_impl {

extern CUresult g_enter_result;
extern cuda::Op g_entered;
extern bool g_oblige;

inline CUresult enter(cuda::Op op) noexcept {
    g_entered = op;
    return g_oblige ? CUDA_ERROR_UNKNOWN : g_enter_result;
}

/// Nothing of the probe has a context.
class LentContext {
public:
    template <typename... Of>
    explicit LentContext(Of...) noexcept {}
};

/// Sees every result: an obliging probe's calls were kept from beginning, and succeed.
inline CUresult leave(cuda::Op, CUresult result) noexcept {
    return g_oblige ? CUDA_SUCCESS : result;
}

}  // namespace gantry::cuda_impl
