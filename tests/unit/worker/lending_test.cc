// The loop is lent while a call waits on its thread: a short wait keeps it, a long one hands it
// over.
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <random>
#include <set>
#include <thread>

#include "host-daemon/execution/ring/command_loop.h"
#include "tests/unit/worker/loop_ring.h"

namespace gantry::worker {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

constexpr std::uint64_t kWaitsForGate = ~0ull;  // Arguments of commands that wait ...
constexpr std::uint64_t kWaits = 1ull << 32;    // ... and of those that do for some microseconds.

/// A loop whose commands may wait on its thread, as calls do inside a driver.
struct Lender {
    Lender()
        : loop({nullptr, [this](const Command& command) { execute(command); }, [] { return false; },
                [](const wire::CommandView&, std::span<const std::byte>) {},
                [](const std::string&) {}, nullptr, nullptr, [this] { return wait_here(); },
                nullptr, [this] { return awake_us.load(); }},
               5) {
        loop.start(ring.memory.get(), LoopRing::kStart, {});
    }
    ~Lender() {
        open_gate();
        loop.stop();
    }
    void send(std::uint64_t argument) {
        ring.send(static_cast<std::uint16_t>(wire::ControlOp::kDropImage), argument);
    }
    // The loop's thread, whichever it is: so the members without a lock need none.
    void execute(const Command& command) {
        std::uint64_t argument = 0;
        std::memcpy(&argument, command.args.data(), 8);
        arguments.push_back(argument);
        threads.insert(std::this_thread::get_id());
        if (argument == kWaitsForGate || (argument & kWaits) != 0) {
            waiting = argument;
        }
        executed.store(arguments.size());
    }
    CommandLoop::Waited wait_here() {
        if (waiting == 0) {
            return CommandLoop::Waited::kNot;
        }
        const std::uint64_t wanted = std::exchange(waiting, 0);
        away.fetch_add(1);
        loop.lend();
        if (wanted == kWaitsForGate) {
            std::unique_lock lock(mutex);
            changed.wait(lock, [this] { return is_open; });
        } else {
            std::this_thread::sleep_for(std::chrono::microseconds(wanted & 0xffff));
        }
        away.fetch_sub(1);
        const bool is_back = loop.take_back();
        (is_back ? kept : lost).fetch_add(1);
        return is_back ? CommandLoop::Waited::kHere : CommandLoop::Waited::kReplaced;
    }
    void open_gate() {
        std::lock_guard lock(mutex);
        is_open = true;
        changed.notify_all();
    }
    void close_gate() {
        std::lock_guard lock(mutex);
        is_open = false;
    }
    template <typename Condition>
    static bool comes(Condition condition) {
        for (int i = 0; i < 20'000 && !condition(); ++i) {
            std::this_thread::sleep_for(500us);
        }
        return condition();
    }

    std::vector<std::uint64_t> arguments;
    std::set<std::thread::id> threads;
    std::uint64_t waiting = 0;
    std::atomic<std::size_t> executed{0};
    std::atomic<std::uint32_t> awake_us{0};
    std::atomic<int> away{0};
    std::atomic<int> kept{0};
    std::atomic<int> lost{0};
    std::mutex mutex;
    std::condition_variable changed;
    bool is_open = false;
    LoopRing ring;
    CommandLoop loop;
};

/// Whoever is answered asks again at once: to wake the loop then would take longer than the rest.
TEST(Lending, TheLoopStaysAwakeWhileACallWaitsElsewhere) {
    Lender lender;
    const auto sleeps = [&lender] {
        return lender.ring.memory->host_words().consumer_sleeps.load() != 0;
    };
    ASSERT_TRUE(Lender::comes(sleeps));
    lender.awake_us = 60'000'000;
    lender.close_gate();
    lender.send(kWaitsForGate);
    ASSERT_TRUE(Lender::comes([&] { return lender.away == 1; }));
    lender.send(1);
    ASSERT_TRUE(Lender::comes([&] { return lender.executed == 2; }));
    for (int i = 0; i < 100; ++i) {
        ASSERT_FALSE(sleeps()) << "after " << i << " ms";
        std::this_thread::sleep_for(1ms);
    }
    lender.awake_us = 0;
    EXPECT_TRUE(Lender::comes(sleeps));
}

TEST(Lending, AWaitThatLastsHandsTheLoopOver) {
    Lender lender;
    std::size_t sent = 0;
    for (int round = 0; round < 10; ++round) {
        lender.close_gate();
        lender.send(kWaitsForGate);
        ++sent;
        ASSERT_TRUE(Lender::comes([&] { return lender.away == 1; }));
        for (std::uint64_t i = 0; i < 100; ++i) {
            lender.send(i);
            ++sent;
        }
        ASSERT_TRUE(Lender::comes([&] { return lender.executed == sent; }));
        EXPECT_EQ(lender.away, 1);
        lender.open_gate();
        ASSERT_TRUE(Lender::comes([&] { return lender.away == 0 && lender.lost == round + 1; }));
    }
    lender.loop.stop();
    EXPECT_EQ(lender.threads.size(), 2u);
    EXPECT_EQ(lender.kept, 0);
}

TEST(Lending, ShortWaitsKeepTheLoopAndNothingIsLostOrDoneTwice) {
    Lender lender;
    std::mt19937 random(7);
    constexpr std::size_t kCommands = 3000;
    std::vector<std::uint64_t> sent;
    for (std::size_t i = 0; i < kCommands; ++i) {
        // No wait, one shorter than a nap of the stand-in, or one longer.
        const auto kind = random() % 8;
        sent.push_back(kind == 0 ? kWaits | (random() % 400) : kind == 1 ? kWaits : i);
        lender.send(sent.back());
        if (random() % 4 == 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 100));
        }
    }
    ASSERT_TRUE(Lender::comes([&] { return lender.executed == kCommands; }));
    lender.loop.stop();
    EXPECT_EQ(lender.arguments, sent);
    EXPECT_GT(lender.kept, 0);
}

TEST(Lending, AHoldStopsALoopThatIsLent) {
    Lender lender;
    lender.send(kWaitsForGate);
    ASSERT_TRUE(Lender::comes([&] { return lender.away == 1; }));
    ASSERT_TRUE(lender.loop.hold(steady_clock::now() + 5s));
    lender.send(1);
    std::this_thread::sleep_for(5ms);
    EXPECT_EQ(lender.executed, 1u);
    lender.loop.seal();
    lender.open_gate();  // Whoever waited does not get the loop back.
    ASSERT_TRUE(Lender::comes([&] { return lender.lost == 1; }));
    EXPECT_EQ(lender.executed, 1u);
    lender.loop.resume();
    ASSERT_TRUE(Lender::comes([&] { return lender.executed == 2; }));
}

TEST(Lending, AStopWaitsForWhatWaits) {
    Lender lender;
    lender.send(kWaitsForGate);
    ASSERT_TRUE(Lender::comes([&] { return lender.away == 1; }));
    std::thread opener([&] {
        std::this_thread::sleep_for(20ms);
        lender.open_gate();
    });
    lender.loop.stop();
    EXPECT_EQ(lender.away, 0);
    opener.join();
}

}  // namespace
}  // namespace gantry::worker
