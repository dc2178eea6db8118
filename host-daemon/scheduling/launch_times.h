// LaunchTimes: how long each kernel takes and how long the GPU has nothing to do after it, learnt
// from samples while programs run.
//
// A key names a kernel with its shape, whatever process launches it. Of each the newest kKept
// samples count. Invariant: at most kKeysMax keys; when there is no room, none is added. Threads:
// one at a time. Cost: a hash look-up.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include "host-daemon/scheduling/share.h"

namespace gantry::scheduling {

/// The newest samples of one time.
class Samples {
public:
    static constexpr std::size_t kKept = 16;
    void add(Time sample);
    [[nodiscard]] std::uint64_t count() const { return count_; }
    /// Of the kept ones; nothing before the first.
    [[nodiscard]] std::optional<Time> mean() const;
    /// All but at most a tenth of the kept ones are no longer.
    [[nodiscard]] std::optional<Time> mostly_at_most() const;
    /// All but at most a tenth of the kept ones are no shorter.
    [[nodiscard]] std::optional<Time> mostly_at_least() const;

private:
    [[nodiscard]] std::optional<Time> rank(std::size_t from_below) const;
    [[nodiscard]] std::size_t kept() const { return count_ < kKept ? count_ : kKept; }

    std::array<Time, kKept> kept_{};
    std::uint64_t count_ = 0;
};

class LaunchTimes {
public:
    static constexpr std::size_t kKeysMax = 16384;

    void note_run(std::uint64_t key, Time took);
    void note_gap(std::uint64_t key, Time gap);
    /// What a window counts for it.
    [[nodiscard]] std::optional<Time> run_of(std::uint64_t key) const;
    [[nodiscard]] std::optional<Time> mean_run_of(std::uint64_t key) const;
    /// What may be filled after it; nothing before kGapsKnown samples.
    [[nodiscard]] std::optional<Time> gap_after(std::uint64_t key) const;
    static constexpr std::uint64_t kGapsKnown = 4;

private:
    struct Times {
        Samples run;
        Samples gap;
    };
    Times* of(std::uint64_t key);
    [[nodiscard]] const Times* find(std::uint64_t key) const;

    std::unordered_map<std::uint64_t, Times> times_;
};

/// GapWatch: for how long one process has nothing at the driver, and will have nothing: by its last
/// two launches, or the last one where those two have not come often enough.
class GapWatch {
public:
    explicit GapWatch(LaunchTimes& times) : times_(times) {}
    /// A launch goes to the driver.
    void begins(std::uint64_t key, Time now);
    /// Nothing is left there.
    void ends(Time now) { idle_since_ = now; }
    /// What ends now is not the program's pause: it was held, or stopped.
    void forget() { idle_since_.reset(); }
    /// From the end of what was launched last; 0: not known.
    [[nodiscard]] Time expected() const;

private:
    static constexpr Time kLongest = std::chrono::seconds{1};  // More is no gap.
    [[nodiscard]] std::uint64_t pair() const;

    LaunchTimes& times_;
    std::uint64_t before_ = 0;
    std::uint64_t last_ = 0;
    std::optional<Time> idle_since_;
};

}  // namespace gantry::scheduling
