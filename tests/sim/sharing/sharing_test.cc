// Seeds of the simulation of a shared GPU; that the simulation would notice; what shares and
// latencies come out.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/sim/sharing/world.h"

namespace gantry::sharing_sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

TEST(SharedGpu, OrderBoundsAndLivenessHoldForEverySeed) {
    std::uint64_t windows_once = 0;
    std::uint64_t holds = 0;
    std::uint64_t fills = 0;
    for (std::uint64_t seed = 1; seed <= 3'000; ++seed) {
        const Outcome outcome = run(random_run(seed, Mutation::kNone));
        ASSERT_EQ(outcome.violation, "") << "replay: gantry-share-sim --start " << seed;
        windows_once += outcome.windows_once;
        holds += outcome.holds;
        fills += outcome.fills;
    }
    // A simulation in which nobody waits proves nothing.
    EXPECT_GT(windows_once, 2'000U);
    EXPECT_GT(holds, 1'000'000U);
    EXPECT_GT(fills, 1'000U);
}

class Mutations : public testing::TestWithParam<Mutation> {};

TEST_P(Mutations, AreCaught) {
    int caught = 0;
    for (std::uint64_t seed = 1; seed <= 300 && caught < 5; ++seed) {
        caught += run(random_run(seed, GetParam())).violation.empty() ? 0 : 1;
    }
    EXPECT_EQ(caught, 5);
}
INSTANTIATE_TEST_SUITE_P(All, Mutations,
                         testing::Values(Mutation::kNobodyStarves, Mutation::kNoWindow,
                                         Mutation::kNoHold, Mutation::kFillsBlindly));

/// The first one's part of the GPU time, in percent.
double part_of_first(const Load& one, const Load& other, Mutation mutation = Mutation::kNone) {
    Schedule what;
    what.length = milliseconds{2'000};
    what.mutation = mutation;
    what.loads = {one, other};
    const Outcome outcome = run(what);
    EXPECT_EQ(outcome.violation, "");
    const double first = static_cast<double>(outcome.gpu_time[0].count());
    return 100 * first / (first + static_cast<double>(outcome.gpu_time[1].count()));
}

Load endless(std::uint32_t weight, microseconds kernel) {
    return {{4, weight}, Manner::kHonest, kernel, 0, {}};
}

TEST(SharedGpu, EqualsGetWhatTheyWeigh) {
    for (const microseconds kernel : {microseconds{20}, microseconds{100}, microseconds{500}}) {
        for (const microseconds other : {microseconds{20}, microseconds{500}}) {
            EXPECT_NEAR(part_of_first(endless(75, kernel), endless(25, other)), 75, 3);
            EXPECT_NEAR(part_of_first(endless(50, kernel), endless(50, other)), 50, 3);
        }
    }
    EXPECT_NEAR(part_of_first(endless(75, microseconds{100}), endless(25, microseconds{100}),
                              Mutation::kNoWeights),
                50, 3);
}

// Nothing of it is at the driver while its program looks at what came out.
TEST(SharedGpu, OneThatWaitsForItsBatchesGetsWhatItWeighs) {
    for (const std::uint32_t kernels : {10U, 40U, 200U}) {
        for (const microseconds kernel : {microseconds{20}, microseconds{100}}) {
            const auto batch = kernels * kernel;
            for (const Time pause : {Time{batch} / 20, Time{batch} / 8}) {
                const double part =
                    part_of_first({{4, 75}, Manner::kHonest, kernel, kernels, pause},
                                  {{4, 25}, Manner::kHonest, kernel, 0, {}});
                EXPECT_NEAR(part, 75, 3) << kernels << " kernels of " << kernel.count()
                                         << " us, then nothing for " << pause.count() << " ns";
            }
        }
    }
}

TEST(SharedGpu, OneThatNeverYieldsPaysForIt) {
    Schedule what;
    what.length = milliseconds{1'000};
    what.loads = {{{4, 100}, Manner::kHonest, microseconds{100}, 0, {}},
                  {{4, 100}, Manner::kAlwaysRuns, microseconds{100}, 10, milliseconds{20}}};
    const Outcome outcome = run(what);
    EXPECT_EQ(outcome.violation, "");
    // It holds its half although it uses a twentieth of it; its neighbour keeps the other.
    EXPECT_GT(outcome.gpu_time[0], what.length * 42 / 100);
}

Time ninety_ninth(std::vector<Time> times) {
    std::sort(times.begin(), times.end());
    return times[times.size() * 99 / 100];
}

/// Bursts of 40 kernels of 30 us, above endless kernels.
Outcome bursts_beside(microseconds kernel, bool is_scheduled) {
    Schedule what;
    what.length = milliseconds{3'000};
    what.is_scheduled = is_scheduled;
    what.loads = {{{9, 100}, Manner::kHonest, microseconds{30}, 40, milliseconds{3}},
                  {{1, 100}, Manner::kHonest, kernel, 0, {}}};
    return run(what);
}

TEST(SharedGpu, BurstsAboveEndlessKernelsWaitForAWindowAtMost) {
    for (const microseconds kernel : {microseconds{20}, microseconds{100}, microseconds{500}}) {
        const Outcome scheduled = bursts_beside(kernel, true);
        EXPECT_EQ(scheduled.violation, "");
        const Time alone = microseconds{1'200};
        // A window or a kernel, a switch each way, and what is late.
        EXPECT_LT(ninety_ninth(scheduled.bursts[0]),
                  alone + std::max(microseconds{200}, kernel) + microseconds{600});
        EXPECT_GT(ninety_ninth(bursts_beside(kernel, false).bursts[0]), alone * 2);
        // What bursts leave free is used: about 3 of 4.3 ms.
        EXPECT_GT(scheduled.gpu_time[1], milliseconds{3'000} * 45 / 100);
    }
}

/// As many bursts that leave free 800 us each, and what is below them, with gaps filled or not.
Outcome bursts_with_gaps(microseconds kernel, bool fills_gaps) {
    Schedule what;
    what.length = milliseconds{3'000};
    what.settings.fills_gaps = fills_gaps;
    what.loads = {{{9, 100}, Manner::kHonest, microseconds{30}, 40, microseconds{800}},
                  {{1, 100}, Manner::kHonest, kernel, 0, {}}};
    return run(what);
}

TEST(SharedGpu, WhatFitsIntoGapsFillsThemAndDelaysNobody) {
    for (const microseconds kernel : {microseconds{20}, microseconds{100}, microseconds{300}}) {
        const Outcome window = bursts_with_gaps(kernel, false);
        const Outcome filled = bursts_with_gaps(kernel, true);
        EXPECT_EQ(filled.violation, "");
        EXPECT_LE(ninety_ninth(filled.bursts[0]), ninety_ninth(window.bursts[0]));
        // Of 800 us the margin, a change of process and what is late are lost, of about 2.1 ms.
        EXPECT_GT(filled.gpu_time[1], milliseconds{3'000} * 250 / 2'100);
        EXPECT_GT(filled.fills, 1'000U);
    }
    // It never fits: what it gets are the windows of one that starves.
    const Outcome longer = bursts_with_gaps(microseconds{900}, true);
    EXPECT_EQ(longer.fills, 0U);
    EXPECT_GT(longer.windows_once, 10U);
}

TEST(SharedGpu, OneThatLiesOfItsTimesLosesGapsAndNothingElse) {
    Schedule what;
    what.length = milliseconds{3'000};
    what.settings.fills_gaps = true;
    what.loads = {{{9, 100}, Manner::kHonest, microseconds{30}, 40, microseconds{800}},
                  {{1, 100}, Manner::kLiesOfTimes, microseconds{1'000}, 0, {}}};
    const Outcome below = run(what);
    EXPECT_EQ(below.violation, "");
    // Once a second it may be believed again: nearly all bursts are as alone.
    EXPECT_LT(below.bursts[0][below.bursts[0].size() / 2], microseconds{1'300});
    EXPECT_LT(below.fills, 60U);
    // One above that says it will be away for long keeps nobody from the GPU.
    what.loads = {{{9, 100}, Manner::kLiesOfTimes, microseconds{30}, 40, microseconds{800}},
                  {{1, 100}, Manner::kHonest, microseconds{100}, 0, {}}};
    const Outcome above = run(what);
    EXPECT_EQ(above.violation, "");
    EXPECT_GT(above.gpu_time[1], bursts_with_gaps(microseconds{100}, false).gpu_time[1]);
}

TEST(SharedGpu, WhatFloodsFromBelowTakesNoMoreThanTheGpuGivesAnyProcess) {
    Schedule what;
    what.length = milliseconds{1'000};
    what.loads = {{{9, 100}, Manner::kHonest, microseconds{50}, 0, {}},
                  {{1, 100}, Manner::kGreedy, microseconds{50}, 0, {}}};
    const Outcome outcome = run(what);
    EXPECT_EQ(outcome.violation, "");
    EXPECT_GT(outcome.gpu_time[0], milliseconds{1'000} * 40 / 100);
}

}  // namespace
}  // namespace gantry::sharing_sim
