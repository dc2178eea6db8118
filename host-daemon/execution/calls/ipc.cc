// Memory and events between processes of one VM. Handles are looked up at the host's broker, which
// answers within a bounded time: on the lane's own thread (`slow` in the API table), so that nobody
// else's commands wait for it.
#include <cstring>

#include "host-daemon/execution/dispatch/handlers.h"

#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry::worker {
namespace {

static_assert(sizeof(cuda::wire_hand::ShareHandle) == sizeof(CUipcMemHandle));
static_assert(sizeof(cuda::wire_hand::ShareHandle) == sizeof(CUipcEventHandle));

}  // namespace

CUresult on_cuIpcCloseMemHandle(CallContext& context, const wire::cuIpcCloseMemHandle_call& close,
                                std::span<const std::byte>, Reply& reply) {
    Call& call = as_call(context);
    // Kernels may still use it; an error of theirs is the next call's to tell.
    call.process().streams.synchronise_device();
    bool is_last = false;
    const CUresult result = call.process().shares.memory.close(close.address, &is_last);
    wire::cuIpcCloseMemHandle_reply answer{};
    answer.is_last = is_last ? 1 : 0;
    reply.put(answer);
    return result;
}

CUresult on_cuIpcOpenEventHandle(CallContext& context, const wire::cuIpcOpenEventHandle_call& open,
                                 std::span<const std::byte>, Reply&) {
    Call& call = as_call(context);
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

namespace served {

CUresult cuIpcGetMemHandle(CallContext& context, CUipcMemHandle* handle, CUdeviceptr address) {
    cuda::wire_hand::ShareHandle given{};
    const CUresult result = as_call(context).process().shares.memory.offer(address, &given);
    std::memcpy(handle, &given, sizeof(*handle));
    return result;
}

CUresult cuIpcOpenMemHandle_v2(CallContext& context, CUdeviceptr* address, CUipcMemHandle handle,
                               unsigned int) {
    cuda::wire_hand::ShareHandle given{};
    std::memcpy(&given, &handle, sizeof(given));
    std::uint64_t opened = 0;
    const CUresult result = as_call(context).process().shares.memory.open(given, &opened);
    *address = opened;
    return result;
}

CUresult cuIpcGetEventHandle(CallContext& context, CUipcEventHandle* handle, CUevent event) {
    GuestProcess& process = as_call(context).process();
    const std::uint64_t name =
        process.objects.handle_of(reinterpret_cast<std::uint64_t>(event), HandleKind::kEvent);
    cuda::wire_hand::ShareHandle given{};
    const CUresult result = process.shares.events.offer(name, event, &given);
    if (result == CUDA_SUCCESS) {
        process.channel.event_board.forget(name);  // What it shows is no longer all there is.
    }
    std::memcpy(handle, &given, sizeof(*handle));
    return result;
}

}  // namespace served

}  // namespace gantry::worker
