// Memory and events given to other processes of the same VM, and opened of theirs. A handle is the
// host's: what it names is checked there, whoever presents it.
#include <atomic>
#include <cstring>

#include "guest-shim/driver/core/objects.h"
#include "guest-shim/driver/core/ranges.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/shim_marshal.h"
#include "proto/cuda/gen/wire_structs.h"

namespace gantry::shim {
namespace {

std::atomic<bool> g_gives_memory{false};

}  // namespace

CUresult settle(CUresult posted) noexcept {
    if (posted != CUDA_SUCCESS) {
        return posted;
    }
    // Answered in order by the host itself.
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    return marshal::cuMemGetInfo_v2(&free_bytes, &total_bytes);
}

bool gives_memory() noexcept { return g_gives_memory.load(std::memory_order_relaxed); }

}  // namespace gantry::shim

namespace gantry::cuda_impl {

using namespace gantry::shim;

namespace {

static_assert(sizeof(cuda::wire_hand::ShareHandle) == sizeof(CUipcMemHandle_v1));
static_assert(sizeof(cuda::wire_hand::ShareHandle) == sizeof(CUipcEventHandle_v1));

}  // namespace

CUresult cuIpcGetMemHandle(CUipcMemHandle_v1* pHandle, CUdeviceptr dptr) noexcept {
    Range range{};
    // Of a pool or the program's own mappings there are shareable handles instead, natively too.
    if (pHandle == nullptr || !find_range(dptr, &range) || range.kind != RangeKind::kDevice ||
        range.owner == kOpenedRange) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    cuda::wire::cuIpcGetMemHandle_reply reply{};
    const CUresult result = call_reply(cuda::Op::cuIpcGetMemHandle,
                                       cuda::wire::cuIpcGetMemHandle_call{range.address}, &reply);
    if (result == CUDA_SUCCESS) {
        g_gives_memory.store(true, std::memory_order_relaxed);
        std::memcpy(pHandle, &reply, sizeof(*pHandle));
    }
    return result;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* pdptr, CUipcMemHandle_v1 handle,
                               unsigned int Flags) noexcept {
    if (pdptr == nullptr || (Flags & ~CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    cuda::wire::cuIpcOpenMemHandle_v2_call arguments{};
    std::memcpy(&arguments.handle, &handle, sizeof(arguments.handle));
    cuda::wire::cuIpcOpenMemHandle_v2_reply reply{};
    const CUresult result = call_reply(cuda::Op::cuIpcOpenMemHandle_v2, arguments, &reply);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    Range range{};
    if (!find_range(reply.address, &range)) {  // Else it is open already, and stays known.
        range.address = reply.address;
        range.bytes = arguments.handle.bytes;
        range.kind = RangeKind::kDevice;
        range.context = session::current_context();
        range.owner = kOpenedRange;
        range.device = current_device();
        add_range(&range);
    }
    *pdptr = reply.address;
    return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr) noexcept {
    Range range{};
    if (!find_range(dptr, &range) || range.address != dptr || range.owner != kOpenedRange) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    cuda::wire::cuIpcCloseMemHandle_reply reply{};
    const CUresult result = call_reply(cuda::Op::cuIpcCloseMemHandle,
                                       cuda::wire::cuIpcCloseMemHandle_call{dptr}, &reply);
    if (result == CUDA_SUCCESS && reply.is_last != 0) {
        remove_range(dptr, &range);
    }
    return result;
}

CUresult cuIpcGetEventHandle(CUipcEventHandle_v1* pHandle, CUevent hEvent) noexcept {
    Event* event = g_events.find(bits(hEvent));
    if (event == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (pHandle == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // Made for one process, or another process's to give.
    if ((event->flags & CU_EVENT_INTERPROCESS) == 0 || event->opened) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    cuda::wire::cuIpcGetEventHandle_reply reply{};
    const CUresult result = call_reply(cuda::Op::cuIpcGetEventHandle,
                                       cuda::wire::cuIpcGetEventHandle_call{event->handle}, &reply);
    if (result == CUDA_SUCCESS) {
        share_event(event);
        std::memcpy(pHandle, &reply, sizeof(*pHandle));
    }
    return result;
}

CUresult cuIpcOpenEventHandle(CUevent* phEvent, CUipcEventHandle_v1 handle) noexcept {
    if (phEvent == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    cuda::wire::cuIpcOpenEventHandle_call arguments{};
    Event* event = g_events.create(HandleKind::kEvent, &arguments.event);
    if (event == nullptr) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    event->handle = arguments.event;
    event->context = session::current_context();
    event->flags = CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    event->opened = true;
    share_event(event);
    std::memcpy(&arguments.handle, &handle, sizeof(arguments.handle));
    const CUresult result = call_status(cuda::Op::cuIpcOpenEventHandle, arguments);
    if (result != CUDA_SUCCESS) {
        g_events.destroy(event->handle);
        return result;
    }
    *phEvent = reinterpret_cast<CUevent>(event->handle);
    return CUDA_SUCCESS;
}

}  // namespace gantry::cuda_impl
