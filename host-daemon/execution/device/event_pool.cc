#include "host-daemon/execution/device/event_pool.h"

#include "host-daemon/execution/device/event_times.h"

namespace gantry::worker {

EventPool::~EventPool() {
    for (const auto& [native, context] : contexts_) {
        for (const auto* const events : {&context.free, &context.free_timed}) {
            for (const CUevent event : *events) {
                device_.api().cuEventDestroy_v2(event);
            }
        }
    }
}

EventPool::Event EventPool::take(Kind kind) {
    Event taken;
    taken.is_timed = kind == Kind::kTimed;
    if (device_.api().cuCtxGetCurrent(&taken.context) != CUDA_SUCCESS || taken.context == nullptr) {
        return {};
    }
    MutexLock lock(mutex_);
    Context& context = contexts_[taken.context];
    if (context.life == 0) {
        context.life = ++last_life_;
    }
    taken.life = context.life;
    std::vector<CUevent>& free = taken.is_timed ? context.free_timed : context.free;
    if (!free.empty()) {
        taken.native = free.back();
        free.pop_back();
    }
    return taken;
}

EventPool::Event EventPool::record(CUstream stream, Kind kind) {
    const driver::DriverApi& api = device_.api();
    Event event = take(kind);
    const unsigned flags = event.is_timed ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING;
    if (event.context == nullptr ||
        (!event && api.cuEventCreate(&event.native, flags) != CUDA_SUCCESS)) {
        return {};
    }
    if (api.cuEventRecord(event.native, stream) != CUDA_SUCCESS) {
        keep(event);
        return {};
    }
    return event;
}

EventPool::Context* EventPool::find_locked(const Event& event) {
    const auto context = contexts_.find(event.context);
    return event && context != contexts_.end() && context->second.life == event.life
               ? &context->second
               : nullptr;
}

CUresult EventPool::query(const Event& event) {
    MutexLock lock(mutex_);
    return find_locked(event) != nullptr ? device_.api().cuEventQuery(event.native) : CUDA_SUCCESS;
}

std::optional<std::chrono::nanoseconds> EventPool::between(const Event& before,
                                                           const Event& behind) {
    MutexLock lock(mutex_);
    if (find_locked(before) == nullptr || find_locked(behind) == nullptr) {
        return std::nullopt;
    }
    float ms = 0;
    return elapsed_time(device_.api(), before.native, behind.native, &ms) == CUDA_SUCCESS
               ? std::optional(std::chrono::nanoseconds{static_cast<std::int64_t>(ms * 1e6F)})
               : std::nullopt;
}

void EventPool::keep(const Event& event) {
    MutexLock lock(mutex_);
    if (Context* context = find_locked(event); context != nullptr) {
        (event.is_timed ? context->free_timed : context->free).push_back(event.native);
    }
}

void EventPool::context_ends(CUcontext context) {
    MutexLock lock(mutex_);
    contexts_.erase(context);
}

}  // namespace gantry::worker
