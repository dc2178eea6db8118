#include "host-daemon/worker/legacy_stream.h"

#include <algorithm>

namespace gantry::worker {

LegacyStream::LegacyStream(Device& device) : device_(device) {
    device_.bind_thread();
    const driver::DriverApi& api = device_.api();
    // Made when the process begins, so that what a driver gives out later does not depend on it.
    if (api.cuStreamGetFlags == nullptr ||
        api.cuStreamCreateWithPriority(&own_, CU_STREAM_NON_BLOCKING, 0) != CUDA_SUCCESS) {
        own_ = nullptr;
        return;
    }
    if (api.cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
        event_ = nullptr;
    }
}

LegacyStream::~LegacyStream() {
    leave();
    if (event_ != nullptr) {
        device_.api().cuEventDestroy_v2(event_);
    }
    if (own_ != nullptr) {
        device_.api().cuStreamDestroy_v2(own_);
    }
}

void LegacyStream::put_off() {
    launches_ = 0;
    launches_wanted_ = std::min(launches_wanted_ * 2, kLaunchesMax);
}

bool LegacyStream::order(CUstream earlier, CUstream later) {
    const driver::DriverApi& api = device_.api();
    return api.cuEventRecord(event_, earlier) == CUDA_SUCCESS &&
           api.cuStreamWaitEvent(later, event_, 0) == CUDA_SUCCESS;
}

void LegacyStream::enter() {
    if (order(nullptr, own_)) {
        launches_wanted_ = kLaunchesMin;
        is_own_.store(true, std::memory_order_release);
    } else {
        put_off();
    }
}

void LegacyStream::leave() {
    if (!is_own()) {
        return;
    }
    launches_ = 0;
    if (!order(own_, nullptr)) {
        device_.api().cuStreamSynchronize(own_);
    }
    is_own_.store(false, std::memory_order_release);
}

void LegacyStream::give_up() {
    leave();
    if (event_ != nullptr) {
        device_.api().cuEventDestroy_v2(event_);
        event_ = nullptr;
    }
}

}  // namespace gantry::worker
