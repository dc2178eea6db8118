// The loop hands commands that stand in the ring one behind the other over together, each once and
// in order, whatever stands between them.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "host-daemon/execution/ring/command_loop.h"
#include "tests/unit/worker/loop_ring.h"

namespace gantry::worker {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kBatch = 8;
constexpr auto kJoins = static_cast<std::uint16_t>(wire::ControlOp::kDropImage);
constexpr auto kOther = static_cast<std::uint16_t>(wire::ControlOp::kConfirm);
constexpr std::uint64_t kRefused = 1ull << 40;  ///< In the arguments: it joins no batch.
constexpr std::uint64_t kSpoils = 1ull << 41;   ///< It joins, and its batch is not executed.

/// What was executed, in order, and how much of it together.
struct Collector {
    explicit Collector(std::set<std::uint64_t> skip = {})
        : loop({nullptr,
                [this](const Command& command) { take(command); },
                [] { return false; },
                [](const wire::CommandView&, std::span<const std::byte>) {},
                [this](const std::string& reason) { breach = reason; },
                nullptr,
                [this](std::uint64_t position) { passed.push_back(position); },
                nullptr,
                nullptr,
                nullptr,
                {.size = kBatch,
                 .op = kJoins,
                 .joins = [](std::span<const Command>,
                             const Command& next) { return (word(next) & kRefused) == 0; },
                 .execute = [this](std::span<const Command> batch) { return take_all(batch); }}},
               5) {
        loop.start(ring.memory.get(), LoopRing::kStart, std::move(skip));
        EXPECT_TRUE(loop.hold(std::chrono::steady_clock::now() + 10s));
    }
    ~Collector() { loop.stop(); }

    static std::uint64_t word(const Command& command) {
        std::uint64_t value = 0;
        std::memcpy(&value, command.args.data(), sizeof(value));
        return value;
    }
    /// The trailing bytes say the same as the argument, at a length that differs.
    void take(const Command& command) {
        const std::uint64_t value = word(command);
        EXPECT_EQ(command.trailing.size(), value % 300);
        for (const std::byte byte : command.trailing) {
            EXPECT_EQ(byte, static_cast<std::byte>(value));
        }
        done.push_back(value);
        positions.push_back(command.header.position);
        count.store(done.size());
    }
    bool take_all(std::span<const Command> batch) {
        EXPECT_EQ(batch.size(), kBatch);
        for (const Command& command : batch) {
            EXPECT_EQ(command.header.op, kJoins);
            EXPECT_EQ(command.header.flags, 0u);
            if ((word(command) & kSpoils) != 0) {
                return false;
            }
        }
        std::for_each(batch.begin(), batch.end(), [this](const Command& one) { take(one); });
        together += batch.size();
        return true;
    }
    std::uint64_t send(std::uint16_t op, std::uint64_t value, std::uint32_t flags = 0) {
        return ring.send(op, value, static_cast<std::uint32_t>(value % 300), flags);
    }
    /// That many were executed, no more; the loop is held then, so that its thread writes nothing
    /// of what the test reads.
    [[nodiscard]] bool has_done(std::size_t wanted) {
        for (int i = 0; i < 20'000 && count.load() < wanted; ++i) {
            std::this_thread::sleep_for(500us);
        }
        return loop.hold(std::chrono::steady_clock::now() + 10s) && count.load() == wanted;
    }

    std::vector<std::uint64_t> done;
    std::vector<std::uint64_t> positions;
    std::vector<std::uint64_t> passed;
    std::size_t together = 0;
    std::string breach;
    std::atomic<std::size_t> count{0};
    LoopRing ring;
    CommandLoop loop;
};

TEST(CommandBatches, EachCommandIsExecutedOnceAndInOrder) {
    for (unsigned seed = 1; seed <= 8; ++seed) {
        std::mt19937 random(seed);
        Collector collector;
        std::vector<std::uint64_t> sent;
        std::thread releases([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(seed % 3));
            collector.loop.resume();
        });
        // More than the ring holds, so that it comes round.
        for (std::uint64_t i = 0; i < 60'000; ++i) {
            const auto kind = random() % 200;
            const std::uint64_t value = i | (kind == 0 ? kRefused : kind == 1 ? kSpoils : 0);
            collector.send(kind == 2 ? kOther : kJoins, value,
                           kind == 3 ? std::uint32_t{wire::kCommandWantsReply} : 0u);
            sent.push_back(value);
            if (kind == 4) {
                std::this_thread::sleep_for(20us);  // The loop comes to the end of what there is.
            }
        }
        releases.join();
        ASSERT_TRUE(collector.has_done(sent.size())) << seed;
        ASSERT_EQ(collector.done, sent) << seed;
        EXPECT_GT(collector.together, sent.size() / 10) << seed;
        EXPECT_EQ(collector.together % kBatch, 0u);
        EXPECT_EQ(collector.loop.executed_count(), sent.size());
    }
}

TEST(CommandBatches, WhatAnotherWorkerHasExecutedIsPassed) {
    std::vector<std::uint64_t> positions;
    {
        Collector layout;
        for (std::uint64_t i = 0; i < 10 * kBatch; ++i) {
            positions.push_back(layout.send(kJoins, i));
        }
    }
    const std::set<std::uint64_t> skip = {positions[3], positions[20]};
    Collector collector(skip);
    std::vector<std::uint64_t> left;
    for (std::uint64_t i = 0; i < 10 * kBatch; ++i) {
        EXPECT_EQ(collector.send(kJoins, i), positions[i]);
        if (!skip.contains(positions[i])) {
            left.push_back(i);
        }
    }
    collector.loop.resume();
    ASSERT_TRUE(collector.has_done(left.size()));
    EXPECT_EQ(collector.done, left);
    EXPECT_EQ(collector.passed, std::vector<std::uint64_t>(skip.begin(), skip.end()));
    EXPECT_GE(collector.together, 5 * kBatch);
}

TEST(CommandBatches, AMalformedCommandIsToldOfAtItsTurn) {
    Collector collector;
    constexpr std::size_t kGood = 2 * kBatch + 3;
    for (std::uint64_t i = 0; i < kGood; ++i) {
        collector.send(kJoins, i);
    }
    wire::RingRecord record;
    ASSERT_TRUE(collector.ring.producer.try_reserve(kJoins, 3, 8, 0, &record));
    record.header->args_bytes = 1u << 30;
    record.publish();
    collector.loop.resume();
    ASSERT_TRUE(collector.has_done(kGood));
    collector.loop.resume();
    for (int i = 0; i < 20'000 && collector.loop.next() != record.position; ++i) {
        std::this_thread::sleep_for(500us);
    }
    collector.loop.stop();
    EXPECT_FALSE(collector.breach.empty());
    EXPECT_EQ(collector.loop.next(), record.position);
}

}  // namespace
}  // namespace gantry::worker
