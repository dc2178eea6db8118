// LaneStreams: what a lane's CU_STREAM_PER_THREAD is at the driver: a stream of the worker's own in
// each context in which the lane uses it, as natively a thread has one in each.
//
// Threads: all calls lock. Failure: the driver's. Cost: a look-up.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <vector>

#include "host-daemon/execution/device/device.h"
#include "proto/base/mutex.h"
#include "proto/wire/region.h"

namespace gantry::worker {

class LaneStreams {
public:
    explicit LaneStreams(Device& device) : device_(device) {}

    /// The lane's stream in the calling thread's context, which is `current`; made at first use.
    CUresult open(CUcontext current, std::uint32_t lane, CUstream* out);
    /// ... null where there is none yet.
    [[nodiscard]] CUstream find(CUcontext current, std::uint32_t lane) const;
    /// Of one lane in all contexts, or of all lanes.
    [[nodiscard]] std::vector<CUstream> of_lane(std::uint32_t lane) const;
    [[nodiscard]] std::vector<CUstream> all() const;
    [[nodiscard]] bool is_empty() const { return !has_any_.load(std::memory_order_relaxed); }
    /// Forgets the streams of a context, which go with it; says which lanes had one.
    std::vector<std::uint32_t> context_ends(CUcontext context);
    /// Destroys them all.
    void clear();

private:
    using PerLane = std::array<CUstream, wire::kLaneCount>;
    Device& device_;
    mutable Mutex mutex_;
    std::map<CUcontext, PerLane> contexts_ GANTRY_GUARDED_BY(mutex_);
    std::atomic<bool> has_any_{false};
};

}  // namespace gantry::worker
