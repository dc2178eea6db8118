// Memory and events given to other processes of the same VM, and opened of theirs. A handle is the
// host's: what it names is checked there, whoever presents it.
#include <atomic>
#include <cstring>

#include "guest-shim/driver/core/call_rules.h"
#include "guest-shim/driver/core/objects.h"
#include "guest-shim/driver/core/ranges.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/shim_marshal.h"
#include "proto/cuda/gen/wire_structs.h"
#include "proto/cuda/refuse_if.h"

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

namespace gantry::shim::rules {

CUresult may_give(CUdeviceptr* address) noexcept {
    Range range{};
    // Of a pool or the program's own mappings there are shareable handles instead, natively too.
    if (!find_range(*address, &range) || range.kind != RangeKind::kDevice ||
        range.owner == kOpenedRange) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *address = range.address;
    return CUDA_SUCCESS;
}

CUresult may_give(CUevent handle) noexcept {
    const Event* event = g_events.find(bits(handle));
    // Made for one process, or another process's to give.
    return event == nullptr || (event->flags & CU_EVENT_INTERPROCESS) == 0 || event->opened
               ? CUDA_ERROR_INVALID_HANDLE
               : CUDA_SUCCESS;
}

void memory_given() noexcept { g_gives_memory.store(true, std::memory_order_relaxed); }

void event_given(CUevent handle) noexcept {
    if (Event* event = g_events.find(bits(handle)); event != nullptr) {
        share_event(event);
    }
}

void memory_opened(CUdeviceptr address, const CUipcMemHandle_v1& handle) noexcept {
    Range range{};
    if (find_range(address, &range)) {
        return;  // It is open already, and stays known.
    }
    cuda::wire_hand::ShareHandle given{};
    std::memcpy(&given, &handle, sizeof(given));
    range.address = address;
    range.bytes = given.bytes;
    range.kind = RangeKind::kDevice;
    range.context = session::current_context();
    range.owner = kOpenedRange;
    range.device = current_device();
    add_range(&range);
}

}  // namespace gantry::shim::rules

namespace gantry::cuda_impl {

using namespace gantry::shim;

namespace {

static_assert(sizeof(cuda::wire_hand::ShareHandle) == sizeof(CUipcMemHandle_v1));
static_assert(sizeof(cuda::wire_hand::ShareHandle) == sizeof(CUipcEventHandle_v1));

}  // namespace

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr) noexcept {
    Range range{};
    GANTRY_REFUSE_IF(
        !find_range(dptr, &range) || range.address != dptr || range.owner != kOpenedRange,
        CUDA_ERROR_INVALID_VALUE);
    cuda::wire::cuIpcCloseMemHandle_reply reply{};
    const CUresult result = call_reply(cuda::Op::cuIpcCloseMemHandle,
                                       cuda::wire::cuIpcCloseMemHandle_call{dptr}, &reply);
    if (result == CUDA_SUCCESS && reply.is_last != 0) {
        remove_range(dptr, &range);
    }
    return result;
}

CUresult cuIpcOpenEventHandle(CUevent* phEvent, CUipcEventHandle_v1 handle) noexcept {
    GANTRY_REFUSE_IF(phEvent == nullptr, CUDA_ERROR_INVALID_VALUE);
    cuda::wire::cuIpcOpenEventHandle_call arguments{};
    Event* event = g_events.create(HandleKind::kEvent, &arguments.event);
    GANTRY_REFUSE_IF(event == nullptr, CUDA_ERROR_OUT_OF_MEMORY);
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
