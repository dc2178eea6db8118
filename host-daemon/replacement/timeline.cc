#include "host-daemon/replacement/timeline.h"

#include <utility>

namespace gantry::replacement {
namespace {

constexpr std::uint64_t kJoinUs = 20'000;  ///< So long a gap still is one span.
constexpr std::size_t kSpansMax = 1000;

std::uint64_t in_us(Timeline::Clock::duration time) {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(time).count());
}

}  // namespace

std::uint64_t Timeline::since_begun(Clock::time_point at) const {
    return at < begun_ ? 0 : in_us(at - begun_);
}

std::uint64_t Timeline::begun_us() const { return in_us(begun_.time_since_epoch()); }

void Timeline::note(Whom whom, std::string what, Clock::time_point from, Clock::time_point to) {
    const MutexLock lock(mutex_);
    const std::uint64_t at = since_begun(from);
    const std::uint64_t took = in_us(to - from);
    std::size_t& last = last_[static_cast<std::size_t>(whom)];
    if (last != 0) {
        Span& span = spans_[last - 1];
        if (span.what == what && at <= span.at_us + span.us + kJoinUs) {
            span.us = at + took - span.at_us;
            ++span.count;
            return;
        }
    }
    if (spans_.size() < kSpansMax) {
        spans_.push_back({whom, std::move(what), at, took, 1});
        last = spans_.size();
    }
}

std::vector<Span> Timeline::spans() const {
    const MutexLock lock(mutex_);
    return spans_;
}

}  // namespace gantry::replacement
