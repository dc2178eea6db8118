// The check made at every entry point of libcuda.so.1: a few loads.
#pragma once

#include "guest-shim/driver/core/captures.h"
#include "guest-shim/driver/core/lent_context.h"
#include "guest-shim/session/base/report.h"
#include "guest-shim/session/profile.h"
#include "guest-shim/session/session.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/op_flags.h"
#include "proto/cuda/gen/opcodes.h"

namespace gantry::cuda_impl {

/// In line, as nearly all of it is known of the op when the entry point is compiled. What a call
/// meets while a stream is captured is the table's `capture` line, as an H200's driver has it; a
/// call that may be given nothing to do, or an event of the capture, looks for itself.
[[gnu::always_inline]] inline CUresult enter(cuda::Op op) noexcept {
    if (session::profiled()) {
        session::note_call_begun();
    }
    const std::uint32_t flags = cuda::op_flags(op);
    if ((flags & cuda::kOpRecordsUnseen) != 0) {
        session::stop_following_events();
    }
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
    constexpr std::uint32_t kRefused = cuda::kOpRefusedInCapture | cuda::kOpContextRefusedInCapture;
    if ((flags & kRefused) != 0 && shim::captures_open()) {
        return (flags & cuda::kOpContextRefusedInCapture) != 0 ? shim::refuse_context_in_capture()
                                                               : shim::refuse_in_capture();
    }
    return CUDA_SUCCESS;
}

constexpr bool launches(cuda::Op op) noexcept {
    return op == cuda::Op::cuLaunchKernel || op == cuda::Op::cuLaunchKernelEx ||
           op == cuda::Op::cuLaunchCooperativeKernel || op == cuda::Op::cuGraphLaunch;
}

/// Made after every call: counts errors by name. "Not ready" is an answer, not an error.
inline CUresult leave(cuda::Op op, CUresult result) noexcept {
    if (shim::captures_open()) {
        result = shim::settled_in_capture(op, result);
        if ((cuda::op_flags(op) & cuda::kOpRefusedAfterCapture) != 0 && result == CUDA_SUCCESS) {
            result = shim::refuse_in_capture();  // The host has said that no capture has the event.
        }
    }
    if (__builtin_expect(result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY, 0)) {
        session::note_failure(static_cast<std::uint16_t>(op), result);
    }
    if (session::profiled()) {
        if (launches(op)) {
            session::note_launch();
        }
        session::note_call_ended();
    }
    return result;
}

}  // namespace gantry::cuda_impl
