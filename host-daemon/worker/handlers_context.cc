// Contexts. The primary context exists as long as the worker does; the guest's retain and release
// only decide which objects live in it.
#include "host-daemon/worker/handlers.h"

#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry::worker {
namespace {

/// Ends every object of a context, in the reverse order of their making.
void end_objects(Call& call, std::uint64_t context) {
    GuestProcess& process = call.process();
    process.synchronise_device();
    process.memory.reap(true);
    const auto objects = process.objects.list(
        [context](const Object& object) { return object.context == context; });
    for (auto object = objects.rbegin(); object != objects.rend(); ++object) {
        // Libraries belong to the process, not to a context.
        if (object->handle != context && object->kind() != HandleKind::kLibrary) {
            process.destroy_object(*object);
        }
    }
}

CUresult end_primary(Call& call, const cuda::wire_hand::ContextEndCall& end) {
    if (end.device != 0 || end.context != cuda::primary_context_handle(0)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (call.process().sticky_error.load() != 0) {
        return CUDA_ERROR_NOT_PERMITTED;
    }
    end_objects(call, end.context);
    call.process().virtual_memory.clear();
    call.process().shared.close_all();
    call.process().memory.free_everything();
    call.process().objects.erase(end.context);
    return CUDA_SUCCESS;
}

}  // namespace

CUresult on_cuDevicePrimaryCtxRetain(CallContext& context,
                                     const wire::cuDevicePrimaryCtxRetain_call& retain,
                                     std::span<const std::byte>, Reply&) {
    Call& call = as_call(context);
    if (retain.device != 0 || retain.context != cuda::primary_context_handle(0)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (!call.process().objects.contains(retain.context)) {
        return call.add_object(retain.context,
                               reinterpret_cast<std::uint64_t>(call.process().device.context()));
    }
    return CUDA_SUCCESS;
}

CUresult on_cuDevicePrimaryCtxSetFlags_v2(CallContext& context,
                                          const wire::cuDevicePrimaryCtxSetFlags_v2_call& set,
                                          std::span<const std::byte> trailing, Reply&) {
    // How a thread of the application waits is the shim's business; the choice is kept for a move.
    as_call(context).configured(HandleKind::kContext, set.context,
                                Recipe{cuda::Op::cuDevicePrimaryCtxSetFlags_v2,
                                       std::as_bytes(std::span(&set, 1)), trailing});
    return CUDA_SUCCESS;
}

CUresult on_cuDevicePrimaryCtxRelease_v2(CallContext& context,
                                         const wire::cuDevicePrimaryCtxRelease_v2_call& end,
                                         std::span<const std::byte>, Reply&) {
    return end_primary(as_call(context), end);
}

CUresult on_cuDevicePrimaryCtxReset_v2(CallContext& context,
                                       const wire::cuDevicePrimaryCtxReset_v2_call& end,
                                       std::span<const std::byte>, Reply&) {
    return end_primary(as_call(context), end);
}

CUresult on_cuCtxCreate_v2(CallContext& context, const wire::cuCtxCreate_v2_call& create,
                           std::span<const std::byte>, Reply&) {
    Call& call = as_call(context);
    if (create.device != 0) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (call.api().cuCtxCreate_v2 == nullptr || call.api().cuCtxPopCurrent_v2 == nullptr) {
        return call.unsupported(call.op());
    }
    if (const CUresult result = call.reserve(HandleKind::kContext, create.context);
        result != CUDA_SUCCESS) {
        return result;
    }
    CUcontext native = nullptr;
    if (const CUresult result = call.api().cuCtxCreate_v2(&native, create.flags,
                                                          call.process().device.ordinal());
        result != CUDA_SUCCESS) {
        return result;
    }
    CUcontext popped = nullptr;
    call.api().cuCtxPopCurrent_v2(&popped);  // The guest's stack decides what is current.
    return call.add_object(create.context, reinterpret_cast<std::uint64_t>(native));
}

CUresult on_cuCtxDestroy_v2(CallContext& context, const wire::cuCtxDestroy_v2_call& end,
                            std::span<const std::byte>, Reply&) {
    Call& call = as_call(context);
    const auto native =
        call.process().objects.native_as<CUcontext>(end.context, HandleKind::kContext);
    if (native == nullptr || native == call.process().device.context() ||
        call.api().cuCtxDestroy_v2 == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    end_objects(call, end.context);
    call.process().objects.erase(end.context);
    const CUresult result = call.api().cuCtxDestroy_v2(native);
    call.process().leave_context();
    return result;
}

CUresult on_cuCtxSynchronize_v2(CallContext& context, const wire::cuCtxSynchronize_v2_call& call,
                                std::span<const std::byte>, Reply&) {
    std::uint64_t native = 0;
    if (call.ctx != 0) {
        if (const CUresult result = context.resolve(HandleKind::kContext, call.ctx, &native);
            result != CUDA_SUCCESS) {
            return result;
        }
    }
    // Drivers before 13.0 have only the form for the current context.
    GuestProcess& process = as_call(context).process();
    if (const CUresult result = process.enter_context(
            call.ctx != 0 ? call.ctx : as_call(context).header().context);
        result != CUDA_SUCCESS) {
        return result;
    }
    return process.synchronise_context(as_call(context).busy());
}

CUresult on_cuCtxSynchronize(CallContext& context, const wire::cuCtxSynchronize_call&,
                             std::span<const std::byte>, Reply&) {
    Call& call = as_call(context);
    return call.process().synchronise_context(call.busy());
}

CUresult on_cuStreamBeginCapture_v2(CallContext& context,
                                    const wire::cuStreamBeginCapture_v2_call& begin,
                                    std::span<const std::byte>, Reply&) {
    // Not recorded: a stream that is moved does not capture.
    Call& call = as_call(context);
    if (call.api().cuStreamBeginCapture_v2 == nullptr) {
        return call.unsupported(call.op());
    }
    // It may wait for what was queued before a free, as natively the free itself does.
    std::unique_lock gate(call.process().capture_gate, std::try_to_lock);
    if (!gate.owns_lock() && !call.may_wait()) {
        call.defer();
        return CUDA_SUCCESS;
    }
    if (!gate.owns_lock()) {
        gate.lock();
    }
    CUstream stream = nullptr;
    CUresult result = call.stream(begin.hStream, &stream);
    if (result == CUDA_SUCCESS) {
        // Who may call what meanwhile the guest knows (guest-shim/driver/captures.h): here one
        // thread serves many, and another may end the capture.
        result = call.api().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    }
    if (result == CUDA_SUCCESS) {
        call.process().begin_capture(HeldWork::key_of(call, begin.hStream));
    }
    return result;
}

CUresult on_cuStreamEndCapture(CallContext& context, const wire::cuStreamEndCapture_call& end,
                               std::span<const std::byte>, Reply&) {
    Call& call = as_call(context);
    CUstream stream = nullptr;
    if (call.api().cuStreamEndCapture == nullptr) {
        return call.unsupported(call.op());
    }
    if (const CUresult result = call.stream(end.stream, &stream); result != CUDA_SUCCESS) {
        return result;
    }
    if (const CUresult result = call.reserve(HandleKind::kGraph, end.graph);
        result != CUDA_SUCCESS) {
        return result;
    }
    CUgraph graph = nullptr;
    const CUresult result = call.api().cuStreamEndCapture(stream, &graph);
    // After any other result the stream is not captured, whether it was or not.
    if (result != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD &&
        result != CUDA_ERROR_STREAM_CAPTURE_UNMATCHED) {
        call.process().end_capture(HeldWork::key_of(call, end.stream));
    }
    if (result != CUDA_SUCCESS || graph == nullptr) {
        return result;
    }
    return call.add_object(end.graph, reinterpret_cast<std::uint64_t>(graph));
}

}  // namespace gantry::worker
