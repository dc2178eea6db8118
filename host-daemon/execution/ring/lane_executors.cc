#include "host-daemon/execution/ring/lane_executors.h"

#include <utility>

#include "proto/base/assert.h"

namespace gantry::worker {

LaneExecutors::~LaneExecutors() {
    for (auto& lane : lanes_) {
        if (lane) {
            lane->close();
        }
    }
    for (auto& lane : lanes_) {
        lane.reset();  // Its last job may still use what is below.
    }
}

void LaneExecutors::post(std::uint32_t lane_index, Job job) {
    GANTRY_ASSERT(lane_index <= kChoreLane, "lane %u", lane_index);
    const MutexLock lock(mutex_);
    ++pending_;
    std::unique_ptr<SerialExecutor>& lane = lanes_[lane_index];
    if (!lane) {
        lane = std::make_unique<SerialExecutor>();
        lane->post(on_start_);
    }
    lane->post([this, job = std::move(job)]() mutable {
        std::exchange(job, nullptr)();  // Frees what it holds before anyone is told that it ended.
        {
            const MutexLock idle_lock(mutex_);
            --pending_;
        }
        idle_.notify_all();
    });
}

std::uint32_t LaneExecutors::busy_count() const {
    const MutexLock lock(mutex_);
    return pending_;
}

bool LaneExecutors::wait_idle(std::chrono::steady_clock::time_point deadline) {
    MutexLock lock(mutex_);
    return idle_.wait_until(lock, deadline,
                            [this]() GANTRY_REQUIRES(mutex_) { return pending_ == 0; });
}

}  // namespace gantry::worker
