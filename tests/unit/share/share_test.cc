// The arbiter of a GPU and its workers' seats, by shared memory: who can write what, order, the
// bound on waiting, weights, and what lies cost.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "host-daemon/execution/base/share_seat.h"
#include "host-daemon/scheduling/launch_times.h"
#include "host-daemon/supervisor/share/gpu_arbiter.h"

namespace gantry {
namespace {

using scheduling::Permit;
using scheduling::Share;
using scheduling::Time;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using supervisor::GpuArbiter;
using worker::LaunchTurn;
using worker::ShareSeat;

constexpr seconds kPatience{20};  // Bounds a hang; decides nothing.

Time now() { return std::chrono::steady_clock::now().time_since_epoch(); }

template <typename Condition>
bool comes_true(const Condition& condition) {
    const Time end = now() + kPatience;
    while (!condition()) {
        if (now() > end) {
            return false;
        }
        std::this_thread::sleep_for(microseconds{100});
    }
    return true;
}

std::unique_ptr<GpuArbiter> make_arbiter(Time starvation = milliseconds{100},
                                         bool fills_gaps = false) {
    scheduling::Settings settings;
    settings.starvation = starvation;
    settings.fills_gaps = fills_gaps;
    // Long ones: this machine is late now and then.
    settings.gap_max = seconds{20};
    settings.fill_margin = fills_gaps ? Time{milliseconds{100}} : settings.fill_margin;
    auto arbiter = GpuArbiter::start(settings);
    EXPECT_TRUE(arbiter.ok());
    return std::move(*arbiter);
}

struct Worker {
    Worker(GpuArbiter& arbiter, const std::string& session) {
        auto made = arbiter.join(session);
        EXPECT_TRUE(made.ok());
        slot = made->slot;
        seat = std::move(*ShareSeat::join(slot, made->page, made->claim, std::move(made->bell)));
        turn = std::make_unique<LaunchTurn>(*seat);
        page = std::move(made->page);
        claim = std::move(made->claim);
    }
    [[nodiscard]] Permit permit() const { return seat->verdict().permit; }

    std::uint32_t slot = 0;
    std::unique_ptr<ShareSeat> seat;
    std::unique_ptr<LaunchTurn> turn;
    control::UniqueFd page;
    control::UniqueFd claim;
};

/// Has as many kernels of `kernel` at the driver as it may, until it is told to stop: while there
/// is one it has the GPU, however late this machine wakes its thread.
class Load {
public:
    Load(Worker& worker, Time kernel) : thread_([this, &worker, kernel] { run(worker, kernel); }) {}
    ~Load() { stop(); }
    void stop() {
        stops_.store(true);
        if (thread_.joinable()) {
            thread_.join();
        }
    }
    [[nodiscard]] std::uint64_t launches() const { return launches_.load(); }

private:
    void run(Worker& worker, Time kernel) {
        int queued = 0;
        while (!stops_.load()) {
            const scheduling::Verdict seen = worker.seat->verdict();
            while (queued < kDepth && worker.turn->may_launch(kernel, now())) {
                worker.turn->launched(kernel);
                ++queued;
            }
            if (queued == 0) {
                worker.seat->wait(seen, milliseconds{1});
                continue;
            }
            std::this_thread::sleep_for(kernel);
            --queued;
            ++launches_;
            worker.turn->ended(kernel);
        }
        for (; queued > 0; --queued) {
            worker.turn->ended(kernel);
        }
        worker.turn->has_no_more();
    }

