#include "host-daemon/softgpu/engine/run/device_queue.h"

#include <iterator>
#include <utility>

#include "host-daemon/softgpu/engine/windows.h"

namespace gantry::softgpu {

std::uint64_t DeviceQueue::reserve(DeviceWork child) {
    const std::lock_guard lock(mutex_);
    if (child.params.size() > kLaunchSlotBytes || slots_ == kWindowBytes / kLaunchSlotBytes) {
        return 0;
    }
    const std::uint64_t slot = slots_++;
    reserved_[slot] = std::make_unique<DeviceWork>(std::move(child));
    return kLaunchWindow + slot * kLaunchSlotBytes;
}

std::uint64_t DeviceQueue::parameters_at(std::uint64_t address, std::uint64_t bytes) {
    const std::uint64_t offset = (address - kLaunchWindow) % kLaunchSlotBytes;
    const std::lock_guard lock(mutex_);
    const auto found = reserved_.find((address - kLaunchWindow) / kLaunchSlotBytes);
    if (found == reserved_.end()) {
        return 0;
    }
    std::vector<std::byte>& params = found->second->params;
    const bool held = offset <= params.size() && bytes <= params.size() - offset;
    return held ? reinterpret_cast<std::uint64_t>(params.data()) + offset : 0;
}

std::unique_ptr<DeviceWork> DeviceQueue::claim(std::uint64_t buffer) {
    const std::lock_guard lock(mutex_);
    const auto found = reserved_.find((buffer - kLaunchWindow) / kLaunchSlotBytes);
    if (found == reserved_.end() || (buffer - kLaunchWindow) % kLaunchSlotBytes != 0) {
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

void DeviceQueue::keep(std::unique_ptr<DeviceWork> child) {
    const std::lock_guard lock(mutex_);
    kept_.push_back(std::move(child));
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
