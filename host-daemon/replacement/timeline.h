// Timeline: what was asked of which worker and when, so that the steps of a program that ran
// meanwhile can be laid beside it.
//
// Repeated requests of one kind (blocks, batch by batch) are one span with a count. Threads: any.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "host-daemon/replacement/report.h"
#include "proto/base/mutex.h"

namespace gantry::replacement {

class Timeline {
public:
    using Clock = std::chrono::steady_clock;
    explicit Timeline(Clock::time_point begun) : begun_(begun) {}

    void note(Whom whom, std::string what, Clock::time_point from, Clock::time_point to);
    [[nodiscard]] std::vector<Span> spans() const;
    [[nodiscard]] std::uint64_t begun_us() const;

private:
    [[nodiscard]] std::uint64_t since_begun(Clock::time_point at) const;

    const Clock::time_point begun_;
    mutable Mutex mutex_;
    std::vector<Span> spans_ GANTRY_GUARDED_BY(mutex_);
    std::array<std::size_t, 2> last_
        GANTRY_GUARDED_BY(mutex_){};  ///< By whom: the index of its last span, plus one.
};

}  // namespace gantry::replacement
