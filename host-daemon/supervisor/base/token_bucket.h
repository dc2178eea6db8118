// TokenBucket: how often something may happen that others bring about, a line in the log or the
// start of a worker: so many at once, and then so many a second.
//
// Threads: one at a time. Cost: a comparison.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace gantry::supervisor {

class TokenBucket {
public:
    using Clock = std::chrono::steady_clock;

    TokenBucket(double at_once, double per_second)
        : at_once_(at_once), per_second_(per_second), tokens_(at_once) {}

    /// True: it may happen now.
    bool take(Clock::time_point now = Clock::now()) {
        if (last_ != Clock::time_point{}) {
            const std::chrono::duration<double> passed = now - last_;
            tokens_ = std::min(at_once_, tokens_ + passed.count() * per_second_);
        }
        last_ = now;
        if (tokens_ < 1) {
            ++refused_;
            return false;
        }
        tokens_ -= 1;
        return true;
    }
    /// How often take() said no since this was last asked.
    std::uint64_t take_refused() {
        const std::uint64_t out = refused_;
        refused_ = 0;
        return out;
    }

private:
    const double at_once_;
    const double per_second_;
    double tokens_;
    std::uint64_t refused_ = 0;
    Clock::time_point last_{};
};

}  // namespace gantry::supervisor
