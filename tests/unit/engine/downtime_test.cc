// The downtime estimate against guests whose writes are known: what was estimated when the pause
// came must be close to what the pause then took.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "migration/engine/transfer.h"

namespace gantry::engine {
namespace {

/// A guest that goes round over `set` bytes at `rate` bytes a second, as a training loop does.
struct Guest {
    double set;
    double rate;
    double bytes_in(double seconds) const { return std::min(set, rate * seconds); }
};

struct Machine {
    double resident;
    double scan_rate;  ///< Bytes a second of a scan, and of the target's check.
    double link_rate;  ///< Content bytes a second, read, sent and applied.
    /// By which the running programs slow a round of the live copy, at most: they share the
    /// processors and the link with it. They stand still in the pause.
    double slowed = 1.0;
};

Duration us(double seconds) { return Duration{static_cast<std::int64_t>(1e6 * seconds)}; }

/// Precopy until it has converged, some idle rounds, then a pause at a random moment of the time
/// between two of them. Returns estimate / real.
double estimated_over_real(const Guest& guest, const Machine& machine, double idle_s,
                           std::mt19937& random) {
    std::uniform_real_distribution<double> jitter(0.9, 1.1);
    std::uniform_real_distribution<double> slowed(1.0, machine.slowed);
    const Settings settings;
    Rounds rounds(rules_of_move(settings));
    double since_last = 0.0;
    int idle_rounds = 0;
    for (;;) {
        const double slower = machine.slowed > 1.0 ? slowed(random) : 1.0;
        const double scan = rounds.records().empty()
                                ? 0.0
                                : machine.resident / machine.scan_rate * jitter(random) * slower;
        const double bytes = rounds.records().empty() ? machine.resident
                                                      : guest.bytes_in(since_last) * jitter(random);
        const double elapsed = scan + bytes / machine.link_rate * jitter(random) * slower;
        rounds.add({static_cast<std::uint64_t>(bytes), static_cast<std::uint64_t>(bytes),
                    us(elapsed), us(scan), us(since_last)});
        const auto resident = static_cast<std::uint64_t>(machine.resident);
        if (rounds.judge(rounds.downtime(resident)) == Convergence::kAnotherRound &&
            idle_rounds == 0) {
            since_last = elapsed;
            continue;
        }
        if (++idle_rounds < 3) {
            since_last = elapsed + idle_s;
            continue;
        }
        const auto estimate =
            estimate_downtime(rounds.records(), resident, us(elapsed + idle_s / 2)).downtime;
        const double open = elapsed + std::uniform_real_distribution<double>(0.0, idle_s)(random);
        const double real = 0.06 + 2 * machine.resident / machine.scan_rate * jitter(random) +
                            guest.bytes_in(open) / machine.link_rate * jitter(random);
        return std::chrono::duration<double>(estimate.value()).count() / real;
    }
}

TEST(DowntimeEstimate, IsWithinThirtyPerCentForGuestsThatRewriteTheirMemory) {
    std::mt19937 random(7);
    const auto between = [&random](double least, double most) {
        return std::exp(
            std::uniform_real_distribution<double>(std::log(least), std::log(most))(random));
    };
    int off = 0;
    constexpr int kGuests = 2'000;
    for (int i = 0; i < kGuests; ++i) {
        const Machine machine{between(200e6, 60e9), between(2e9, 4e12), between(100e6, 20e9)};
        // Its set is rewritten within the shortest round, as the demo's is.
        const double set = machine.resident * between(0.02, 0.5);
        const Guest guest{set, 4 * machine.link_rate};
        const double ratio = estimated_over_real(guest, machine, 0.5, random);
        off += ratio < 0.7 || ratio > 1.3 ? 1 : 0;
    }
    EXPECT_LE(off, kGuests / 50);
}

// On a soft GPU: its programs compute on the processors that copy.
TEST(DowntimeEstimate, TakesTheProgramsThatSlowTheRoundsForStandingStillInThePause) {
    std::mt19937 random(9);
    int off = 0;
    constexpr int kGuests = 1'000;
    for (int i = 0; i < kGuests; ++i) {
        const double resident = 1e9 * (1 + i % 10);
        const Machine machine{resident, 5e9, 200e6, 2.0};
        const Guest guest{0.1 * resident, 4 * machine.link_rate};
        const double ratio = estimated_over_real(guest, machine, 0.5, random);
        off += ratio < 0.7 || ratio > 1.3 ? 1 : 0;
    }
    EXPECT_LE(off, kGuests / 2);
}

TEST(DowntimeEstimate, IsThatOfTheQuickestOfTheNewestRoundsButTheFirst) {
    // 100 bytes a microsecond in the first round, then 2, 4 and 1; scans of 3, 1 and 2 ms.
    const std::vector<RoundRecord> rounds{
        {1'000'000, 0, Duration{10'000}, {}, {}},
        {40'000, 0, Duration{23'000}, Duration{3'000}, Duration{50'000}},
        {40'000, 0, Duration{11'000}, Duration{1'000}, Duration{50'000}},
        {40'000, 0, Duration{42'000}, Duration{2'000}, Duration{50'000}}};
    const DowntimeEstimate estimate = estimate_downtime(rounds, 1'000'000, Duration{50'000});
    EXPECT_EQ(estimate.bytes_remaining, 40'000U);
    EXPECT_DOUBLE_EQ(estimate.bytes_per_second, 0.93 * 4e6);
    EXPECT_EQ(estimate.downtime, kDowntimeFixed + 2 * Duration{1'000} + Duration{10'752});
}

TEST(DowntimeEstimate, OfRoundsThatAreAlikeIsAtTheirRate) {
    const std::vector<RoundRecord> rounds(4, {40'000, 0, Duration{20'000}, {}, Duration{50'000}});
    EXPECT_DOUBLE_EQ(estimate_downtime(rounds, 1'000'000, Duration{50'000}).bytes_per_second, 2e6);
}

TEST(DowntimeEstimate, ForgetsRoundsThatWereQuickLongAgo) {
    std::vector<RoundRecord> rounds(5, {40'000, 0, Duration{40'000}, {}, Duration{50'000}});
    rounds[1].elapsed = Duration{10'000};
    EXPECT_DOUBLE_EQ(estimate_downtime(rounds, 1'000'000, Duration{50'000}).bytes_per_second, 1e6);
}

TEST(DowntimeEstimate, DoesNotAskRoundsThatSentNextToNothing) {
    const std::vector<RoundRecord> rounds{{1'000'000, 0, Duration{10'000}, {}, {}},
                                          {40'000, 0, Duration{20'000}, {}, Duration{50'000}},
                                          {9'999, 0, Duration{10}, {}, Duration{50'000}}};
    EXPECT_DOUBLE_EQ(estimate_downtime(rounds, 1'000'000, Duration{50'000}).bytes_per_second, 2e6);
}

TEST(DowntimeEstimate, OfOneRoundIsAtItsRate) {
    const std::vector<RoundRecord> rounds{{1'000'000, 0, Duration{100'000}, {}, {}}};
    EXPECT_EQ(estimate_downtime(rounds, 1'000'000, Duration{}).downtime,
              kDowntimeFixed + Duration{100'000});
}

TEST(DowntimeEstimate, OfGuestsThatWriteSteadilyIsTooLongRatherThanTooShort) {
    std::mt19937 random(8);
    for (int i = 0; i < 500; ++i) {
        const Machine machine{8e9, 50e9, 2e9};
        const Guest guest{8e9, 1e8 * (1 + i % 10)};
        const double ratio = estimated_over_real(guest, machine, 0.5, random);
        EXPECT_GT(ratio, 0.6) << i;
        EXPECT_LT(ratio, 2.0) << i;
    }
}

}  // namespace
}  // namespace gantry::engine
