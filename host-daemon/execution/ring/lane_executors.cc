#include "host-daemon/execution/ring/lane_executors.h"

#include "proto/base/assert.h"

namespace gantry::worker {

LaneExecutors::LaneExecutors(std::function<void()> on_start) : on_start_(std::move(on_start)) {
    for (std::uint32_t i = 0; i <= kChoreLane; ++i) {
        lanes_.push_back(std::make_unique<Lane>());
    }
}

LaneExecutors::~LaneExecutors() {
    for (auto& lane : lanes_) {
        {
            MutexLock lock(lane->mutex);
            lane->stop = true;
            lane->jobs.clear();
        }
        lane->wake.notify_all();
    }
    for (auto& lane : lanes_) {
        if (lane->thread.joinable()) {
            lane->thread.join();
        }
    }
}

void LaneExecutors::post(std::uint32_t lane_index, Job job) {
    GANTRY_ASSERT(lane_index <= kChoreLane, "lane %u", lane_index);
    {
        MutexLock lock(idle_mutex_);
        ++pending_;
    }
    Lane& lane = *lanes_[lane_index];
    MutexLock lock(lane.mutex);
    lane.jobs.push_back(std::move(job));
    if (!lane.thread.joinable()) {
        lane.thread = std::thread([this, &lane] { run(lane); });
    }
    lane.wake.notify_one();
}

void LaneExecutors::run(Lane& lane) {
    on_start_();
    MutexLock lock(lane.mutex);
    for (;;) {
        lane.wake.wait(lock, [&lane]() GANTRY_REQUIRES(lane.mutex) {
            return lane.stop || !lane.jobs.empty();
        });
        if (lane.stop) {
            return;
        }
        Job job = std::move(lane.jobs.front());
        lane.jobs.pop_front();
        lane.running = true;
        lock.unlock();
        job();
        job = nullptr;  // Frees what it holds before anyone is told that it has ended.
        {
            MutexLock idle_lock(idle_mutex_);
            --pending_;
        }
        idle_.notify_all();
        lock.lock();
        lane.running = false;
    }
}

bool LaneExecutors::busy(std::uint32_t lane_index) const {
    Lane& lane = *lanes_[lane_index];
    MutexLock lock(lane.mutex);
    return lane.running || !lane.jobs.empty();
}

std::uint32_t LaneExecutors::busy_count() const {
    MutexLock lock(idle_mutex_);
    return pending_;
}

bool LaneExecutors::wait_idle(std::chrono::steady_clock::time_point deadline) {
    MutexLock lock(idle_mutex_);
    return idle_.wait_until(lock, deadline,
                            [this]() GANTRY_REQUIRES(idle_mutex_) { return pending_ == 0; });
}

}  // namespace gantry::worker