    static constexpr int kDepth = 4;
    std::atomic<bool> stops_{false};
    std::atomic<std::uint64_t> launches_{0};
    std::thread thread_;
};

scheduling::Arbiter::Standing standing(GpuArbiter& arbiter, const std::string& session) {
    for (const auto& one : arbiter.status().sessions) {
        if (one.session == session) {
            return one.standing;
        }
    }
    ADD_FAILURE() << "no session " << session;
    return {};
}

TEST(ArbiterPage, AWorkerWritesNothingButItsClaim) {
    const auto arbiter = make_arbiter();
    const Worker worker(*arbiter, "a");
    EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, worker.page.get(), 0),
              MAP_FAILED);
    void* const read_only = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, worker.page.get(), 0);
    ASSERT_NE(read_only, MAP_FAILED);
    EXPECT_NE(mprotect(read_only, 4096, PROT_READ | PROT_WRITE), 0);
    munmap(read_only, 4096);
    char byte = 1;
    EXPECT_LT(pwrite(worker.page.get(), &byte, 1, 0), 0);
    EXPECT_NE(ftruncate(worker.page.get(), 0), 0);
    // gantryd reads it where it is mapped: it must not be cut.
    EXPECT_NE(ftruncate(worker.claim.get(), 0), 0);
    EXPECT_NE(fcntl(worker.claim.get(), F_ADD_SEALS, F_SEAL_WRITE), 0);
}

TEST(GpuArbiter, NobodyIsHeldWhereNobodyHasAShare) {
    const auto arbiter = make_arbiter();
    const Worker a(*arbiter, "a");
    arbiter->set_share("a", Share{9, 100});
    EXPECT_TRUE(a.seat->is_open());  // Alone.
    arbiter->set_share("a", std::nullopt);
    const Worker b(*arbiter, "b");
    b.seat->tell({true, true, {}, {}});
    a.seat->tell({true, true, {}, {}});
    std::this_thread::sleep_for(milliseconds{50});
    EXPECT_TRUE(a.seat->is_open() && b.seat->is_open());
    arbiter->set_share("b", Share{9, 100});
    EXPECT_TRUE(comes_true([&] { return a.permit() == Permit::kHold; }));
    EXPECT_EQ(b.permit(), Permit::kTold);
    arbiter->leave(b.slot);
    EXPECT_TRUE(comes_true([&] { return a.seat->is_open(); }));
}

TEST(GpuArbiter, ProgramsOfOneSessionDoNotHoldEachOther) {
    const auto arbiter = make_arbiter();
    arbiter->set_share("a", Share{4, 100});
    Worker first(*arbiter, "a");
    Worker second(*arbiter, "a");
    Worker other(*arbiter, "b");
    first.seat->tell({true, true, {}, {}});
    EXPECT_TRUE(comes_true([&] { return other.permit() == Permit::kHold; }));
    EXPECT_EQ(first.permit(), Permit::kWindow);
    EXPECT_EQ(second.permit(), Permit::kWindow);
}

TEST(GpuArbiter, OneBelowWaitsUntilTheOneAboveRests) {
    const auto arbiter = make_arbiter();
    arbiter->set_share("high", Share{9, 100});
    Worker high(*arbiter, "high");
    Worker low(*arbiter, "low");
    Load load(low, microseconds{100});
    EXPECT_TRUE(comes_true([&] { return load.launches() > 10; }));
    high.turn->launched(std::nullopt);
    EXPECT_TRUE(comes_true([&] { return low.permit() == Permit::kHold; }));
    // What it gets from now on are the windows of one that starves.
    EXPECT_TRUE(comes_true([&] { return standing(*arbiter, "low").windows_once >= 3; }));
    const auto held = standing(*arbiter, "low");
    EXPECT_GE(held.wait_max, milliseconds{100});
    high.turn->ended(std::nullopt);
    const std::uint64_t before = load.launches();
    EXPECT_TRUE(comes_true([&] { return load.launches() > before + 20; }));
    EXPECT_EQ(standing(*arbiter, "high").windows_once, 0U);
}

TEST(GpuArbiter, AWindowForOneThatStarvesIsGivenOnce) {
    const auto arbiter = make_arbiter(milliseconds{50});
    arbiter->set_share("high", Share{9, 100});
    Worker high(*arbiter, "high");
    Worker low(*arbiter, "low");
    high.turn->launched(std::nullopt);
    EXPECT_TRUE(comes_true([&] { return low.permit() == Permit::kHold; }));
    EXPECT_FALSE(low.turn->may_launch(microseconds{150}, now()));
    ASSERT_TRUE(comes_true([&] { return low.permit() == Permit::kOnce; }));
    EXPECT_TRUE(low.turn->may_launch(microseconds{150}, now()));
    low.turn->launched(microseconds{150});
    // The window has no room for another, and when it has ended it is over.
    EXPECT_FALSE(low.turn->may_launch(microseconds{150}, now()));
    low.turn->ended(microseconds{150});
    const bool again =
        low.permit() == Permit::kOnce && low.turn->may_launch(microseconds{150}, now());
    EXPECT_FALSE(again);
    EXPECT_TRUE(comes_true([&] { return low.permit() == Permit::kHold; }));
}

