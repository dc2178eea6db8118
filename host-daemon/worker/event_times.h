// EventTimes: when events were recorded, for those that were recorded in an earlier worker.
// Milliseconds after an arbitrary common origin, as the driver measured them. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

namespace gantry::worker {

class EventTimes {
public:
    void keep(std::uint64_t event, double milliseconds) {
        std::lock_guard lock(mutex_);
        times_[event] = milliseconds;
    }
    /// The event was recorded again here.
    void forget(std::uint64_t event) {
        std::lock_guard lock(mutex_);
        times_.erase(event);
    }
    [[nodiscard]] std::optional<double> of(std::uint64_t event) const {
        std::lock_guard lock(mutex_);
        const auto time = times_.find(event);
        return time == times_.end() ? std::nullopt : std::optional<double>(time->second);
    }
    /// Only if both come from before; a driver can tell the rest.
    [[nodiscard]] std::optional<float> between(std::uint64_t start, std::uint64_t end) const {
        const auto from = of(start);
        const auto to = of(end);
        return from && to ? std::optional<float>(static_cast<float>(*to - *from)) : std::nullopt;
    }

private:
    mutable std::mutex mutex_;
    std::map<std::uint64_t, double> times_;
};

}  // namespace gantry::worker
