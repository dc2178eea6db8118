// Ten thousand seeds of the engine's simulation, and the proof that the simulator would notice:
// each deliberately broken machine must fail.
#include <gtest/gtest.h>

#include "tests/sim/world.h"

namespace gantry::sim {
namespace {

/// A slice, so that ctest can run slices side by side.
class Seeds : public testing::TestWithParam<std::uint64_t> {};

TEST_P(Seeds, OneOwnerNothingLostNobodyWaitsEverySeedEnds) {
    constexpr std::uint64_t kSlice = 2'500;
    Verdict sum;
    for (std::uint64_t seed = GetParam() * kSlice + 1; seed <= (GetParam() + 1) * kSlice; ++seed) {
        const Verdict verdict = run_seed({seed, Mutation::kNone, false});
        ASSERT_TRUE(verdict.ok) << verdict.violation << "; replay: gantry-sim --start " << seed
                                << " --seeds 1 --trace";
        sum.moved_count += verdict.moved_count;
        sum.rolled_back_count += verdict.rolled_back_count;
        sum.crash_count += verdict.crash_count;
        sum.split_brain_count += verdict.split_brain_count;
        sum.returned_count += verdict.returned_count;
        sum.pause_refused_count += verdict.pause_refused_count;
        sum.theft_count += verdict.theft_count;
        sum.silence_count += verdict.silence_count;
        sum.behind_count += verdict.behind_count;
    }
    // A simulator in which nothing happens proves nothing.
    EXPECT_GT(sum.moved_count, kSlice / 2);
    EXPECT_GT(sum.rolled_back_count, kSlice / 4);
    EXPECT_GT(sum.crash_count, kSlice / 2);
    EXPECT_GT(sum.split_brain_count, 0U);
    EXPECT_GT(sum.returned_count, kSlice / 50);
    EXPECT_GT(sum.pause_refused_count, kSlice / 50);
    EXPECT_GT(sum.theft_count, kSlice * 5);
    EXPECT_GT(sum.silence_count, kSlice / 10);
    EXPECT_GT(sum.behind_count, kSlice / 100);
}
INSTANTIATE_TEST_SUITE_P(TenThousand, Seeds, testing::Range<std::uint64_t>(0, 4));

TEST(Seeds, AreReproducible) {
    for (std::uint64_t seed = 1; seed < 50; ++seed) {
        const Verdict first = run_seed({seed, Mutation::kNone, false});
        const Verdict second = run_seed({seed, Mutation::kNone, false});
        EXPECT_EQ(first.event_count, second.event_count);
        EXPECT_EQ(first.ended, second.ended);
    }
}

class Mutations : public testing::TestWithParam<Mutation> {};

TEST_P(Mutations, AreCaught) {
    constexpr std::uint64_t kEnough = 5;
    std::uint64_t caught = 0;
    for (std::uint64_t seed = 1; seed <= 3'000 && caught < kEnough; ++seed) {
        caught += run_seed({seed, GetParam(), false}).ok ? 0U : 1U;
    }
    EXPECT_EQ(caught, kEnough);
}
INSTANTIATE_TEST_SUITE_P(All, Mutations,
                         testing::Values(Mutation::kGrantBeforeDurable,
                                         Mutation::kGrantWithoutFrozen, Mutation::kIgnoreResumed,
                                         Mutation::kActivateBeforeGrant,
                                         Mutation::kApplyStaleBatches, Mutation::kKeepReturnedGrant,
                                         Mutation::kReturnUnproven, Mutation::kAnnounceEachAttempt,
                                         Mutation::kCountEarly, Mutation::kHookWaitsForVerdict,
                                         Mutation::kTakeAnyTicket, Mutation::kImagineJobs));

}  // namespace
}  // namespace gantry::sim
