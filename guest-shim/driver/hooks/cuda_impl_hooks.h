// The check made at every entry point of libcuda.so.1: a few loads.
#pragma once

#include "guest-shim/session/session.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/op_flags.h"

namespace gantry::cuda_impl {

inline CUresult enter(cuda::Op op) noexcept {
    const std::uint8_t flags = cuda::op_flags(op);
    const session::State state = session::g_gate.state.load(std::memory_order_acquire);
    if (__builtin_expect(state != session::State::kReady, 0)) {
        const bool before_init = (flags & cuda::kOpBeforeInit) != 0;
        if (state == session::State::kUnused && before_init) {
            return CUDA_SUCCESS;
        }
        // After a sticky error, what does not concern the device still answers.
        const bool local = (flags & cuda::kOpForwarded) == 0;
        if (state != session::State::kBroken || !local) {
            return session::closed_result();
        }
    }
    if ((flags & cuda::kOpNeedsContext) != 0 && session::current_context() == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    return CUDA_SUCCESS;
}

}  // namespace gantry::cuda_impl
