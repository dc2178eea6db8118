#include "host-daemon/execution/device/event_pool.h"

namespace gantry::worker {

EventPool::~EventPool() {
    for (const auto& [native, context] : contexts_) {
        for (const CUevent event : context.free) {
            device_.api().cuEventDestroy_v2(event);
        }
    }
}

EventPool::Event EventPool::take() {
    Event taken;
    if (device_.api().cuCtxGetCurrent(&taken.context) != CUDA_SUCCESS || taken.context == nullptr) {
        return {};
    }
    MutexLock lock(mutex_);
    Context& context = contexts_[taken.context];
    if (context.life == 0) {
        context.life = ++last_life_;
    }
    taken.life = context.life;
    if (!context.free.empty()) {
        taken.native = context.free.back();
        context.free.pop_back();
    }
    return taken;
}

EventPool::Event EventPool::record(CUstream stream) {
    const driver::DriverApi& api = device_.api();
    Event event = take();
    if (event.context == nullptr ||
        (!event && api.cuEventCreate(&event.native, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)) {
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

void EventPool::keep(const Event& event) {
    MutexLock lock(mutex_);
    if (Context* context = find_locked(event); context != nullptr) {
        context->free.push_back(event.native);
    }
}

void EventPool::context_ends(CUcontext context) {
    MutexLock lock(mutex_);
    contexts_.erase(context);
}

}  // namespace gantry::worker
