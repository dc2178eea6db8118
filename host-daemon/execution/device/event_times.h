// EventTimes: what cuEventElapsedTime answers, also for events that an earlier worker recorded.
//
// Two events recorded in this worker are the driver's to compare. An event from before a move keeps
// its time as nanoseconds before the anchor, an event of our own that each worker records when it
// takes over (and again when it is frozen): so a pair of old and new is right up to the pause. What
// the guest has asked before is answered with the same float again: a difference of restored times
// could round the other way.
//
// Threads: all calls lock. Failure: the driver's results. Cost: forget() is one atomic load as long
// as nothing is kept from before.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "host-daemon/execution/device/device.h"
#include "proto/base/mutex.h"

namespace gantry::worker {

/// As the driver tells it, by its newest entry point; CUDA_ERROR_NOT_SUPPORTED where it has none.
CUresult elapsed_time(const driver::DriverApi& api, CUevent start, CUevent end,
                      float* milliseconds);

class EventTimes {
public:
    struct Time {
        std::uint64_t event = 0;
        std::int64_t ns = 0;  ///< Relative to the freeze: negative.
    };
    struct Answer {
        std::uint64_t start = 0;
        std::uint64_t end = 0;
        float milliseconds = 0.0f;
    };
    struct State {
        std::vector<Time> times;
        std::vector<Answer> answers;
    };
    /// An event by the guest's handle, with the driver's.
    struct Named {
        std::uint64_t handle = 0;
        CUevent native = nullptr;
    };

    /// Pairs of events whose answers outlive a move; more than these forget the oldest.
    static constexpr std::size_t kAskedMax = 4096;

    explicit EventTimes(Device& device) : device_(device) {}
    ~EventTimes();
    EventTimes(const EventTimes&) = delete;
    EventTimes& operator=(const EventTimes&) = delete;

    /// The event was recorded here, or is gone.
    void forget(std::uint64_t event);
    [[nodiscard]] bool keeps_any() const { return keeps_any_.load(std::memory_order_relaxed); }
    /// As cuEventElapsedTime.
    CUresult between(const Named& start, const Named& end, float* milliseconds);

    /// Times of all recorded events that have timing; the device is idle. Events that a driver
    /// cannot time (never recorded, captured, made without timing) are left out.
    [[nodiscard]] State save(const std::vector<Named>& events);
    /// Takes over from an earlier worker; the anchor is now.
    CUresult load(const State& state);

private:
    using Pair = std::pair<std::uint64_t, std::uint64_t>;

    CUresult measure(const Named& start, const Named& end, float* milliseconds) const
        GANTRY_REQUIRES(mutex_);
    CUresult record_anchor(CUevent* anchor) const;
    void note_asked(const Pair& pair) GANTRY_REQUIRES(mutex_);

    Device& device_;
    mutable Mutex mutex_;
    CUevent anchor_ GANTRY_GUARDED_BY(mutex_) = nullptr;
    /// By event, nanoseconds from the anchor.
    std::map<std::uint64_t, std::int64_t> kept_ GANTRY_GUARDED_BY(mutex_);
    std::map<Pair, float> kept_answers_ GANTRY_GUARDED_BY(mutex_);
    std::set<Pair> asked_ GANTRY_GUARDED_BY(mutex_);
    std::deque<Pair> asked_order_ GANTRY_GUARDED_BY(mutex_);
    std::atomic<bool> keeps_any_{false};
};

}  // namespace gantry::worker
