// Timelines and `gantry top`, from readings made for the test: what is drawn, and that words of
// another host cannot break out of it.
#include "migration/cli/timeline.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "migration/cli/timeline_forms.h"
#include "migration/cli/top.h"

namespace gantry::cli {
namespace {

control::MoveEvent event(std::uint64_t at_us, const std::string& what, std::uint64_t round = 0) {
    control::MoveEvent out;
    out.set_at_us(at_us);
    out.set_what(what);
    out.set_round(round);
    return out;
}

/// The target's clock is 1000 s ahead; by messages that is known to 2 ms.
control::MoveRecordsReply records() {
    control::MoveRecordsReply out;
    control::MoveRecord& own = *out.mutable_own();
    own.set_vm_name("g1");
    own.set_direction("outgoing");
    own.set_host("hosta");
    own.set_begun_us(1'000'000);
    own.mutable_clock()->set_is_known(true);
    own.mutable_clock()->set_own_minus_peer_us_min(-1'000'002'000);
    own.mutable_clock()->set_own_minus_peer_us_max(-999'998'000);
    *own.add_events() = event(1'000'000, "asked");
    *own.add_events() = event(1'100'000, "round_begun", 1);
    *own.add_events() = event(2'100'000, "round_sent", 1);
    *own.add_events() = event(3'000'000, "vm_paused");
    *own.add_events() = event(3'010'000, "freeze");
    *own.add_events() = event(3'020'000, "frozen");
    *own.add_events() = event(3'060'000, "grant_asked");
    *own.add_events() = event(3'070'000, "granted");
    control::MoveSample& sample = *own.add_samples();
    sample.set_at_us(2'000'000);
    sample.set_bytes_remaining(1 << 20);
    sample.set_bytes_per_second(1e9);
    own.mutable_last()->set_outcome("moved");
    own.mutable_last()->set_memory_digest("d");
    control::MoveRecord& peer = *out.mutable_peer();
    peer.set_direction("incoming");
    peer.set_host("hostb");
    peer.set_begun_us(1'001'000'500);
    peer.mutable_last()->set_memory_digest("d");
    *peer.add_events() = event(1'003'030'000, "apply");
    *peer.add_events() = event(1'003'050'000, "complete");
    *peer.add_events() = event(1'003'080'000, "activate");
    *peer.add_events() = event(1'003'090'000, "activated");
    *peer.add_events() = event(1'003'095'000, "first_call");
    return out;
}

const Lane& lane_of(const Timeline& timeline, std::size_t host, const std::string& name) {
    for (const Lane& lane : timeline.hosts.at(host).lanes) {
        if (lane.name == name) {
            return lane;
        }
    }
    ADD_FAILURE() << "no lane " << name;
    return timeline.hosts.at(host).lanes.front();
}

TEST(Timeline, BothHostsStandOnOneAxis) {
    const Timeline timeline = make_timeline(records());
    ASSERT_EQ(timeline.hosts.size(), 2U);
    const Span frozen = lane_of(timeline, 0, "GPU frozen").spans.at(1);
    EXPECT_NEAR(frozen.from, 2.02, 1e-9);
    EXPECT_NEAR(frozen.to, 2.07, 1e-9);
    EXPECT_NEAR(lane_of(timeline, 0, "GPU rounds").spans.at(0).to, 1.1, 1e-9);
    EXPECT_NEAR(lane_of(timeline, 1, "first answer").spans.at(0).from, 2.08, 1e-9);
    EXPECT_NEAR(lane_of(timeline, 1, "first answer").marks.at(0).at, 2.095, 1e-9);
    EXPECT_NE(timeline_text(timeline).find("wrong by 2.00 ms at most"), std::string::npos);
    EXPECT_LT(timeline.pause_from, 2.0);
    EXPECT_GT(timeline.pause_to, 2.095);
}

/// Asked at the target, which has the same two records the other way round.
TEST(Timeline, TheOtherHostShowsTheSame) {
    control::MoveRecordsReply there = records();
    there.mutable_own()->Swap(there.mutable_peer());
    const Timeline timeline = make_timeline(there);
    ASSERT_EQ(timeline.hosts.size(), 2U);
    EXPECT_TRUE(timeline.hosts[0].is_source);
    EXPECT_NEAR(lane_of(timeline, 0, "GPU frozen").spans.at(1).from, 2.02, 1e-9);
    EXPECT_NEAR(lane_of(timeline, 1, "first answer").marks.at(0).at, 2.095, 1e-9);
}

TEST(Timeline, OneHostAloneAndWhatDoesNotEndAreShown) {
    control::MoveRecordsReply alone = records();
    alone.clear_peer();
    alone.mutable_own()->mutable_events()->RemoveLast();
    const Timeline timeline = make_timeline(alone);
    ASSERT_EQ(timeline.hosts.size(), 1U);
    EXPECT_NE(lane_of(timeline, 0, "GPU frozen").spans.at(1).title.find("no end was seen"),
              std::string::npos);
    EXPECT_NE(timeline_text(timeline).find("its record has not come"), std::string::npos);
    EXPECT_EQ(make_timeline({}).hosts.size(), 1U);  // nothing in it, and drawn all the same
    EXPECT_NE(timeline_svg(make_timeline({})).find("</svg>"), std::string::npos);
}

TEST(Timeline, WordsOfAnotherHostStayWords) {
    control::MoveRecordsReply hostile = records();
    hostile.mutable_peer()->set_host("<script>alert(1)</script>\"&\x01");
    const Timeline timeline = make_timeline(hostile);
    for (const std::string& text : {timeline_svg(timeline), timeline_html(timeline)}) {
        EXPECT_EQ(text.find("<script"), std::string::npos);
        EXPECT_EQ(text.find('\x01'), std::string::npos);
        EXPECT_NE(text.find("&lt;script&gt;"), std::string::npos);
    }
    EXPECT_TRUE(nlohmann::json::accept(timeline_chrome(timeline)));
}

/// A window that a double cannot divide any more, far from zero, and rates without end.
TEST(Timeline, NumbersOfAnotherHostCostNothing) {
    control::MoveRecordsReply hostile = records();
    hostile.mutable_own()->Swap(hostile.mutable_peer());
    control::MoveRecord& peer = *hostile.mutable_peer();
    constexpr std::uint64_t kFar = 18'000'000'000'000'000'000U;
    for (control::MoveEvent& one : *peer.mutable_events()) {
        one.set_at_us(kFar + one.at_us() % 1000);
    }
    for (const double rate : {1e300, std::numeric_limits<double>::infinity(), -1.0,
                              std::numeric_limits<double>::quiet_NaN()}) {
        control::MoveSample& sample = *peer.add_samples();
        sample.set_at_us(kFar);
        sample.set_bytes_remaining(~0ULL);
        sample.set_bytes_per_second(rate);
        sample.set_dirty_bytes_per_second(rate);
    }
    peer.mutable_clock()->set_own_minus_peer_us_min(std::numeric_limits<std::int64_t>::min());
    peer.mutable_clock()->set_own_minus_peer_us_max(std::numeric_limits<std::int64_t>::max());
    for (const std::uint64_t begun : {std::uint64_t{0}, kFar}) {
        hostile.mutable_own()->set_begun_us(begun);
        hostile.mutable_own()->clear_events();
        const Timeline timeline = make_timeline(hostile);
        const std::string svg = timeline_svg(timeline);
        EXPECT_LT(svg.size(), 100'000U);
        EXPECT_EQ(svg.find("nan"), std::string::npos);
        EXPECT_EQ(svg.find("inf"), std::string::npos);
        EXPECT_TRUE(nlohmann::json::accept(timeline_chrome(timeline)));
    }
}

TEST(Top, RatesAreOfTheSameWorkerBetweenTwoReadings) {
    control::ListSessionsReply before;
    before.set_host("hosta");
    before.set_memory_bytes(100);
    control::SessionStatus& session = *before.add_sessions();
    session.set_session_id("s1");
    session.set_vm_name("g1");
    control::WorkerInfo& worker = *session.add_workers();
    worker.set_part_id(1);
    worker.set_pid(17);
    worker.set_commands_executed(1000);
    worker.set_device_memory_bytes(50);
    control::ListSessionsReply now = before;
    now.mutable_sessions(0)->mutable_workers(0)->set_commands_executed(5000);
    now.mutable_sessions(0)->mutable_workers(0)->set_kernel_launches(20);
    const auto shown = top_json({before, now, 2.0});
    EXPECT_EQ(shown["programs"][0]["calls_per_second"], 2000.0);
    EXPECT_EQ(shown["programs"][0]["launches_per_second"], 10.0);
    EXPECT_EQ(shown["memory_used_bytes"], 50);
    EXPECT_NE(top_text({before, now, 2.0}).find("2.0k"), std::string::npos);
    EXPECT_NE(top_text({before, now, 2.0}).find("[" + std::string(18, '#') + "-"),
              std::string::npos);
    now.mutable_sessions(0)->mutable_workers(0)->set_pid(18);
    EXPECT_TRUE(top_json({before, now, 2.0})["programs"][0]["calls_per_second"].is_null());
    now.mutable_sessions(0)->mutable_move()->set_direction("outgoing");
    EXPECT_EQ(top_json({before, now, 2.0})["moves"].size(), 1U);
    now.mutable_sessions(0)->mutable_move()->set_outcome("moved");
    EXPECT_EQ(top_json({before, now, 2.0})["moves"].size(), 0U);
}

}  // namespace
}  // namespace gantry::cli
