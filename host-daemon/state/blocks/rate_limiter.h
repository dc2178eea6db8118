// RateLimiter: holds work on the device to a share of the time, in small portions with rests
// between, so that the guest's own work gets through.
//
// A portion's work is what the fastest one of its kind took for as many blocks: one that stood in a
// queue behind the guest's kernels did not work all that time, and is not made to rest for it.
// Threads: one.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

namespace gantry::state {

class RateLimiter {
public:
    using Duration = std::chrono::duration<double, std::micro>;
    /// Blocks of a portion: 1 GiB, which a GPU reads in 0.25 ms and NVLink carries in 3. A smaller
    /// one costs the guest more in all: each has a beginning and an end at which the device is half
    /// idle.
    static constexpr std::uint64_t kPortionBlocks = 16384;

    /// Of the time; 0 or 100: all of it, without rests.
    void set_share(unsigned percent) { percent_ = percent == 0 ? 100 : std::min(percent, 100U); }
    [[nodiscard]] bool rests() const { return percent_ != 100; }

    /// A portion is done.
    void rest(std::uint64_t blocks, Duration took) {
        if (blocks == 0 || !rests()) {
            return;
        }
        const double each = took.count() / static_cast<double>(blocks);
        best_us_ = best_us_ == 0 ? each : std::min(best_us_, each);
        const double work = std::min(took.count(), best_us_ * static_cast<double>(blocks));
        const auto begin = std::chrono::steady_clock::now();
        std::this_thread::sleep_for(Duration(work * (100.0 / percent_ - 1)));
        rested_ += std::chrono::steady_clock::now() - begin;
    }
    /// In all since it was last asked.
    [[nodiscard]] std::uint64_t take_rested_us() {
        const auto rested = static_cast<std::uint64_t>(rested_.count());
        rested_ = {};
        return rested;
    }

private:
    unsigned percent_ = 100;
    double best_us_ = 0;  ///< Of a block; 0: not known yet.
    Duration rested_{};
};

}  // namespace gantry::state
