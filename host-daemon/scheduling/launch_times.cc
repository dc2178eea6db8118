#include "host-daemon/scheduling/launch_times.h"

#include <algorithm>
#include <numeric>

namespace gantry::scheduling {

void Samples::add(Time sample) {
    kept_[count_ % kKept] = sample;
    ++count_;
}

std::optional<Time> Samples::mean() const {
    if (count_ == 0) {
        return std::nullopt;
    }
    const auto count = static_cast<std::ptrdiff_t>(kept());
    return std::accumulate(kept_.begin(), kept_.begin() + count, Time{}) / count;
}

std::optional<Time> Samples::rank(std::size_t from_below) const {
    if (count_ == 0) {
        return std::nullopt;
    }
    std::array<Time, kKept> sorted = kept_;
    std::sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(kept()));
    return sorted[from_below];
}

std::optional<Time> Samples::mostly_at_most() const {
    return rank(count_ == 0 ? 0 : kept() - 1 - kept() / 10);
}

std::optional<Time> Samples::mostly_at_least() const { return rank(kept() / 10); }

LaunchTimes::Times* LaunchTimes::of(std::uint64_t key) {
    const auto found = times_.find(key);
    if (found != times_.end()) {
        return &found->second;
    }
    return times_.size() < kKeysMax ? &times_[key] : nullptr;
}

const LaunchTimes::Times* LaunchTimes::find(std::uint64_t key) const {
    const auto found = times_.find(key);
    return found != times_.end() ? &found->second : nullptr;
}

void LaunchTimes::note_run(std::uint64_t key, Time took) {
    if (Times* const times = of(key)) {
        times->run.add(took);
    }
}

void LaunchTimes::note_gap(std::uint64_t key, Time gap) {
    if (Times* const times = of(key)) {
        times->gap.add(gap);
    }
}

std::optional<Time> LaunchTimes::run_of(std::uint64_t key) const {
    const Times* const times = find(key);
    return times != nullptr ? times->run.mostly_at_most() : std::nullopt;
}

std::optional<Time> LaunchTimes::mean_run_of(std::uint64_t key) const {
    const Times* const times = find(key);
    return times != nullptr ? times->run.mean() : std::nullopt;
}

std::optional<Time> LaunchTimes::gap_after(std::uint64_t key) const {
    const Times* const times = find(key);
    return times != nullptr && times->gap.count() >= kGapsKnown ? times->gap.mostly_at_least()
                                                                : std::nullopt;
}

std::uint64_t GapWatch::pair() const {
    return ((before_ ^ (before_ >> 32)) * 0x9e3779b97f4a7c15U) ^ last_;
}

void GapWatch::begins(std::uint64_t key, Time now) {
    if (idle_since_ && last_ != 0 && now - *idle_since_ <= kLongest) {
        times_.note_gap(last_, now - *idle_since_);
        times_.note_gap(pair(), now - *idle_since_);
    }
    idle_since_.reset();
    before_ = last_;
    last_ = key;
}

Time GapWatch::expected() const {
    const std::optional<Time> gap = times_.gap_after(pair());
    return gap ? *gap : times_.gap_after(last_).value_or(Time{});
}

}  // namespace gantry::scheduling
