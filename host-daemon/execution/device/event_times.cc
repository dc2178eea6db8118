#include "host-daemon/execution/device/event_times.h"

#include <algorithm>
#include <cmath>

namespace gantry::worker {
namespace {

constexpr double kNsPerMs = 1e6;

/// As drivers do it: the integer difference, made a float at the end.
float to_milliseconds(std::int64_t ns) {
    return static_cast<float>(static_cast<double>(ns) / kNsPerMs);
}

std::int64_t to_ns(float milliseconds) {
    return std::llround(static_cast<double>(milliseconds) * kNsPerMs);
}

}  // namespace

CUresult elapsed_time(const driver::DriverApi& api, CUevent start, CUevent end,
                      float* milliseconds) {
    if (api.cuEventElapsedTime_v2 != nullptr) {
        return api.cuEventElapsedTime_v2(milliseconds, start, end);
    }
    return api.cuEventElapsedTime != nullptr ? api.cuEventElapsedTime(milliseconds, start, end)
                                             : CUDA_ERROR_NOT_SUPPORTED;
}

EventTimes::~EventTimes() {
    if (anchor_ != nullptr) {
        device_.bind_thread();
        device_.api().cuEventDestroy_v2(anchor_);
    }
}

void EventTimes::forget(std::uint64_t event) {
    if (!keeps_any()) {
        return;
    }
    MutexLock lock(mutex_);
    if (kept_.erase(event) == 0) {
        return;
    }
    std::erase_if(kept_answers_, [event](const auto& entry) {
        return entry.first.first == event || entry.first.second == event;
    });
    keeps_any_.store(!kept_.empty(), std::memory_order_relaxed);
}

CUresult EventTimes::measure(const Named& start, const Named& end, float* milliseconds) const {
    const auto from = kept_.find(start.handle);
    const auto to = kept_.find(end.handle);
    if (from == kept_.end() && to == kept_.end()) {
        return elapsed_time(device_.api(), start.native, end.native, milliseconds);
    }
    if (from != kept_.end() && to != kept_.end()) {
        const auto answered = kept_answers_.find({start.handle, end.handle});
        *milliseconds = answered != kept_answers_.end()
                            ? answered->second
                            : to_milliseconds(to->second - from->second);
        return CUDA_SUCCESS;
    }
    float since_anchor = 0.0f;
    const CUresult result = elapsed_time(
        device_.api(), anchor_, from == kept_.end() ? start.native : end.native, &since_anchor);
    if (result == CUDA_SUCCESS) {
        *milliseconds = from == kept_.end() ? to_milliseconds(to->second - to_ns(since_anchor))
                                            : to_milliseconds(to_ns(since_anchor) - from->second);
    }
    return result;
}

void EventTimes::note_asked(const Pair& pair) {
    if (!asked_.insert(pair).second) {
        return;
    }
    asked_order_.push_back(pair);
    if (asked_order_.size() > kAskedMax) {
        asked_.erase(asked_order_.front());
        asked_order_.pop_front();
    }
}

CUresult EventTimes::between(const Named& start, const Named& end, float* milliseconds) {
    MutexLock lock(mutex_);
    const CUresult result = measure(start, end, milliseconds);
    if (result == CUDA_SUCCESS) {
        note_asked({start.handle, end.handle});
    }
    return result;
}

CUresult EventTimes::record_anchor(CUevent* anchor) const {
    const driver::DriverApi& api = device_.api();
    CUresult result = api.cuEventCreate(anchor, CU_EVENT_DEFAULT);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = api.cuEventRecord(*anchor, nullptr);
    if (result == CUDA_SUCCESS) {
        result = api.cuEventSynchronize(*anchor);
    }
    if (result != CUDA_SUCCESS) {
        api.cuEventDestroy_v2(*anchor);
        *anchor = nullptr;
    }
    return result;
}

EventTimes::State EventTimes::save(const std::vector<Named>& events) {
    MutexLock lock(mutex_);
    device_.bind_thread();
    State state;
    CUevent now = nullptr;
    if (record_anchor(&now) != CUDA_SUCCESS) {
        return state;
    }
    // A float holds a short span to the nanosecond and a long one badly: so each event is measured
    // from its neighbour in time, not from now.
    struct Recorded {
        Named event;
        float before_now = 0.0f;
    };
    std::vector<Recorded> here;
    std::map<std::uint64_t, Named> by_handle;
    for (const Named& event : events) {
        by_handle.emplace(event.handle, event);
        float before_now = 0.0f;
        if (!kept_.contains(event.handle) &&
            elapsed_time(device_.api(), event.native, now, &before_now) == CUDA_SUCCESS) {
            here.push_back({event, before_now});
        }
    }
    std::sort(here.begin(), here.end(),
              [](const Recorded& a, const Recorded& b) { return a.before_now < b.before_now; });
    std::int64_t ns = 0;
    CUevent later = now;
    for (const Recorded& recorded : here) {
        float gap = 0.0f;
        elapsed_time(device_.api(), recorded.event.native, later, &gap);
        ns -= to_ns(gap);
        later = recorded.event.native;
        state.times.push_back({recorded.event.handle, ns});
    }
    float since_anchor = 0.0f;
    if (anchor_ != nullptr) {
        elapsed_time(device_.api(), anchor_, now, &since_anchor);
    }
    for (const auto& [event, time] : kept_) {
        if (by_handle.contains(event)) {
            state.times.push_back({event, time - to_ns(since_anchor)});
        }
    }
    device_.api().cuEventDestroy_v2(now);
    for (const auto& [pair, answer] : kept_answers_) {
        state.answers.push_back({pair.first, pair.second, answer});
    }
    for (const Pair& pair : asked_) {
        const auto start = by_handle.find(pair.first);
        const auto end = by_handle.find(pair.second);
        float answer = 0.0f;
        if (!kept_answers_.contains(pair) && start != by_handle.end() && end != by_handle.end() &&
            measure(start->second, end->second, &answer) == CUDA_SUCCESS) {
            state.answers.push_back({pair.first, pair.second, answer});
        }
    }
    return state;
}

CUresult EventTimes::load(const State& state) {
    MutexLock lock(mutex_);
    device_.bind_thread();
    if (anchor_ != nullptr) {
        device_.api().cuEventDestroy_v2(anchor_);
        anchor_ = nullptr;
    }
    kept_.clear();
    kept_answers_.clear();
    for (const Time& time : state.times) {
        kept_[time.event] = time.ns;
    }
    for (const Answer& answer : state.answers) {
        if (kept_.contains(answer.start) && kept_.contains(answer.end)) {
            kept_answers_[{answer.start, answer.end}] = answer.milliseconds;
        }
    }
    keeps_any_.store(!kept_.empty(), std::memory_order_relaxed);
    return record_anchor(&anchor_);
}

}  // namespace gantry::worker
