// The check made at every entry point of libcuda.so.1: a few loads.
#pragma once

#include "guest-shim/driver/core/captures.h"
#include "guest-shim/session/base/report.h"
#include "guest-shim/session/session.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/op_flags.h"
#include "proto/cuda/gen/opcodes.h"

namespace gantry::cuda_impl {

/// Calls by which events come to be recorded without cuEventRecord.
constexpr bool makes_events_record(cuda::Op op) noexcept {
    switch (op) {
        case cuda::Op::cuCtxRecordEvent:
        case cuda::Op::cuGraphAddEventRecordNode:
        case cuda::Op::cuGraphAddNode:
        case cuda::Op::cuGraphAddNode_v2:
        case cuda::Op::cuGraphEventRecordNodeSetEvent:
        case cuda::Op::cuGraphExecEventRecordNodeSetEvent:
        case cuda::Op::cuGraphExecNodeSetParams:
        case cuda::Op::cuGraphKernelNodeSetAttribute:
        case cuda::Op::cuGraphNodeSetParams: return true;
        default: return false;
    }
}

/// Calls that are potentially unsafe while a stream is captured, as an H200's driver has it. Those
/// of them that may be given nothing to do, or an event of the capture, look for themselves.
constexpr bool asks_in_capture(cuda::Op op) noexcept {
    switch (op) {
        case cuda::Op::cuCtxSetLimit:
        case cuda::Op::cuCtxSynchronize:
        case cuda::Op::cuCtxSynchronize_v2:
        case cuda::Op::cuGraphInstantiate:
        case cuda::Op::cuGraphInstantiateWithFlags:
        case cuda::Op::cuGraphInstantiateWithParams:
        case cuda::Op::cuMemPoolCreate:
        case cuda::Op::cuMemPoolTrimTo:
        case cuda::Op::cuStreamQuery:
        case cuda::Op::cuStreamSynchronize: return true;
        default: return false;
    }
}

/// In line, as nearly all of it is known of the op when the entry point is compiled.
[[gnu::always_inline]] inline CUresult enter(cuda::Op op) noexcept {
    if (makes_events_record(op)) {
        session::stop_following_events();
    }
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
    if (asks_in_capture(op) && shim::captures_open()) {
        const bool whole = op == cuda::Op::cuCtxSynchronize || op == cuda::Op::cuCtxSynchronize_v2;
        return whole ? shim::refuse_context_in_capture() : shim::refuse_in_capture();
    }
    return CUDA_SUCCESS;
}

/// Made after every call: counts errors by name. "Not ready" is an answer, not an error.
inline CUresult leave(cuda::Op op, CUresult result) noexcept {
    if (shim::captures_open()) {
        result = shim::settled_in_capture(op, result);
        if (op == cuda::Op::cuEventSynchronize && result == CUDA_SUCCESS) {
            result = shim::refuse_in_capture();  // The host has said that no capture has the event.
        }
    }
    if (__builtin_expect(result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY, 0)) {
        session::note_failure(static_cast<std::uint16_t>(op), result);
    }
    return result;
}

}  // namespace gantry::cuda_impl
