// Streams and events.
#include <algorithm>
#include <cstring>

#include "host-daemon/softgpu/core/driver.h"
#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/core/thread_state.h"
#include "host-daemon/softgpu/graph/capture.h"
#include "host-daemon/softgpu/memory/map.h"
#include "host-daemon/softgpu/streams/device_output.h"
#include "host-daemon/softgpu/streams/enqueue.h"
#include "host-daemon/softgpu/streams/event.h"
#include "host-daemon/softgpu/streams/operation.h"
#include "host-daemon/softgpu/streams/stream.h"
#include "proto/cuda/gen/impl.h"

namespace gantry::cuda_impl {
namespace {

using softgpu::Context;
using softgpu::Event;
using softgpu::Scheduler;
using softgpu::Stream;

constexpr int kPriorityGreatest = -5;
constexpr unsigned kEventFlagsKnown =
    CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;

CUresult event_of(CUevent handle, std::shared_ptr<Event>& event) {
    GANTRY_CU(softgpu::check_ready());
    GANTRY_REFUSE_IF(softgpu::thread_state().in_host_callback, CUDA_ERROR_NOT_PERMITTED);
    GANTRY_CU(softgpu::poison());
    event = softgpu::find<Event>(handle);
    return event != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

template <typename T>
CUresult answer(T* out, T value) {
    GANTRY_REFUSE_IF(out == nullptr, CUDA_ERROR_INVALID_VALUE);
    *out = value;
    return CUDA_SUCCESS;
}

/// What looks at a stream's work is refused while it is captured, and costs the capture.
CUresult refuse_captured(const std::shared_ptr<Stream>& stream) {
    if (!softgpu::capturing(stream)) {
        return CUDA_SUCCESS;
    }
    softgpu::capture_builder().invalidate(stream);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

}  // namespace

CUresult cuStreamCreateWithPriority(CUstream* phStream, unsigned int flags, int priority) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_REFUSE_IF(phStream == nullptr || (flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0,
                     CUDA_ERROR_INVALID_VALUE);
    const auto stream =
        std::make_shared<Stream>(context, flags, std::clamp(priority, kPriorityGreatest, 0));
    *phStream = softgpu::publish<CUstream>(stream);
    Scheduler::instance().add(*context, stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* phStream, unsigned int Flags) noexcept {
    return cuStreamCreateWithPriority(phStream, Flags, 0);
}

CUresult cuStreamDestroy_v2(CUstream hStream) noexcept {
    GANTRY_CURRENT(context);
    const auto stream = softgpu::find<Stream>(hStream);
    GANTRY_REFUSE_IF(stream == nullptr, CUDA_ERROR_INVALID_HANDLE);
    softgpu::abandon_capture(stream);
    softgpu::retract(*stream);
    if (const auto owner = stream->context()) {
        Scheduler::instance().remove(*owner, stream);
    }
    return CUDA_SUCCESS;
}

CUresult cuStreamGetPriority(CUstream hStream, int* priority) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, hStream);
    return answer(priority, stream->priority);
}

CUresult cuStreamGetFlags(CUstream hStream, unsigned int* flags) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, hStream);
    GANTRY_CU(refuse_captured(stream));
    return answer(flags, stream->flags);
}

CUresult cuStreamGetId(CUstream hStream, unsigned long long* streamId) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, hStream);
    GANTRY_CU(refuse_captured(stream));
    return answer(streamId, static_cast<unsigned long long>(stream->id));
}

CUresult cuStreamGetDevice(CUstream hStream, CUdevice* device) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, hStream);
    GANTRY_CU(refuse_captured(stream));
    const auto owner = stream->context();
    return owner == nullptr ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                            : answer(device, owner->device.ordinal);
}

CUresult cuStreamGetCtx(CUstream hStream, CUcontext* pctx) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, hStream);
    const auto owner = stream->context();
    return owner == nullptr ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                            : answer(pctx, owner->as<CUcontext>());
}

CUresult cuStreamGetCtx_v2(CUstream hStream, CUcontext* pctx, CUgreenCtx* pGreenCtx) noexcept {
    if (pGreenCtx != nullptr) {
        *pGreenCtx = nullptr;
    }
    return cuStreamGetCtx(hStream, pctx);
}

CUresult cuStreamGetGreenCtx(CUstream hStream, CUgreenCtx* phCtx) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, hStream);
    return answer(phCtx, static_cast<CUgreenCtx>(nullptr));  // There are none.
}

CUresult cuStreamQuery(CUstream hStream) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, hStream);
    GANTRY_CU(refuse_captured(stream));
    GANTRY_CU(softgpu::refuse_legacy_during_capture(stream));
    GANTRY_CU(softgpu::refuse_during_capture());
    return Scheduler::instance().points_before(stream).empty() ? softgpu::poison()
                                                               : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamSynchronize(CUstream hStream) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, hStream);
    GANTRY_CU(refuse_captured(stream));
    GANTRY_CU(softgpu::refuse_legacy_during_capture(stream));
    GANTRY_CU(softgpu::refuse_during_capture());
    return softgpu::wait_for(stream, *context);
}

CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, hStream);
    const auto event = softgpu::find<Event>(hEvent);
    GANTRY_REFUSE_IF(event == nullptr, CUDA_ERROR_INVALID_HANDLE);
    GANTRY_REFUSE_IF((Flags & ~unsigned{CU_EVENT_WAIT_EXTERNAL}) != 0, CUDA_ERROR_INVALID_VALUE);
    bool handled = false;
    GANTRY_CU(softgpu::capture_event_wait(stream, event, Flags, handled));
    if (handled) {
        return CUDA_SUCCESS;
    }
    auto point = event->awaited();
    if (!point) {
        return CUDA_SUCCESS;
    }
    auto nothing = std::make_unique<softgpu::FunctionWork>([] {}, true);
    Scheduler::instance().submit(stream, std::move(nothing), {std::move(*point)});
    return CUDA_SUCCESS;
}

CUresult cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void* userData,
                             unsigned int flags) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, hStream);
    GANTRY_REFUSE_IF(callback == nullptr || flags != 0, CUDA_ERROR_INVALID_VALUE);
    if (softgpu::capturing(stream)) {
        softgpu::capture_builder().invalidate(stream);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    auto operation = std::make_shared<softgpu::CallbackOperation>();
    operation->stream = hStream;
    operation->callback = callback;
    operation->user = userData;
    return softgpu::enqueue(stream, std::move(operation));
}

CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void* userData) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, hStream);
    GANTRY_REFUSE_IF(fn == nullptr, CUDA_ERROR_INVALID_VALUE);
    auto operation = std::make_shared<softgpu::HostOperation>();
    operation->params = {fn, userData};
    return softgpu::enqueue(stream, std::move(operation));
}

CUresult cuStreamAttachMemAsync(CUstream hStream, CUdeviceptr dptr, size_t,
                                unsigned int flags) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, hStream);
    const bool known = flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST ||
                       flags == CU_MEM_ATTACH_SINGLE;
    const auto range = softgpu::MemoryMap::instance().find(dptr);
    return known && range && range->kind == softgpu::MemoryKind::kManaged
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuStreamCopyAttributes(CUstream dstStream, CUstream srcStream) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(to, context, dstStream);
    GANTRY_STREAM(from, context, srcStream);
    if (to == from) {
        return CUDA_SUCCESS;
    }
    const std::scoped_lock lock(to->attribute_mutex, from->attribute_mutex);
    std::copy(std::begin(from->attributes), std::end(from->attributes), to->attributes);
    return CUDA_SUCCESS;
}

namespace {

bool stream_attribute(CUstreamAttrID id) {
    return id == CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW ||
           id == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY || id == CU_LAUNCH_ATTRIBUTE_PRIORITY ||
           id == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP ||
           id == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN;
}

}  // namespace

CUresult cuStreamGetAttribute(CUstream hStream, CUstreamAttrID attr,
                              CUstreamAttrValue_v1* value) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, hStream);
    GANTRY_REFUSE_IF(value == nullptr || !stream_attribute(attr), CUDA_ERROR_INVALID_VALUE);
    const std::lock_guard lock(stream->attribute_mutex);
    *value = stream->attributes[attr];
    return CUDA_SUCCESS;
}

CUresult cuStreamSetAttribute(CUstream hStream, CUstreamAttrID attr,
                              const CUstreamAttrValue_v1* param) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, hStream);
    GANTRY_REFUSE_IF(param == nullptr || !stream_attribute(attr), CUDA_ERROR_INVALID_VALUE);
    const std::lock_guard lock(stream->attribute_mutex);
    stream->attributes[attr] = *param;
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* phEvent, unsigned int Flags) noexcept {
    GANTRY_CURRENT(context);
    const bool bad_ipc =
        (Flags & CU_EVENT_INTERPROCESS) != 0 && (Flags & CU_EVENT_DISABLE_TIMING) == 0;
    GANTRY_REFUSE_IF(phEvent == nullptr || (Flags & ~kEventFlagsKnown) != 0 || bad_ipc,
                     CUDA_ERROR_INVALID_VALUE);
    std::shared_ptr<softgpu::SharedEvent> shared;
    if ((Flags & CU_EVENT_INTERPROCESS) != 0) {
        shared = softgpu::SharedEvent::create();
        GANTRY_REFUSE_IF(shared == nullptr, CUDA_ERROR_OUT_OF_MEMORY);
    }
    *phEvent =
        softgpu::publish<CUevent>(std::make_shared<Event>(context, Flags, std::move(shared)));
    return CUDA_SUCCESS;
}

CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, hStream);
    const auto event = softgpu::find<Event>(hEvent);
    GANTRY_REFUSE_IF(event == nullptr, CUDA_ERROR_INVALID_HANDLE);
    GANTRY_REFUSE_IF((flags & ~unsigned{CU_EVENT_RECORD_EXTERNAL}) != 0, CUDA_ERROR_INVALID_VALUE);
    GANTRY_REFUSE_IF(stream->context() != event->context.lock(), CUDA_ERROR_INVALID_HANDLE);
    if (softgpu::capturing(stream)) {
        return softgpu::capture_event_record(stream, event, flags);
    }
    GANTRY_CU(softgpu::refuse_legacy_during_capture(stream));
    softgpu::record_event(event, stream);
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent hEvent, CUstream hStream) noexcept {
    return cuEventRecordWithFlags(hEvent, hStream, CU_EVENT_RECORD_DEFAULT);
}

CUresult cuEventQuery(CUevent hEvent) noexcept {
    std::shared_ptr<Event> event;
    GANTRY_CU(event_of(hEvent, event));
    GANTRY_CU(softgpu::refuse_captured_event(event));
    GANTRY_CU(softgpu::refuse_during_capture());
    return event->has_passed() ? softgpu::poison() : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent hEvent) noexcept {
    std::shared_ptr<Event> event;
    GANTRY_CU(event_of(hEvent, event));
    GANTRY_CU(softgpu::refuse_captured_event(event));
    GANTRY_CU(softgpu::refuse_during_capture());
    event->wait();
    softgpu::DeviceOutput::instance().flush();
    return softgpu::poison();
}

CUresult cuEventDestroy_v2(CUevent hEvent) noexcept {
    std::shared_ptr<Event> event;
    GANTRY_CU(event_of(hEvent, event));
    softgpu::retract(*event);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime_v2(float* pMilliseconds, CUevent hStart, CUevent hEnd) noexcept {
    std::shared_ptr<Event> start;
    std::shared_ptr<Event> end;
    GANTRY_CU(event_of(hStart, start));
    GANTRY_CU(event_of(hEnd, end));
    GANTRY_REFUSE_IF(pMilliseconds == nullptr, CUDA_ERROR_INVALID_VALUE);
    if (softgpu::is_captured_event(start) || softgpu::is_captured_event(end)) {
        return CUDA_ERROR_CAPTURED_EVENT;  // The capture goes on.
    }
    const auto first = start->mark();
    const auto second = end->mark();
    GANTRY_REFUSE_IF(first == nullptr || second == nullptr || !start->timed() || !end->timed(),
                     CUDA_ERROR_INVALID_HANDLE);
    GANTRY_REFUSE_IF(!first->point.reached() || !second->point.reached(), CUDA_ERROR_NOT_READY);
    const std::int64_t elapsed_ns = second->time_ns.load() - first->time_ns.load();
    *pMilliseconds = static_cast<float>(static_cast<double>(elapsed_ns) * 1e-6);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float* pMilliseconds, CUevent hStart, CUevent hEnd) noexcept {
    return cuEventElapsedTime_v2(pMilliseconds, hStart, hEnd);
}

CUresult cuCtxRecordEvent(CUcontext hCtx, CUevent hEvent) noexcept {
    GANTRY_CU(softgpu::poison());
    const auto context = softgpu::find<Context>(hCtx);
    const auto event = softgpu::find<Event>(hEvent);
    if (context == nullptr || event == nullptr) {
        return context == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
    }
    // A private stream gathers all work of the context, so that one point stands for it.
    const auto gather = std::make_shared<Stream>(context, CU_STREAM_NON_BLOCKING, 0);
    auto points = Scheduler::instance().points_of(*context);
    Scheduler::instance().submit(gather, std::make_unique<softgpu::FunctionWork>([] {}, true),
                                 std::move(points));
    softgpu::record_event(event, gather);
    return CUDA_SUCCESS;
}

CUresult cuCtxWaitEvent(CUcontext hCtx, CUevent hEvent) noexcept {
    GANTRY_CU(softgpu::poison());
    const auto context = softgpu::find<Context>(hCtx);
    const auto event = softgpu::find<Event>(hEvent);
    if (context == nullptr || event == nullptr) {
        return context == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
    }
    const auto point = event->awaited();
    if (!point) {
        return CUDA_SUCCESS;
    }
    for (const auto& stream : Scheduler::instance().streams_of(*context)) {
        Scheduler::instance().submit(stream, std::make_unique<softgpu::FunctionWork>([] {}, true),
                                     {*point});
    }
    return CUDA_SUCCESS;
}

}  // namespace gantry::cuda_impl
