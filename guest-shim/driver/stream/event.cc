// Events: named and made here without waiting. What the host shows of their completion answers most
// queries (session.h, look_at_event); frameworks ask for every buffer that they want to use again.
//
// Of an event that processes share the host alone knows the state. And processes tell each other by
// other ways than their rings: so what one does with such an event is done at the host when its
// call returns.
#include <cstring>

#include "guest-shim/driver/core/call_rules.h"
#include "guest-shim/driver/core/objects.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/shim_marshal.h"
#include "proto/cuda/gen/wire_structs.h"
#include "proto/cuda/refuse_if.h"

namespace gantry::shim {

constinit SlotTable<Event> g_events;

namespace {

std::atomic<bool> g_shares_events{false};

bool is_shared(CUevent handle) noexcept {
    const Event* event = g_events.find(bits(handle));
    return event != nullptr && event->shared.load(std::memory_order_acquire);
}

CUresult settle_if(bool is_needed, CUresult posted) noexcept {
    return __builtin_expect(is_needed, 0) ? settle(posted) : posted;
}

bool is_of_context(const Event& event, CUstream stream) noexcept {
    const Stream* found = g_streams.find(bits(stream));
    return event.context == (found != nullptr ? found->context : session::current_context());
}

/// Posts a record and keeps its position, by which its completion is shown.
CUresult record_event(Event* event, CUstream stream) {
    const cuda::wire::cuEventRecord_call arguments{event->handle, bits(stream)};
    session::Record record;
    const CUresult result = session::reserve(static_cast<std::uint16_t>(cuda::Op::cuEventRecord),
                                             sizeof(arguments), 0, &record);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    std::memcpy(record.args, &arguments, sizeof(arguments));
    // Of two threads that record one event at once, the later command counts.
    std::uint64_t before = event->recorded.load(std::memory_order_relaxed);
    while ((before < record.position || before == Event::kInCapture) &&
           !event->recorded.compare_exchange_weak(before, record.position)) {
    }
    return session::finish(record);
}

}  // namespace

void share_event(Event* event) noexcept {
    event->shared.store(true, std::memory_order_release);
    g_shares_events.store(true, std::memory_order_relaxed);
}

CUresult settle_graph_events(CUresult launched) noexcept {
    return settle_if(!session::follows_events() && g_shares_events.load(std::memory_order_relaxed),
                     launched);
}

}  // namespace gantry::shim

namespace gantry::shim::rules {

CUresult shared_event(CUresult posted, CUevent event) noexcept {
    return settle_if(is_shared(event), posted);
}

}  // namespace gantry::shim::rules

namespace gantry::cuda_impl {

using namespace gantry::shim;

CUresult cuEventCreate(CUevent* phEvent, unsigned int Flags) noexcept {
    constexpr unsigned kKnown =
        CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    if (phEvent == nullptr || (Flags & ~kKnown) != 0 ||
        ((Flags & CU_EVENT_INTERPROCESS) != 0 && (Flags & CU_EVENT_DISABLE_TIMING) == 0)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::uint64_t handle = 0;
    Event* event = g_events.create(HandleKind::kEvent, &handle);
    GANTRY_REFUSE_IF(event == nullptr, CUDA_ERROR_OUT_OF_MEMORY);
    event->handle = handle;
    event->context = session::current_context();
    event->flags = Flags;
    const cuda::wire::cuEventCreate_call arguments{handle, Flags, 0};
    const CUresult result = post_args(cuda::Op::cuEventCreate, arguments);
    if (result != CUDA_SUCCESS) {
        g_events.destroy(handle);
        return result;
    }
    *phEvent = reinterpret_cast<CUevent>(handle);
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent hEvent) noexcept {
    const bool shared = is_shared(hEvent);
    GANTRY_REFUSE_IF(!g_events.destroy(bits(hEvent)), CUDA_ERROR_INVALID_HANDLE);
    return settle_if(shared, post_args(cuda::Op::cuEventDestroy_v2,
                                       cuda::wire::cuEventDestroy_v2_call{bits(hEvent)}));
}

CUresult cuEventRecord(CUevent hEvent, CUstream hStream) noexcept {
    Event* event = g_events.find(bits(hEvent));
    GANTRY_REFUSE_IF(__builtin_expect(event == nullptr || !is_stream(hStream), 0),
                     CUDA_ERROR_INVALID_HANDLE);
    const bool shared = event->shared.load(std::memory_order_acquire);
    if (shared || captures_open()) {
        event->recorded.store(Event::kInCapture, std::memory_order_relaxed);
        return settle_if(shared, marshal::cuEventRecord(hEvent, hStream));
    }
    if (__builtin_expect(!is_of_context(*event, hStream), 0)) {  // The host refuses it.
        const CUresult result = call_status(
            cuda::Op::cuEventRecord, cuda::wire::cuEventRecord_call{event->handle, bits(hStream)});
        if (result == CUDA_SUCCESS) {
            event->recorded.store(Event::kInCapture, std::memory_order_relaxed);
        }
        return result;
    }
    return record_event(event, hStream);
}

CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags) noexcept {
    if (flags == 0) {
        return cuEventRecord(hEvent, hStream);
    }
    GANTRY_REFUSE_IF(flags != CU_EVENT_RECORD_EXTERNAL, CUDA_ERROR_INVALID_VALUE);
    session::stop_following_events();  // A node of a graph, perhaps: it records with each launch.
    return settle_if(is_shared(hEvent), marshal::cuEventRecordWithFlags(hEvent, hStream, flags));
}

CUresult cuEventQuery(CUevent hEvent) noexcept {
    if (captures_open()) {
        // Of an event of a capture natively nobody may ask, of others who may call anything.
        const CUresult result = marshal::cuEventQuery(hEvent);
        const CUresult refused =
            result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY ? refuse_in_capture() : result;
        return refused != CUDA_SUCCESS ? refused : result;
    }
    const Event* event = g_events.find(bits(hEvent));
    const std::uint64_t recorded =
        event != nullptr ? event->recorded.load(std::memory_order_acquire) : Event::kInCapture;
    if (recorded == Event::kInCapture || is_shared(hEvent)) {
        return marshal::cuEventQuery(hEvent);
    }
    switch (session::look_at_event(bits(hEvent), recorded)) {
        case session::EventState::kDone: return CUDA_SUCCESS;
        case session::EventState::kPending: return CUDA_ERROR_NOT_READY;
        default: return marshal::cuEventQuery(hEvent);
    }
}

}  // namespace gantry::cuda_impl
