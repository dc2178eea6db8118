// Seeds of the simulation with gantryd's own carriers.
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include "tests/sim/carriers/carriers.h"

namespace gantry::sim {
namespace {

/// A slice, so that ctest can run slices side by side.
class CarrierSeeds : public testing::TestWithParam<std::uint64_t> {};

TEST_P(CarrierSeeds, OneOwnerNoBlockLostNobodyWaitsEverySeedEnds) {
    constexpr std::uint64_t kSlice = 500;
    Verdict sum;
    for (std::uint64_t seed = GetParam() * kSlice + 1; seed <= (GetParam() + 1) * kSlice; ++seed) {
        const Verdict verdict = run_carrier_seed({seed, Mutation::kNone, false});
        ASSERT_TRUE(verdict.ok) << verdict.violation << "; replay: gantry-carrier-sim --start "
                                << seed << " --seeds 1 --trace";
        sum.moved_count += verdict.moved_count;
        sum.rolled_back_count += verdict.rolled_back_count;
        sum.crash_count += verdict.crash_count;
        sum.returned_count += verdict.returned_count;
    }
    // A simulator in which nothing happens proves nothing.
    EXPECT_GT(sum.moved_count, kSlice / 3);
    EXPECT_GT(sum.rolled_back_count, kSlice / 4);
    EXPECT_GT(sum.crash_count, kSlice / 2);
    EXPECT_GT(sum.returned_count, kSlice / 100);
}
INSTANTIATE_TEST_SUITE_P(TwoThousandFiveHundred, CarrierSeeds, testing::Range<std::uint64_t>(0, 5));

TEST(CarrierSeedsRepeat, AreReproducible) {
    for (std::uint64_t seed = 1; seed < 30; ++seed) {
        const Verdict first = run_carrier_seed({seed, Mutation::kNone, false});
        const Verdict second = run_carrier_seed({seed, Mutation::kNone, false});
        EXPECT_EQ(first.event_count, second.event_count);
        EXPECT_EQ(first.ended, second.ended);
    }
}

}  // namespace
}  // namespace gantry::sim

int main(int argc, char** argv) {
    testing::InitGoogleTest(&argc, argv);
    spdlog::set_level(spdlog::level::off);
    return RUN_ALL_TESTS();
}
