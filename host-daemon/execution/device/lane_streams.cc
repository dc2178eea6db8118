#include "host-daemon/execution/device/lane_streams.h"

#include <algorithm>
#include <iterator>

namespace gantry::worker {

CUresult LaneStreams::open(CUcontext current, std::uint32_t lane, CUstream* out) {
    MutexLock lock(mutex_);
    CUstream& own = contexts_[current][lane % wire::kLaneCount];
    CUresult result = CUDA_SUCCESS;
    if (own == nullptr) {
        result = device_.api().cuStreamCreateWithPriority(&own, CU_STREAM_DEFAULT, 0);
        has_any_ = true;
    }
    *out = own;
    return result;
}

CUstream LaneStreams::find(CUcontext current, std::uint32_t lane) const {
    MutexLock lock(mutex_);
    const auto lanes = contexts_.find(current);
    return lanes == contexts_.end() ? nullptr : lanes->second[lane % wire::kLaneCount];
}

std::vector<CUstream> LaneStreams::of_lane(std::uint32_t lane) const {
    MutexLock lock(mutex_);
    std::vector<CUstream> found;
    for (const auto& [context, lanes] : contexts_) {
        if (lanes[lane % wire::kLaneCount] != nullptr) {
            found.push_back(lanes[lane % wire::kLaneCount]);
        }
    }
    return found;
}

std::vector<CUstream> LaneStreams::all() const {
    MutexLock lock(mutex_);
    std::vector<CUstream> found;
    for (const auto& [context, lanes] : contexts_) {
        std::copy_if(lanes.begin(), lanes.end(), std::back_inserter(found),
                     [](CUstream stream) { return stream != nullptr; });
    }
    return found;
}

std::vector<std::uint32_t> LaneStreams::context_ends(CUcontext context) {
    MutexLock lock(mutex_);
    std::vector<std::uint32_t> had_one;
    if (const auto ended = contexts_.extract(context)) {
        for (std::uint32_t lane = 0; lane < wire::kLaneCount; ++lane) {
            if (ended.mapped()[lane] != nullptr) {
                had_one.push_back(lane);
            }
        }
    }
    return had_one;
}

void LaneStreams::clear() {
    for (const CUstream stream : all()) {
        device_.api().cuStreamDestroy_v2(stream);
    }
    MutexLock lock(mutex_);
    contexts_.clear();
}

}  // namespace gantry::worker
