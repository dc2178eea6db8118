// LaneExecutors: threads that carry out what may block, so that the ring's consumer never does.
//
// One thread per lane, started at the lane's first blocking command, kept until the end. A guest
// thread waits for its blocking command's answer, so a lane rarely has more than one job; several
// guest threads may share a lane, and then their blocking commands take turns.
//
// Invariant: jobs of one lane run in the order given. Threads: any.  Failure: jobs report by their
// own means; a job must not throw. Cost: one mutex and one wake-up a job.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "proto/base/serial_executor.h"
#include "proto/wire/region.h"

namespace gantry::worker {

class LaneExecutors {
public:
    using Job = std::function<void()>;
    /// `on_start` runs once in each new thread, before its first job.
    explicit LaneExecutors(std::function<void()> on_start) : on_start_(std::move(on_start)) {}
    /// Waits for running jobs; drops waiting ones.
    ~LaneExecutors();
    LaneExecutors(const LaneExecutors&) = delete;
    LaneExecutors& operator=(const LaneExecutors&) = delete;

    /// Lane numbers up to and including kLaneCount; the last is for the worker's own chores.
    void post(std::uint32_t lane, Job job);
    static constexpr std::uint32_t kChoreLane = wire::kLaneCount;

    /// Jobs posted and not ended, in all lanes.
    [[nodiscard]] std::uint32_t busy_count() const;
    /// False when jobs were still running at the deadline.
    bool wait_idle(std::chrono::steady_clock::time_point deadline);

private:
    const std::function<void()> on_start_;
    mutable Mutex mutex_;
    CondVar idle_;
    std::uint32_t pending_ GANTRY_GUARDED_BY(mutex_) = 0;
    /// Null before a lane's first job. post() only makes them, and the destructor ends them.
    std::array<std::unique_ptr<SerialExecutor>, kChoreLane + 1> lanes_;
};

}  // namespace gantry::worker
