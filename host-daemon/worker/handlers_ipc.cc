// Memory between processes of one VM. Handles are looked up at the host's broker, which answers
// within a bounded time: on the lane's own thread, so that nobody else's commands wait for it.
#include "host-daemon/worker/handlers.h"

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
    const CUresult result = call.process().shared.offer(wanted.address, &answer);
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
    const CUresult result = call.process().shared.open(open.handle, &answer.address);
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
    call.process().synchronise_device();
    bool is_last = false;
    const CUresult result = call.process().shared.close(close.address, &is_last);
    wire::cuIpcCloseMemHandle_reply answer{};
    answer.is_last = is_last ? 1 : 0;
    reply.put(answer);
    return result;
}

}  // namespace gantry::worker
