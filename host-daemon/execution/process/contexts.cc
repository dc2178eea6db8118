// GuestProcess: the current context of a thread, and synchronising the guest's contexts.
#include <algorithm>

#include "host-daemon/execution/process/guest_process.h"

namespace gantry::worker {
namespace {

/// Context that this thread has made current; avoids a driver call per command.
thread_local CUcontext t_context = nullptr;
/// How many contexts had ended when it did: another one may get the address of one that has.
thread_local std::uint64_t t_ended_contexts = 0;

}  // namespace

CUcontext GuestProcess::current_context() { return t_context; }

void GuestProcess::bind_thread() {
    device.bind_thread();
    t_context = device.context();
    // A capture of one guest thread must not forbid what the worker does for another one.
    auto mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (device.api().cuThreadExchangeStreamCaptureMode != nullptr) {
        device.api().cuThreadExchangeStreamCaptureMode(&mode);
    }
}

CUresult GuestProcess::enter_context(std::uint64_t context) {
    CUcontext wanted = device.context();
    if (context != 0 && context != cuda::primary_context_handle(0)) {
        wanted = objects.native_as<CUcontext>(context, HandleKind::kContext);
        if (wanted == nullptr) {
            return CUDA_ERROR_INVALID_CONTEXT;
        }
    }
    const std::uint64_t ended = ended_contexts_.load(std::memory_order_acquire);
    if (wanted == t_context && ended == t_ended_contexts) {
        return CUDA_SUCCESS;
    }
    t_ended_contexts = ended;
    const CUresult result = device.api().cuCtxSetCurrent(wanted);
    t_context = result == CUDA_SUCCESS ? wanted : nullptr;
    return result;
}

CUresult GuestProcess::end_context(CUcontext context) {
    own_events.context_ends(context);
    for (const std::uint32_t lane : lane_streams_.context_ends(context)) {
        const std::vector<CUstream> left = lane_streams_.of_lane(lane);
        if (std::none_of(left.begin(), left.end(),
                         [this](CUstream stream) { return is_capturing(stream); })) {
            end_capture(HeldWork::key_of_lane(lane));  // The driver gives it up with its stream.
        }
    }
    const CUresult result = device.api().cuCtxDestroy_v2(context);
    ended_contexts_.fetch_add(1, std::memory_order_release);
    t_context = nullptr;
    enter_context(0);
    return result;
}

bool GuestProcess::has_one_stream() const {
    return may_query_streams() && lane_streams_.is_empty() &&
           objects.count_kind(HandleKind::kStream) == 0;
}

CUresult GuestProcess::synchronise_context(const std::optional<BusyStream>& busy) {
    if (captures.load() != 0) {
        return synchronise_beside_captures();
    }
    if (busy && busy->stream == nullptr && has_one_stream()) {
        return synchronise_stream(nullptr, busy);
    }
    const std::uint64_t left = left_streams_.load();
    const CUresult result = device.api().cuCtxSynchronize();
    std::uint64_t settled = settled_streams_.load();
    while (settled < left && !settled_streams_.compare_exchange_weak(settled, left)) {
    }
    return result;
}

CUresult GuestProcess::synchronise_device() {
    CUresult worst = synchronise_context();
    if (captures.load() != 0) {
        return worst;
    }
    const CUcontext own = t_context;
    for (const Object& context : objects.list_kind(HandleKind::kContext)) {
        const auto native = reinterpret_cast<CUcontext>(context.native);
        if (native == own || device.api().cuCtxSetCurrent(native) != CUDA_SUCCESS) {
            continue;
        }
        const CUresult result = device.api().cuCtxSynchronize();
        worst = worst == CUDA_SUCCESS ? result : worst;
        device.api().cuCtxSetCurrent(own);
    }
    return worst;
}

}  // namespace gantry::worker
