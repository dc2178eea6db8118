// Moves that have ended, as metrics count them.
#include "host-daemon/supervisor/moves/move_counters.h"

#include <gtest/gtest.h>

namespace gantry::supervisor {
namespace {

control::SessionStatus ended(const char* outcome, const char* reason, std::uint64_t downtime_us,
                             const std::string& vm = "") {
    control::SessionStatus status;
    status.set_vm_name(vm);
    control::MoveProgress& move = *status.mutable_move();
    move.set_direction("outgoing");
    move.set_outcome(outcome);
    move.set_error_reason(reason);
    move.set_downtime_us(downtime_us);
    move.set_elapsed_us(3'000'000);
    move.set_bytes_on_wire(100);
    return status;
}

TEST(MoveCounters, CountEndsByReasonAndPausesOfThoseThatWentThrough) {
    MoveCounters counters;
    counters.note(ended("moved", "", 90'000));
    counters.note(ended("moved", "", 100'000));  // a bound belongs to its bucket
    counters.note(ended("moved", "", 90'000'000));
    counters.note(ended("refused", "migration.not_converging", 0));
    counters.note(ended("rolled back", "migration.job_failed", 70'000));
    EXPECT_EQ(counters.ends().at({"outgoing", "moved", ""}), 3U);
    EXPECT_EQ(counters.ends().at({"outgoing", "refused", "migration.not_converging"}), 1U);
    const auto& all = counters.moves().at({"outgoing", "", ""});
    EXPECT_EQ(all.wire_bytes, 500U);
    EXPECT_EQ(all.downtime.counts()[1], 2U) << "up to 0.1 s";
    EXPECT_EQ(all.downtime.counts().back(), 1U) << "beyond the last bound";
    EXPECT_DOUBLE_EQ(all.downtime.sum(), 90.19);
    EXPECT_EQ(all.duration.counts()[2], 3U) << "up to 5 s";
}

TEST(MoveCounters, AVmHasItsOwnUntilThereAreTooMany) {
    MoveCounters counters;
    for (std::size_t i = 0; i < MoveCounters::kVmsMax + 7; ++i) {
        counters.note(ended("moved", "", 90'000, "vm" + std::to_string(i)));
    }
    EXPECT_EQ(counters.moves().size(), MoveCounters::kVmsMax + 1);
    EXPECT_EQ(counters.moves().at({"outgoing", "vm3", ""}).wire_bytes, 100U);
    EXPECT_EQ(counters.moves().at({"outgoing", "", ""}).wire_bytes, 700U);
}

}  // namespace
}  // namespace gantry::supervisor
