// Memory and events between processes of one VM. Handles are looked up at the host's broker, which
// answers within a bounded time: on the lane's own thread, so that nobody else's commands wait for
// it.
#include "host-daemon/execution/dispatch/handlers.h"

#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry::worker {

CUresult on_cuIpcGetMemHandle(CallContext& context, const wire::cuIpcGetMemHandle_call& wanted,
                              std::span<const std::byte>, Reply& reply) {
    Call& call = as_call(context);
    if (!call.may_wait()) {
        call.defer();
        return CUDA_SUCCESS;
    }
    wire::cuIpcGetMemHandle_reply answer{};
    const CUresult result = call.process().shares.memory.offer(wanted.address, &answer);
    reply.put(answer);
    return result;
}

CUresult on_cuIpcOpenMemHandle_v2(CallContext& context,
                                  const wire::cuIpcOpenMemHandle_v2_call& open,
                                  std::span<const std::byte>, Reply& reply) {
    Call& call = as_call(context);
    if (!call.may_wait()) {
        call.defer();
        return CUDA_SUCCESS;
    }
    wire::cuIpcOpenMemHandle_v2_reply answer{};
    const CUresult result = call.process().shares.memory.open(open.handle, &answer.address);
    reply.put(answer);
    return result;
}

CUresult on_cuIpcCloseMemHandle(CallContext& context, const wire::cuIpcCloseMemHandle_call& close,
                                std::span<const std::byte>, Reply& reply) {
    Call& call = as_call(context);
    if (!call.may_wait()) {
        call.defer();
        return CUDA_SUCCESS;
    }
    // Kernels may still use it; an error of theirs is the next call's to tell.
    call.process().streams.synchronise_device();
    bool is_last = false;
    const CUresult result = call.process().shares.memory.close(close.address, &is_last);
    wire::cuIpcCloseMemHandle_reply answer{};
    answer.is_last = is_last ? 1 : 0;
    reply.put(answer);
    return result;
}

CUresult on_cuIpcGetEventHandle(CallContext& context, const wire::cuIpcGetEventHandle_call& wanted,
                                std::span<const std::byte>, Reply& reply) {
    Call& call = as_call(context);
    if (!call.may_wait()) {
        call.defer();
        return CUDA_SUCCESS;
    }
    GuestProcess& process = call.process();
    const auto event = process.objects.native_as<CUevent>(wanted.event, HandleKind::kEvent);
    if (event == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    wire::cuIpcGetEventHandle_reply answer{};
    const CUresult result = process.shares.events.offer(wanted.event, event, &answer);
    if (result == CUDA_SUCCESS) {
        process.channel.event_board.forget(
            wanted.event);  // What it shows is no longer all there is.
    }
    reply.put(answer);
    return result;
}

CUresult on_cuIpcOpenEventHandle(CallContext& context, const wire::cuIpcOpenEventHandle_call& open,
                                 std::span<const std::byte>, Reply&) {
    Call& call = as_call(context);
    if (!call.may_wait()) {
        call.defer();
        return CUDA_SUCCESS;
    }
    GuestProcess& process = call.process();
    if (const CUresult result = call.reserve(HandleKind::kEvent, open.event);
        result != CUDA_SUCCESS) {
        return result;
    }
    CUevent event = nullptr;
    CUresult result = process.shares.events.open(open.handle, open.event, &event);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = call.add_object(open.event, reinterpret_cast<std::uint64_t>(event));
    if (result != CUDA_SUCCESS) {
        call.api().cuEventDestroy_v2(event);
        process.shares.events.ended(open.event);
    }
    return result;
}

}  // namespace gantry::worker