/// Its part of the time of both, in percent, by the arbiter's clock.
double part_of(GpuArbiter& arbiter, const std::string& one, const std::string& other) {
    const auto first = static_cast<double>(standing(arbiter, one).charged.count());
    const auto second = static_cast<double>(standing(arbiter, other).charged.count());
    return 100 * first / (first + second);
}

TEST(GpuArbiter, EqualsGetWhatTheyWeigh) {
    const auto arbiter = make_arbiter();
    arbiter->set_share("a", Share{4, 75});
    arbiter->set_share("b", Share{4, 25});
    Worker a(*arbiter, "a");
    Worker b(*arbiter, "b");
    Load of_a(a, microseconds{100});
    Load of_b(b, microseconds{100});
    std::this_thread::sleep_for(seconds{2});
    EXPECT_NEAR(part_of(*arbiter, "a", "b"), 75, 3);
    EXPECT_GT(of_b.launches(), 100U);
    EXPECT_GT(of_a.launches(), of_b.launches());
}

TEST(GpuArbiter, OneThatAlwaysClaimsGetsNoMoreThanItsPart) {
    const auto arbiter = make_arbiter();
    arbiter->set_share("a", Share{4, 100});
    Worker a(*arbiter, "a");
    Worker liar(*arbiter, "liar");
    liar.seat->tell({true, true, {}, {}});
    Load of_a(a, microseconds{100});
    std::this_thread::sleep_for(seconds{2});
    EXPECT_NEAR(part_of(*arbiter, "a", "liar"), 50, 5);
    EXPECT_GT(of_a.launches(), 100U);
}

TEST(GpuArbiter, TheSwitchOpensEverything) {
    const auto arbiter = make_arbiter();
    arbiter->set_share("high", Share{9, 100});
    Worker high(*arbiter, "high");
    Worker low(*arbiter, "low");
    high.turn->launched(std::nullopt);
    EXPECT_TRUE(comes_true([&] { return low.permit() == Permit::kHold; }));
    arbiter->set_enabled(false);
    EXPECT_TRUE(low.seat->is_open() && high.seat->is_open());
    EXPECT_FALSE(arbiter->status().arbitrates);
    arbiter->set_enabled(true);
    EXPECT_TRUE(comes_true([&] { return low.permit() == Permit::kHold; }));
}

/// What it launched has ended, and it says that it will have nothing for so long.
void rests_for(Worker& worker, Time gap) {
    worker.turn->expects(gap);
    worker.turn->ended(Time{});
}

TEST(GpuArbiter, WhatFitsIntoAGapIsLetInUntilTheHolderIsBack) {
    const auto arbiter = make_arbiter(seconds{10}, true);
    arbiter->set_share("high", Share{9, 100});
    Worker high(*arbiter, "high");
    Worker low(*arbiter, "low");
    high.turn->launched(Time{});
    EXPECT_TRUE(comes_true([&] { return low.permit() == Permit::kHold; }));
    EXPECT_FALSE(low.turn->may_launch(microseconds{100}, now()));
    rests_for(high, seconds{5});
    ASSERT_TRUE(comes_true([&] { return low.permit() == Permit::kFill; }));
    EXPECT_FALSE(low.turn->may_launch(std::nullopt, now()));  // Nobody knows how long it takes.
    EXPECT_FALSE(low.turn->may_launch(seconds{6}, now()));
    ASSERT_TRUE(comes_true([&] { return low.turn->may_launch(microseconds{100}, now()); }));
    EXPECT_EQ(low.permit(), Permit::kFill);
    // Shortly before the end nothing begins, whatever the arbiter sees of it.
    EXPECT_FALSE(low.turn->may_launch(microseconds{100}, now() + seconds{5}));
    low.turn->launched(microseconds{100});
    high.turn->launched(Time{});
    EXPECT_TRUE(comes_true([&] { return low.permit() == Permit::kHold; }));
    EXPECT_FALSE(low.turn->may_launch(microseconds{100}, now()));
    EXPECT_GE(standing(*arbiter, "low").fills, 1U);
    EXPECT_EQ(standing(*arbiter, "low").windows_once, 0U);
}

