// What operators are told of moves: progress that never runs backwards, and how the last one ended.
#include "host-daemon/supervisor/moves/move_history.h"

#include <gtest/gtest.h>

namespace gantry::supervisor {
namespace {

control::SessionStatus status_of(const std::string& id, double percent, std::uint64_t bytes,
                                 const std::string& outcome = "") {
    control::SessionStatus status;
    status.set_session_id(id);
    control::MoveProgress& move = *status.mutable_move();
    move.set_direction("outgoing");
    move.set_percent(percent);
    move.set_bytes_processed(bytes);
    move.set_bytes_on_wire(bytes / 2);
    move.set_outcome(outcome);
    return status;
}

TEST(WatchFilter, AMoveNeverRunsBackwards) {
    WatchFilter filter;
    EXPECT_EQ(filter.next(status_of("a", 60, 1000))->move().percent(), 60);
    const auto shown = filter.next(status_of("a", 5, 10));  // a second attempt began
    EXPECT_FALSE(shown.has_value());                        // nothing new to say
    const auto later = filter.next(status_of("a", 61, 1100));
    EXPECT_EQ(later->move().percent(), 61);
    EXPECT_EQ(later->move().bytes_processed(), 1100U);
    const auto ended = filter.next(status_of("a", 5, 10, "rolled back"));
    EXPECT_EQ(ended->move().percent(), 61);
    EXPECT_EQ(ended->move().bytes_on_wire(), 550U);
}

TEST(WatchFilter, TheNextMoveBeginsAgainAtZero) {
    WatchFilter filter;
    (void)filter.next(status_of("a", 100, 1000, "moved"));
    EXPECT_EQ(filter.next(status_of("a", 0, 0))->move().percent(), 0);
}

TEST(WatchFilter, SessionsDoNotDisturbEachOther) {
    WatchFilter filter;
    (void)filter.next(status_of("a", 90, 1000));
    EXPECT_EQ(filter.next(status_of("b", 3, 7))->move().percent(), 3);
}

TEST(WatchFilter, CountersOfWorkersAndTimeAloneAreNoNews) {
    WatchFilter filter;
    control::SessionStatus status = status_of("a", 1, 1);
    EXPECT_TRUE(filter.next(status).has_value());
    status.add_workers()->set_commands_executed(5);
    status.mutable_move()->set_elapsed_us(17);
    EXPECT_FALSE(filter.next(status).has_value());
    status.add_alerts("session.split_brain: ...");
    EXPECT_TRUE(filter.next(status).has_value());
}

TEST(MoveHistory, KeepsTheLastMoveOfEachSession) {
    MoveHistory history;
    history.note(status_of("a", 10, 1, "rolled back"));
    const std::uint64_t serial = history.serial();
    history.note(status_of("b", 100, 1, "moved"));
    history.note(status_of("a", 100, 2, "moved"));
    EXPECT_EQ(history.find("a")->move().outcome(), "moved");
    EXPECT_EQ(history.find("c"), nullptr);
    const auto since = history.since(serial);
    ASSERT_EQ(since.size(), 2U);
    EXPECT_EQ(since[0].session_id(), "b");
    EXPECT_EQ(since[1].session_id(), "a");
    EXPECT_TRUE(history.since(history.serial()).empty());
}

TEST(MoveHistory, ForgetsTheOldest) {
    MoveHistory history;
    for (std::size_t i = 0; i <= MoveHistory::kKept; ++i) {
        history.note(status_of(std::to_string(i), 100, 1, "moved"));
    }
    EXPECT_EQ(history.find("0"), nullptr);
    EXPECT_NE(history.find("1"), nullptr);
}

TEST(MoveHistory, WordsOfAnEnd) {
    control::MoveProgress move;
    move.set_percent(97);
    move.set_bytes_remaining(5);
    end_move(engine::Outcome::kMoved, {}, &move);
    EXPECT_EQ(move.outcome(), "moved");
    EXPECT_EQ(move.phase(), "completed");
    EXPECT_EQ(move.percent(), 100);
    EXPECT_EQ(move.bytes_remaining(), 0U);
    control::MoveProgress failed;
    failed.set_percent(50);
    end_move(engine::Outcome::kRolledBack, {Code::kAborted, "migration.job_failed", "ended"},
             &failed);
    EXPECT_EQ(failed.outcome(), "rolled back");
    EXPECT_EQ(failed.phase(), "failed");
    EXPECT_EQ(failed.percent(), 50);
    EXPECT_EQ(failed.error_reason(), "migration.job_failed");
}

}  // namespace
}  // namespace gantry::supervisor
