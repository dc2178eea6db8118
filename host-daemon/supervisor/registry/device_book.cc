#include "host-daemon/supervisor/registry/device_book.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <numeric>

namespace gantry::supervisor {
namespace {

constexpr int kMib = 20;

std::uint64_t sum_of(const std::map<std::string, std::uint64_t>& promises) {
    return std::accumulate(
        promises.begin(), promises.end(), std::uint64_t{0},
        [](std::uint64_t sum, const auto& promise) { return sum + promise.second; });
}

}  // namespace

void DeviceBook::serve(std::vector<DeviceNumber> devices) {
    std::sort(devices.begin(), devices.end());
    const MutexLock lock(mutex_);
    served_ = std::move(devices);
}

std::vector<DeviceNumber> DeviceBook::served() const {
    const MutexLock lock(mutex_);
    return served_;
}

bool DeviceBook::is_served(DeviceNumber device) const {
    const MutexLock lock(mutex_);
    return std::find(served_.begin(), served_.end(), device) != served_.end();
}

std::vector<GpuOffer> DeviceBook::offers(const std::string& session) const {
    const MutexLock lock(mutex_);
    return offers_for(session);
}

std::vector<GpuOffer> DeviceBook::offers_for(const std::string& session) const {
    std::vector<GpuOffer> out;
    for (const DeviceNumber number : served_) {
        const auto found = devices_.find(number);
        if (found == devices_.end()) {
            continue;
        }
        const control::DeviceDescription& device = found->second;
        GpuOffer offer;
        offer.device = number;
        offer.name = device.name();
        offer.uuid = device.uuid();
        offer.cc = {device.compute_capability_major(), device.compute_capability_minor()};
        offer.memory_bytes = device.memory_bytes();
        if (const auto promises = promised_bytes_.find(number); promises != promised_bytes_.end()) {
            const auto own = promises->second.find(session);
            const bool has_own = own != promises->second.end();
            offer.promised_bytes = sum_of(promises->second) - (has_own ? own->second : 0);
            offer.session_count = promises->second.size() - (has_own ? 1 : 0);
        }
        out.push_back(std::move(offer));
    }
    return out;
}

/// Why no device that is served can be used.
Error DeviceBook::absent() const {
    std::string text = "this host has no usable GPU";
    for (const DeviceNumber number : served_) {
        if (const auto error = errors_.find(number); error != errors_.end()) {
            text += fmt::format("; GPU {}: {}", number, error->second.text);
        }
    }
    return Error{Code::kFailedPrecondition, "gpu.absent", std::move(text)};
}

Result<DeviceNumber> DeviceBook::place(const std::string& session, const PlacementRequest& request,
                                       PlacementPolicy policy) {
    const MutexLock lock(mutex_);
    const std::vector<GpuOffer> offers = offers_for(session);
    if (offers.empty()) {
        return absent();
    }
    GANTRY_ASSIGN(const DeviceNumber device, supervisor::place(request, offers, policy));
    promised_bytes_[device][session] = request.quota_bytes;
    return device;
}

Result<control::DeviceDescription> DeviceBook::probe(DeviceNumber device, Probe when) {
    if (device >= kDevicesMax) {
        return Error{Code::kInvalidArgument, "gpu.absent",
                     fmt::format("device {}: a number below {} is wanted", device, kDevicesMax)};
    }
    const MutexLock probing(probing_[device]);
    if (when == Probe::kUnlessKnown) {
        if (auto description = known(device)) {
            return *description;
        }
    }
    auto asked = ask_(device);
    if (asked) {
        note(device, *asked);
        spdlog::info("device: {}, number {}, compute capability {}.{}, {} MiB", asked->name(),
                     device, asked->compute_capability_major(), asked->compute_capability_minor(),
                     asked->memory_bytes() >> kMib);
    } else {
        spdlog::error("GPU {} cannot be used: {}", device, asked.error().to_string());
        const MutexLock lock(mutex_);
        errors_[device] = asked.error();
    }
    return asked;
}

void DeviceBook::note(DeviceNumber device, const control::DeviceDescription& description) {
    const MutexLock lock(mutex_);
    devices_[device] = description;
    errors_.erase(device);
}

std::optional<control::DeviceDescription> DeviceBook::known(DeviceNumber device) const {
    const MutexLock lock(mutex_);
    const auto found = devices_.find(device);
    return found == devices_.end() ? std::nullopt : std::optional(found->second);
}

Error DeviceBook::error_of(DeviceNumber device) const {
    const MutexLock lock(mutex_);
    const auto found = errors_.find(device);
    return found == errors_.end() ? Error{} : found->second;
}

Result<void> DeviceBook::reserve(const std::string& session, DeviceNumber device,
                                 std::uint64_t bytes) {
    const MutexLock lock(mutex_);
    const auto found = devices_.find(device);
    if (found == devices_.end()) {
        const auto error = errors_.find(device);
        return Error{Code::kFailedPrecondition, "gpu.absent",
                     fmt::format("GPU {} of this host cannot be used: {}", device,
                                 error == errors_.end() ? "" : error->second.text)};
    }
    const std::uint64_t all = found->second.memory_bytes();
    auto& promises = promised_bytes_[device];
    const auto own = promises.find(session);
    const std::uint64_t others = sum_of(promises) - (own == promises.end() ? 0 : own->second);
    if (bytes > all || others > all - bytes) {
        return Error{
            Code::kResourceExhausted, "gpu.memory.in_use",
            fmt::format("{} has {} MiB, of which {} MiB are promised to others; {} MiB are wanted",
                        found->second.name(), all >> kMib, others >> kMib, bytes >> kMib)};
    }
    promises[session] = bytes;
    return {};
}

void DeviceBook::promise(const std::string& session, DeviceNumber device, std::uint64_t bytes) {
    const MutexLock lock(mutex_);
    promised_bytes_[device][session] = bytes;
}

void DeviceBook::forget(const std::string& session) {
    const MutexLock lock(mutex_);
    for (auto& [device, promises] : promised_bytes_) {
        promises.erase(session);
    }
}

void DeviceBook::keep_only(const std::string& session, DeviceNumber device) {
    const MutexLock lock(mutex_);
    for (auto& [other, promises] : promised_bytes_) {
        if (other != device) {
            promises.erase(session);
        }
    }
}

std::uint64_t DeviceBook::promised(DeviceNumber device) const {
    const MutexLock lock(mutex_);
    const auto found = promised_bytes_.find(device);
    return found == promised_bytes_.end() ? 0 : sum_of(found->second);
}

std::uint64_t DeviceBook::promised_to(const std::string& session, DeviceNumber device) const {
    const MutexLock lock(mutex_);
    const auto found = promised_bytes_.find(device);
    if (found == promised_bytes_.end()) {
        return 0;
    }
    const auto own = found->second.find(session);
    return own == found->second.end() ? 0 : own->second;
}

}  // namespace gantry::supervisor