TEST(GpuArbiter, OneProgramOfASessionFillsAGap) {
    const auto arbiter = make_arbiter(seconds{10}, true);
    arbiter->set_share("high", Share{9, 100});
    Worker high(*arbiter, "high");
    Worker first(*arbiter, "low");
    Worker second(*arbiter, "low");
    high.turn->launched(Time{});
    EXPECT_TRUE(comes_true([&] { return second.permit() == Permit::kHold; }));
    first.seat->tell({true, false, microseconds{100}, {}});
    second.seat->tell({true, false, microseconds{100}, {}});
    rests_for(high, seconds{5});
    ASSERT_TRUE(comes_true(
        [&] { return first.permit() == Permit::kFill || second.permit() == Permit::kFill; }));
    EXPECT_NE(first.permit(), second.permit());
}

TEST(GpuArbiter, OneThatLeavesAGapUnusedGetsNoneForATime) {
    const auto arbiter = make_arbiter(seconds{10}, true);
    arbiter->set_share("high", Share{9, 100});
    Worker high(*arbiter, "high");
    Worker liar(*arbiter, "liar");
    Worker other(*arbiter, "other");
    high.turn->launched(Time{});
    EXPECT_TRUE(comes_true([&] { return liar.permit() == Permit::kHold; }));
    liar.seat->tell(
        {true, false, microseconds{200}, {}});  // The longest that fits; it never comes.
    other.seat->tell({true, false, microseconds{100}, {}});
    rests_for(high, seconds{10});
    EXPECT_TRUE(comes_true([&] { return other.permit() == Permit::kFill; }));
}

TEST(LaunchTimes, GapsAreKnownByTheLastTwoLaunches) {
    scheduling::LaunchTimes times;
    scheduling::GapWatch watch(times);
    Time at{};
    const auto round = [&](std::uint64_t before, std::uint64_t key, Time gap) {
        watch.begins(before, at);
        watch.begins(key, at += microseconds{10});
        watch.ends(at += microseconds{10});
        const Time expected = watch.expected();
        at += gap;
        return expected;
    };
    for (int i = 0; i < 4; ++i) {
        EXPECT_EQ(round(1, 9, microseconds{100}), Time{});
    }
    watch.begins(7, at);
    watch.forget();
    // The fourth gap has ended, and both keys are known.
    EXPECT_EQ(round(1, 9, microseconds{500}), microseconds{100});
    for (int i = 0; i < 4; ++i) {
        EXPECT_EQ(round(2, 9, microseconds{500}), microseconds{100});  // By the last one alone.
    }
    watch.begins(3, at);
    watch.forget();
    EXPECT_EQ(round(2, 9, microseconds{500}), microseconds{500});
    // What was held is no gap of the program's.
    for (int i = 0; i < 4; ++i) {
        round(5, 6, microseconds{50});
        watch.forget();
    }
    EXPECT_EQ(round(5, 6, microseconds{50}), Time{});
}

TEST(ShareSeat, WhoWaitsForNobodyGoesOn) {
    auto arbiter = make_arbiter(milliseconds{20});
    arbiter->set_share("high", Share{9, 100});
    Worker high(*arbiter, "high");
    Worker low(*arbiter, "low");
    high.turn->launched(std::nullopt);
    EXPECT_TRUE(comes_true([&] { return low.permit() == Permit::kHold; }));
    const Time begun = now();
    // The time that it is told goes on, the arbiter's does not: as if gantryd had been stopped.
    EXPECT_FALSE(low.turn->may_launch(std::nullopt, begun));
    if (low.permit() == Permit::kHold) {
        EXPECT_TRUE(low.turn->may_launch(std::nullopt, begun + low.seat->patience() + Time{1}));
    }
    arbiter.reset();  // An orderly end opens all.
    EXPECT_TRUE(low.seat->is_open());
}

}  // namespace
}  // namespace gantry
