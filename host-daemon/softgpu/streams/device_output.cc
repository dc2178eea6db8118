#include "host-daemon/softgpu/streams/device_output.h"

#include <cstdio>

namespace gantry::softgpu {

DeviceOutput& DeviceOutput::instance() {
    static auto* output = new DeviceOutput;
    return *output;
}

void DeviceOutput::print(std::string_view text, std::size_t fifo_bytes) {
    const std::lock_guard lock(mutex_);
    text_.append(text);
    if (text_.size() > fifo_bytes) {
        text_.erase(0, text_.size() - fifo_bytes);
    }
    something_.store(true, std::memory_order_release);
}

void DeviceOutput::assertion(std::string_view text) {
    const std::lock_guard lock(mutex_);
    if (sink_ != nullptr) {
        sink_(user_, static_cast<int>(Channel::kAssert), text.data(), text.size());
    } else {
        std::fwrite(text.data(), 1, text.size(), stderr);
    }
}

void DeviceOutput::flush() {
    if (!something_.load(std::memory_order_acquire)) {
        return;
    }
    const std::lock_guard lock(mutex_);
    something_.store(false);
    if (sink_ != nullptr) {
        sink_(user_, static_cast<int>(Channel::kPrintf), text_.data(), text_.size());
    } else {
        // The program's own stdout buffer, so that its prints and the kernels' keep their order.
        std::fwrite(text_.data(), 1, text_.size(), stdout);
    }
    text_.clear();
}

void DeviceOutput::set_sink(Sink sink, void* user) {
    const std::lock_guard lock(mutex_);
    sink_ = sink;
    user_ = user;
}

std::string DeviceOutput::pending() {
    const std::lock_guard lock(mutex_);
    return text_;
}

void DeviceOutput::restore(std::string_view text) {
    const std::lock_guard lock(mutex_);
    text_ = text;
    something_.store(!text.empty());
}

}  // namespace gantry::softgpu
