#include "migration/engine/transfer.h"

#include <gtest/gtest.h>

namespace gantry::engine {
namespace {

TEST(Compression, PaysOnSlowLinksOnly) {
    CompressionInputs inputs{125e6, 600e6, 3e9, 0.5};
    EXPECT_TRUE(compression_pays(inputs));
    inputs.link_bytes_per_second = 5e9;
    EXPECT_FALSE(compression_pays(inputs)) << "the codec is slower than the link";
    inputs = {125e6, 600e6, 3e9, 0.95};
    EXPECT_FALSE(compression_pays(inputs)) << "hardly compressible";
    EXPECT_FALSE(compression_pays({})) << "nothing measured";
    EXPECT_FALSE(compression_pays({10, 11, 100, 0.5})) << "a tenth more is too little";
    EXPECT_TRUE(compression_pays({10, 11.5, 100, 0.5}));
}

Convergence judge_move(const std::vector<RoundRecord>& records, std::uint64_t resident,
                       const Settings& settings) {
    Rounds rounds(rules_of_move(settings));
    for (const RoundRecord& record : records) {
        rounds.add(record);
    }
    return rounds.judge(rounds.downtime(resident));
}

TEST(Convergence, EndsWhenTheRestFitsTheTarget) {
    Settings settings;
    constexpr std::uint64_t kResident = 1ULL << 30;
    std::vector<RoundRecord> rounds{{kResident, kResident, Duration{1'000'000}}};
    EXPECT_EQ(judge_move(rounds, kResident, settings), Convergence::kAnotherRound);
    rounds.push_back({64U << 20, 64U << 20, Duration{62'500}});
    EXPECT_EQ(judge_move(rounds, kResident, settings), Convergence::kFits);
    rounds = {{0, 0, Duration{1'000}}};
    EXPECT_EQ(judge_move(rounds, kResident, settings), Convergence::kFits);
}

TEST(Convergence, GivesUpWithoutImprovementOrAfterTheLastRound) {
    Settings settings;
    constexpr std::uint64_t kResident = 8ULL << 30;
    std::vector<RoundRecord> rounds(4, {kResident, kResident, Duration{8'000'000}});
    EXPECT_EQ(judge_move(rounds, kResident, settings), Convergence::kNoImprovement);
    settings.rounds_max = 3;
    rounds.resize(3);
    EXPECT_EQ(judge_move(rounds, kResident, settings), Convergence::kRoundsExhausted);
}

TEST(Convergence, OfAReplacementGoesOnWhileRoundsHalveAndThePauseCannotTakeTheRest) {
    constexpr std::uint64_t kGiB = 1ULL << 30;
    Rounds rounds(rules_of_replacement(Duration{60'000}));
    EXPECT_FALSE(rounds.fits(rounds.copy_time(0))) << "no rate is known";
    rounds.add({64 * kGiB, 64 * kGiB, Duration{640'000}});
    EXPECT_EQ(rounds.judge(std::nullopt), Convergence::kAnotherRound);
    EXPECT_EQ(rounds.copy_time(kGiB), Duration{10'000});
    EXPECT_TRUE(rounds.fits(rounds.copy_time(6 * kGiB)));
    EXPECT_FALSE(rounds.fits(rounds.copy_time(6 * kGiB + 2 * kBlockBytes)));
    rounds.add({32 * kGiB, 32 * kGiB, Duration{640'000}});
    EXPECT_EQ(rounds.judge(std::nullopt), Convergence::kAnotherRound);
    EXPECT_EQ(rounds.copy_time(kGiB), Duration{10'000}) << "the best round counts";
    rounds.add({16 * kGiB + kBlockBytes, 0, Duration{160'000}});
    EXPECT_EQ(rounds.judge(std::nullopt), Convergence::kNoImprovement);
    rounds.add({16U << 20, 0, Duration{1'000}});
    EXPECT_EQ(rounds.judge(std::nullopt), Convergence::kFits) << "few bytes";
    rounds.add({(16U << 20) + kBlockBytes, 0, Duration{1'000}});
    EXPECT_EQ(rounds.judge(std::nullopt), Convergence::kNoImprovement);
}

TEST(Convergence, OfAReplacementEndsAfterEightRounds) {
    Rounds rounds(rules_of_replacement(Duration{60'000}));
    std::uint64_t bytes = 1ULL << 40;
    for (int i = 0; i < 7; ++i, bytes /= 2) {
        rounds.add({bytes, bytes, Duration{1'000'000}});
        EXPECT_EQ(rounds.judge(std::nullopt), Convergence::kAnotherRound);
    }
    rounds.add({bytes, bytes, Duration{1'000'000}});
    EXPECT_EQ(rounds.judge(std::nullopt), Convergence::kRoundsExhausted);
}

TEST(Downtime, IsBytesOverRatePlusTheFixedPart) {
    EXPECT_EQ(estimate_downtime({{0, 0, Duration{1'000}}}, 0, Duration{0}).downtime,
              kDowntimeFixed);
    EXPECT_EQ(estimate_downtime({}, 1'000'000, Duration{0}).downtime, std::nullopt);
    const std::vector<RoundRecord> rounds{{100, 100, Duration{1'000'000}},
                                          {50, 50, Duration{500'000}}};
    EXPECT_EQ(estimate_remaining_bytes(rounds, 1'000, Duration{500'000}), 25U);
    EXPECT_DOUBLE_EQ(estimate_rate(rounds), 100.0);
    EXPECT_EQ(estimate_downtime(rounds, 1'000, Duration{500'000}).downtime,
              kDowntimeFixed + Duration{250'000});
}

TEST(Downtime, CountsTheScanTwiceAndNotIntoTheRate) {
    const std::vector<RoundRecord> rounds{
        {100, 100, Duration{1'000'000}},
        {50, 50, Duration{700'000}, Duration{200'000}, Duration{1'000'000}}};
    EXPECT_DOUBLE_EQ(estimate_rate(rounds), 100.0);
    EXPECT_EQ(estimate_downtime(rounds, 1'000, Duration{1'000'000}).downtime,
              kDowntimeFixed + Duration{2 * 200'000 + 500'000});
}

TEST(Downtime, MemoryWrittenOverAndOverIsCountedOnce) {
    const std::vector<RoundRecord> rounds{
        {1'000, 1'000, Duration{4'000'000}},
        {130, 130, Duration{700'000}, Duration{}, Duration{4'000'000}},
        {128, 128, Duration{700'000}, Duration{}, Duration{700'000}},
        {128, 128, Duration{700'000}, Duration{}, Duration{1'200'000}}};
    EXPECT_EQ(estimate_remaining_bytes(rounds, 1'000, Duration{1'200'000}), 128U);
    EXPECT_EQ(estimate_remaining_bytes(rounds, 1'000, Duration{350'000}), 64U);
}

TEST(Downtime, TheSlopeBetweenTwoRoundsIsNotThatBehindTheLast) {
    const std::vector<RoundRecord> rounds{
        {1'000, 1'000, Duration{4'000'000}},
        {100, 100, Duration{500'000}, Duration{}, Duration{1'000'000}},
        {200, 200, Duration{500'000}, Duration{}, Duration{1'100'000}}};
    const auto bytes_after = [&](std::int64_t us) {
        return static_cast<double>(estimate_remaining_bytes(rounds, 100'000, Duration{us}));
    };
    EXPECT_NEAR(bytes_after(500'000), 50, 1);
    EXPECT_NEAR(bytes_after(1'050'000), 150, 1) << "between them";
    EXPECT_NEAR(bytes_after(2'200'000), 400, 1) << "two that lie close together say little";
}

TEST(Downtime, NeverShrinksWithTheTimeThatHasPassed) {
    const std::vector<RoundRecord> rounds{
        {1'000, 1'000, Duration{4'000'000}},
        {300, 300, Duration{900'000}, Duration{}, Duration{4'000'000}},
        {350, 350, Duration{800'000}, Duration{}, Duration{900'000}},
        {90, 90, Duration{300'000}, Duration{}, Duration{800'000}},
        {120, 120, Duration{300'000}, Duration{}, Duration{800'000}}};
    std::uint64_t last = 0;
    for (int ms = 0; ms < 20'000; ms += 50) {
        const auto now = estimate_remaining_bytes(rounds, 5'000, Duration{ms * 1'000});
        EXPECT_GE(now, last) << ms;
        last = now;
    }
    EXPECT_GE(last, 350U);
}

TEST(Progress, AFirstRoundOfNothingIsAtItsBeginning) {
    const double begin = first_round_percent(0, 100);
    const double middle = first_round_percent(50, 100);
    EXPECT_EQ(first_round_percent(0, 0), begin);
    EXPECT_GT(middle, begin);
    EXPECT_DOUBLE_EQ(first_round_percent(100, 100) - middle, middle - begin);
    EXPECT_EQ(first_round_percent(200, 100), first_round_percent(100, 100));
}

TEST(Progress, NeverRunsBackwards) {
    ProgressMeter meter;
    double last = 0.0;
    for (const auto& [phase, fraction] : {std::pair{Phase::kPreflight, 1.0},
                                          {Phase::kPrecopy, 0.9},
                                          {Phase::kPrecopy, 0.2},
                                          {Phase::kSwitchover, 0.5},
                                          {Phase::kPrecopy, 1.0},
                                          {Phase::kCommit, 0.5},
                                          {Phase::kFailed, 0.0},
                                          {Phase::kDone, 1.0}}) {
        const double now = meter.advance(phase, fraction);
        EXPECT_GE(now, last);
        last = now;
    }
    EXPECT_EQ(last, 100.0);
}

}  // namespace
}  // namespace gantry::engine
