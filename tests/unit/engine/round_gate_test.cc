#include "migration/engine/round_gate.h"

#include <gtest/gtest.h>

namespace gantry::engine {
namespace {

using Entry = RoundGate::Entry;
using Verdict = RoundGate::Verdict;

TEST(RoundGate, DropsStaleAndRepeatedBatches) {
    RoundGate gate;
    EXPECT_EQ(gate.begin(1, 0, true), Entry::kApply);
    EXPECT_EQ(gate.end(1, true), Verdict::kOpen) << "the count is not known";
    EXPECT_EQ(gate.begin(1, 0, true), Entry::kDrop);
    EXPECT_EQ(gate.await(1, 2), Verdict::kOpen);
    EXPECT_EQ(gate.begin(1, 1, true), Entry::kApply);
    EXPECT_EQ(gate.end(1, true), Verdict::kApplied);
    EXPECT_EQ(gate.await(1, 2), Verdict::kApplied) << "asked again";
    EXPECT_EQ(gate.begin(2, 0, true), Entry::kApply);
    EXPECT_EQ(gate.begin(1, 5, true), Entry::kDrop);
    EXPECT_EQ(gate.await(1, 9), Verdict::kOpen);
    EXPECT_EQ(gate.end(2, true), Verdict::kOpen);
    EXPECT_EQ(gate.await(3, 0), Verdict::kApplied) << "an empty round";
    EXPECT_EQ(gate.round(), 3U);
}

TEST(RoundGate, ANewerRoundWaitsForTheOlderOnesBatches) {
    RoundGate gate;
    EXPECT_EQ(gate.begin(1, 0, true), Entry::kApply);
    EXPECT_EQ(gate.begin(1, 1, true), Entry::kApply) << "beside the first";
    EXPECT_EQ(gate.await(2, 1), Verdict::kOpen);
    EXPECT_EQ(gate.begin(2, 0, true), Entry::kWait);
    EXPECT_EQ(gate.end(1, true), Verdict::kOpen);
    EXPECT_EQ(gate.begin(2, 0, true), Entry::kWait);
    EXPECT_EQ(gate.begin(1, 2, true), Entry::kDrop) << "round 2 is known";
    EXPECT_EQ(gate.end(1, true), Verdict::kOpen);
    EXPECT_EQ(gate.begin(2, 0, true), Entry::kApply) << "waiting noted nothing";
    EXPECT_EQ(gate.end(2, true), Verdict::kApplied);
}

TEST(RoundGate, ARoundWithABatchThatWasNotWantedIsLost) {
    RoundGate gate;
    EXPECT_EQ(gate.begin(1, 0, false), Entry::kUnwanted) << "it must not be acknowledged";
    EXPECT_EQ(gate.await(1, 1), Verdict::kLost);
    EXPECT_EQ(gate.begin(2, 0, true), Entry::kApply);
    EXPECT_EQ(gate.await(2, 1), Verdict::kOpen) << "the next one is not";
    EXPECT_EQ(gate.end(2, true), Verdict::kApplied);
}

TEST(RoundGate, ABatchThatFailedIsNotCounted) {
    RoundGate gate;
    EXPECT_EQ(gate.await(1, 2), Verdict::kOpen);
    EXPECT_EQ(gate.begin(1, 0, true), Entry::kApply);
    EXPECT_EQ(gate.begin(1, 1, true), Entry::kApply);
    EXPECT_EQ(gate.end(1, false), Verdict::kLost);
    EXPECT_EQ(gate.end(1, true), Verdict::kOpen);
    EXPECT_EQ(gate.await(1, 2), Verdict::kLost) << "whoever was told so may not have heard it";
    EXPECT_EQ(gate.begin(2, 0, true), Entry::kApply);
    EXPECT_EQ(gate.await(2, 2), Verdict::kOpen);
}

}  // namespace
}  // namespace gantry::engine
