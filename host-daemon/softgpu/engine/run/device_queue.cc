#include "host-daemon/softgpu/engine/run/device_queue.h"

#include <iterator>
#include <utility>

namespace gantry::softgpu {

std::uint64_t DeviceQueue::reserve(DeviceWork child) {
    auto kept = std::make_unique<DeviceWork>(std::move(child));
    if (kept->params.empty()) {
        kept->params.resize(1);  // The buffer's address names the grid, so it must have one.
    }
    const auto address = reinterpret_cast<std::uint64_t>(kept->params.data());
    const std::lock_guard lock(mutex_);
    reserved_[address] = std::move(kept);
    return address;
}

std::unique_ptr<DeviceWork> DeviceQueue::claim(std::uint64_t buffer) {
    const std::lock_guard lock(mutex_);
    const auto found = reserved_.find(buffer);
    if (found == reserved_.end()) {
        return nullptr;
    }
    auto child = std::move(found->second);
    reserved_.erase(found);
    return child;
}

void DeviceQueue::launch(std::unique_ptr<DeviceWork> child, std::uint64_t stream) {
    const std::lock_guard lock(mutex_);
    (stream == kTailLaunchStream ? tail_ : launched_).push_back(std::move(child));
}

std::vector<std::unique_ptr<DeviceWork>> DeviceQueue::take() {
    const std::lock_guard lock(mutex_);
    launched_.insert(launched_.end(), std::make_move_iterator(tail_.begin()),
                     std::make_move_iterator(tail_.end()));
    tail_.clear();
    return std::exchange(launched_, {});
}

void DeviceQueue::set_error(std::uint64_t thread, DeviceRuntimeError error) {
    if (error != DeviceRuntimeError::kNone) {
        const std::lock_guard lock(mutex_);
        errors_[thread] = error;
    }
}

DeviceRuntimeError DeviceQueue::error(std::uint64_t thread, bool clear) {
    const std::lock_guard lock(mutex_);
    const auto found = errors_.find(thread);
    if (found == errors_.end()) {
        return DeviceRuntimeError::kNone;
    }
    const DeviceRuntimeError error = found->second;
    if (clear) {
        errors_.erase(found);
    }
    return error;
}

std::uint64_t DeviceQueue::make_handle() {
    const std::lock_guard lock(mutex_);
    // Beyond the named streams (null, legacy, per thread, tail, fire and forget).
    return 0x100 + ++handles_;
}

}  // namespace gantry::softgpu
