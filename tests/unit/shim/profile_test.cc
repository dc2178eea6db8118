// Profiles of operations: how the guest splits a thread's time, and what the host believes of it.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "guest-shim/session/connection.h"
#include "guest-shim/session/thread_times.h"
#include "host-daemon/execution/ring/profile_board.h"

namespace gantry::session {
std::uint64_t table_hash() noexcept { return 0; }
}  // namespace gantry::session

namespace gantry {
namespace {

using session::HostTimes;
using session::ProfileTable;
using session::ThreadTimes;
using wire::Part;
using worker::ProfileBoard;

std::uint64_t sum_of(const wire::ProfileRow& row) {
    return std::accumulate(std::begin(row.part_ns), std::end(row.part_ns), std::uint64_t{0});
}

/// A thread that began at 1000 and has a worker's counters at 0.
struct Times : testing::Test {
    std::unique_ptr<ProfileTable> table{new ProfileTable()};
    std::unique_ptr<ThreadTimes> times{new ThreadTimes()};
    HostTimes host{.worker = 1};
    std::uint64_t now = 1000;

    Times() { times->begin(table.get(), 0, now, host); }

    const wire::ProfileRow& row(const std::string& name) const {
        for (std::uint32_t i = 0; i < table->count.load(); ++i) {
            if (name == table->rows[i].name) {
                return table->rows[i];
            }
        }
        ADD_FAILURE() << "no row " << name;
        return table->rows[0];
    }
    std::uint64_t part(const std::string& name, Part which) const {
        return row(name).part_ns[static_cast<std::size_t>(which)];
    }
    /// A call that waits so long; the host's counters grow meanwhile.
    void wait(std::uint64_t ns, std::uint64_t device_ns, const HostTimes& later) {
        times->enter_call(now, host);
        times->begin_wait(now, host);
        now += ns;
        host = later;
        times->end_wait(now, host, device_ns);
        times->leave_call(now, host);
    }
};

TEST_F(Times, SumToTheWallTimeWhateverHappens) {
    std::mt19937_64 random(7);
    const auto upto = [&](std::uint64_t most) { return random() % (most + 1); };
    std::uint64_t stopped = 0;
    std::vector<std::uint64_t> ranges;
    bool is_waiting = false;
    bool is_stop_seen = true;
    int calls = 0;
    for (int i = 0; i < 200'000; ++i) {
        now += upto(1000);
        host.held_ns += upto(3) == 0 ? upto(900) : 0;
        host.pause_ns += upto(50) == 0 ? upto(5000) : 0;
        host.launch_ns += upto(800);
        if (upto(200) == 0) {
            const std::uint64_t stop = upto(100'000);
            host.stop_ns += stop;
            stopped += stop;
            is_stop_seen = false;
        }
        if (upto(2000) == 0 && is_stop_seen) {  // Another worker: its counters begin anew.
            host = HostTimes{.worker = host.worker + 1};
        }
        is_stop_seen |= is_waiting || calls == 0;  // There is a stamp now.
        const std::string name = "range " + std::to_string(upto(5));
        if (is_waiting) {
            times->end_wait(now, host, upto(1) * upto(1500));
            is_waiting = false;
        } else if (calls != 0) {
            switch (upto(2)) {
                case 0:
                    times->begin_wait(now, host);
                    is_waiting = true;
                    break;
                case 1: times->launched(); break;
                default:
                    times->leave_call(now, host);
                    --calls;
                    break;
            }
        } else {
            switch (upto(5)) {
                case 0: times->push(now, host, name.c_str(), true); break;
                case 1: times->pop(now, host); break;
                case 2: ranges.push_back(times->push(now, host, name.c_str(), false)); break;
                case 3:
                    if (!ranges.empty()) {
                        times->end(now, host, ranges[upto(ranges.size() - 1)]);
                    }
                    break;
                default:
                    times->enter_call(now, host);
                    ++calls;
                    break;
            }
        }
    }
    if (is_waiting) {
        times->end_wait(now, host, 0);
    }
    times->pop(now, host);
    std::uint64_t wall = 0;
    for (std::uint32_t i = 0; i < std::min(table->count.load(), wire::kProfileRows); ++i) {
        EXPECT_EQ(sum_of(table->rows[i]), table->rows[i].wall_ns) << i;
        wall += table->rows[i].wall_ns;
    }
    EXPECT_EQ(wall, now - 1000 + stopped);
    EXPECT_GT(table->lost.load(), 0u);
    EXPECT_GT(table->unmatched.load(), 0u);
}

TEST_F(Times, AWaitIsTakenApartInOrderAndNeverMoreThanItLasted) {
    wait(100, 30, {.worker = 1, .held_ns = 50, .pause_ns = 40});
    EXPECT_EQ(part("(outside)", Part::kPause), 40u);
    EXPECT_EQ(part("(outside)", Part::kScheduler), 50u);
    EXPECT_EQ(part("(outside)", Part::kGpu), 10u);
    EXPECT_EQ(part("(outside)", Part::kTransport), 0u);
    wait(100, 30, host);
    EXPECT_EQ(part("(outside)", Part::kGpu), 40u);
    EXPECT_EQ(part("(outside)", Part::kTransport), 70u);
}

TEST_F(Times, APauseHitsOnlyWhatItHeldUp) {
    times->push(now, host, "computes", true);
    now += 500;
    host.pause_ns = 300;  // While nothing was asked of the host.
    times->pop(now, host);
    times->push(now, host, "waits", true);
    wait(400, 0, {.worker = 1, .pause_ns = 600});
    times->pop(now, host);
    EXPECT_EQ(part("computes", Part::kPause), 0u);
    EXPECT_EQ(part("computes", Part::kGuest), 500u);
    EXPECT_EQ(part("waits", Part::kPause), 300u);
    EXPECT_EQ(part("waits", Part::kTransport), 100u);
    EXPECT_EQ(row("waits").pauses, 1u);
    EXPECT_EQ(row("computes").pauses, 0u);
}

TEST_F(Times, AClockThatStoodStillAddsToTheWallTime) {
    times->push(now, host, "computes", true);
    now += 500;
    host = {.worker = 2, .stop_ns = 7000};  // The guest is on another host now.
    times->pop(now, host);
    EXPECT_EQ(part("computes", Part::kGuest), 500u);
    EXPECT_EQ(part("computes", Part::kPause), 7000u);
    EXPECT_EQ(row("computes").wall_ns, 7500u);
    times->push(now, host, "computes", true);
    times->pop(now, host);
    EXPECT_EQ(part("computes", Part::kPause), 7000u) << "it counts once";
}

TEST_F(Times, AnotherWorkersCountersBeginAtZero) {
    wait(100, 0, {.worker = 1, .held_ns = 90, .pause_ns = 0});
    times->push(now, host, "moved", true);
    wait(1000, 0, {.worker = 2, .held_ns = 5, .pause_ns = 800});
    EXPECT_EQ(part("moved", Part::kPause), 800u);
    EXPECT_EQ(part("moved", Part::kScheduler), 5u);
    EXPECT_EQ(part("moved", Part::kTransport), 195u);
}

TEST_F(Times, WhatTheGpuDidBeyondTheWaitWasBesideCpuTimeBehindTheLaunch) {
    times->push(now, host, "before", true);
    now += 1000;
    times->pop(now, host);
    times->push(now, host, "beside", true);
    times->enter_call(now, host);
    times->launched();
    times->leave_call(now, host);
    now += 30;
    times->pop(now, host);
    times->push(now, host, "waits", true);
    wait(20, 20, {.worker = 1, .launch_ns = 45});
    times->pop(now, host);
    EXPECT_EQ(part("before", Part::kOverlapped), 0u);
    EXPECT_EQ(part("beside", Part::kOverlapped), 25u);
    EXPECT_EQ(part("beside", Part::kGuest), 5u);
    EXPECT_EQ(part("waits", Part::kGpu), 20u);
}

TEST_F(Times, RangesThatFindNoRowAreTheirParentsTimeAndCounted) {
    for (std::uint32_t i = 0; i < 2 * wire::kProfileRows; ++i) {
        times->push(now, host, ("flood " + std::to_string(i)).c_str(), true);
        now += 1;
        times->pop(now, host);
    }
    EXPECT_EQ(table->lost.load(), wire::kProfileRows + 1);
    EXPECT_EQ(row("(outside)").wall_ns, wire::kProfileRows + 1u);
    const std::string name(200, 'x');
    ProfileTable other{};
    ThreadTimes more{};
    more.begin(&other, 0, now, host);
    for (int i = 0; i < 100; ++i) {
        more.push(now, host, name.c_str(), true);
    }
    now += 10;
    for (int i = 0; i < 100; ++i) {
        more.pop(now, host);
    }
    EXPECT_EQ(more.row(), 0u) << "back outside";
    EXPECT_EQ(std::strlen(other.rows[1].name), wire::kProfileNameBytes - 1);
    EXPECT_EQ(other.lost.load(), 36u);
    EXPECT_EQ(other.unmatched.load(), 0u);
}

// ---- the host's side ----------------------------------------------------------------------------

wire::ProfileRow row_of(std::uint32_t number, std::uint32_t parent, const std::string& name) {
    wire::ProfileRow row{};
    row.row = number;
    row.parent = parent;
    row.wall_ns = 10;
    row.part_ns[0] = 4;
    row.part_ns[6] = 6;
    std::memcpy(row.name, name.data(), std::min(name.size(), sizeof(row.name)));
    return row;
}

struct Board : testing::Test {
    ProfileBoard board;
    Board() { board.set_level(2); }

    void tell(const std::vector<wire::ProfileRow>& rows,
              const std::vector<wire::ProfileRange>& ranges = {}, std::uint64_t first = 0) {
        wire::ProfileCall call{};
        call.row_count = static_cast<std::uint32_t>(rows.size());
        call.range_count = static_cast<std::uint32_t>(ranges.size());
        call.first_range = first;
        std::vector<std::byte> trailing(rows.size() * sizeof(wire::ProfileRow) +
                                        ranges.size() * sizeof(wire::ProfileRange));
        if (!rows.empty()) {
            std::memcpy(trailing.data(), rows.data(), rows.size() * sizeof(wire::ProfileRow));
        }
        if (!ranges.empty()) {
            std::memcpy(trailing.data() + rows.size() * sizeof(wire::ProfileRow), ranges.data(),
                        ranges.size() * sizeof(wire::ProfileRange));
        }
        board.take(std::as_bytes(std::span(&call, 1)), trailing);
    }
};

constexpr std::uint32_t kNone = wire::kNoProfileRow;

TEST_F(Board, KeepsTheNewestTotals) {
    tell({row_of(0, kNone, "(outside)"), row_of(1, 0, "step")});
    wire::ProfileRow later = row_of(1, 0, "step");
    later.wall_ns = later.part_ns[4] = 99;
    later.part_ns[0] = later.part_ns[6] = 0;
    tell({later});
    const auto kept = board.kept();
    ASSERT_EQ(kept.rows.size(), 2u);
    EXPECT_EQ(kept.rows[1].wall_ns, 99u);
    EXPECT_EQ(kept.refused, 0u);
}

TEST_F(Board, RefusesWhatCannotBe) {
    wire::ProfileRow short_sum = row_of(1, 0, "short");
    short_sum.part_ns[0] = 3;
    wire::ProfileRow wraps = row_of(1, 0, "wraps");
    wraps.part_ns[0] = ~std::uint64_t{0};
    wraps.part_ns[6] = 11;  // Modulo 2^64 they sum to the wall time.
    tell({row_of(0, kNone, "(outside)"), short_sum, wraps, row_of(1, 1, "its own parent"),
          row_of(1, 2, "a later parent"), row_of(wire::kProfileRows, 0, "beyond")});
    auto kept = board.kept();
    EXPECT_EQ(kept.rows.size(), 1u);
    EXPECT_EQ(kept.refused, 5u);

    tell({row_of(5, 4, "an orphan")});
    wire::ProfileRow stranger = row_of(6, 0, "a stranger");
    stranger.thread = 3;
    tell({stranger});
    kept = board.kept();
    EXPECT_EQ(kept.rows.size(), 1u);
    EXPECT_EQ(kept.refused, 7u);

    wire::ProfileRow moved = row_of(0, kNone, "(outside)");
    moved.thread = 9;
    tell({moved});
    EXPECT_EQ(board.kept().refused, 8u);
    wire::ProfileCall lies{};
    lies.row_count = 0xffffffff;
    lies.range_count = 0xffffffff;
    board.take(std::as_bytes(std::span(&lies, 1)), {});
    lies.row_count = 1;
    lies.range_count = 0;
    board.take(std::as_bytes(std::span(&lies, 1)), {});
    board.take({}, {});
    EXPECT_EQ(board.kept().refused, 11u);
}

TEST_F(Board, MakesNamesPrintable) {
    std::string name(wire::kProfileNameBytes, '\xff');  // It does not end.
    name.replace(0, 12, "<b>\n\x1b[31m\"&");
    tell({row_of(0, kNone, name)});
    const std::string kept = board.kept().rows.at(0).name;
    EXPECT_EQ(kept.size(), wire::kProfileNameBytes - 1);
    EXPECT_EQ(kept.substr(0, 14), "<b>??[31m\"&???");
}

TEST_F(Board, AFloodOfRangesLosesTheOldest) {
    tell({row_of(0, kNone, "(outside)")});
    const std::vector<wire::ProfileRange> thousand(1000, {0, 0, 1, 2});
    for (std::uint64_t first = 0; first < 10'000; first += 1000) {
        tell({}, thousand, first);
        tell({}, thousand, first);  // Again, as after a move.
    }
    auto kept = board.kept();
    EXPECT_EQ(kept.ranges.size(), wire::kProfileRanges);
    EXPECT_EQ(kept.ranges_lost, 10'000u - wire::kProfileRanges);
    tell({}, {{7, 0, 1, 2}, {0, 0, 3, 2}, {0, 99, 1, 2}}, 20'000);
    kept = board.kept();
    EXPECT_EQ(kept.ranges.size(), 0u) << "of an unknown row, backwards, of no part";
    EXPECT_EQ(kept.refused, 2u);
    tell({}, thousand, ~std::uint64_t{0} - 5);
    EXPECT_EQ(board.kept().refused, 3u);
}

TEST_F(Board, OffThereIsNoRecord) {
    board.set_level(0);
    tell({row_of(0, kNone, "(outside)")});
    EXPECT_TRUE(board.kept().rows.empty());
    EXPECT_EQ(board.kept().refused, 1u);
}

TEST_F(Board, TellsTheGuestItsSettingAndWhatItKnows) {
    const auto words = std::make_unique<wire::HostWords>();
    board.attach(words.get());
    EXPECT_EQ(wire::profile_level(words->profile.load()), 2u);
    EXPECT_NE(words->profile_worker.load(), 0u);
    const std::uint32_t before = words->profile.load();
    board.set_level(2);
    EXPECT_NE(words->profile.load(), before) << "it begins anew";
    board.paused(std::chrono::milliseconds(3), false);
    board.paused(std::chrono::milliseconds(5), true);
    board.paused(std::chrono::milliseconds(-5), false);
    EXPECT_EQ(words->pause_ns.load(), 3'000'000u);
    EXPECT_EQ(words->stop_ns.load(), 5'000'000u);
    board.launched(70);
    board.launched(60);
    EXPECT_EQ(words->launch_ns.load(), 70u);
    board.held(true);
    board.held(false);
    const std::uint64_t held = words->held_ns.load();
    board.held(false);
    EXPECT_EQ(words->held_ns.load(), held);
    ProfileBoard target;
    target.attach(words.get());
    target.load(before);
    EXPECT_EQ(words->profile.load(), before);
    EXPECT_EQ(words->held_ns.load(), 0u);
}

}  // namespace
}  // namespace gantry
