#include "proto/wire/ring.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace gantry::wire {
namespace {

constexpr std::uint64_t kRingBytes = 1 << 16;

struct Fixture {
    Fixture(std::uint64_t start = 0) : memory(new (std::align_val_t{64}) std::byte[kRingBytes]) {
        std::memset(memory, 0, kRingBytes);
        head.store(start);
        producer.attach(memory, kRingBytes, &head, start);
        consumer.attach(memory, kRingBytes, start);
    }
    ~Fixture() { ::operator delete[](memory, std::align_val_t{64}); }
    std::byte* memory;
    std::atomic<std::uint64_t> head{0};
    RingProducer producer;
    RingConsumer consumer;
};

TEST(Layout, FitsAndNeverOverlaps) {
    for (std::uint64_t mib : {8ull, 64ull, 256ull, 4096ull}) {
        for (std::uint32_t count : {1u, 2u, 7u}) {
            std::uint64_t previous_end = 2 * kPageBytes;
            for (std::uint32_t index = 0; index < count; ++index) {
                ChannelLayout layout{};
                if (!compute_layout(mib << 20, count, index, &layout)) {
                    EXPECT_LT((mib << 20) / count, kMinChannelBytes + (1u << 20));
                    continue;
                }
                EXPECT_GE(layout.channel_offset, previous_end);
                EXPECT_LE(layout.end, mib << 20);
                EXPECT_GT(layout.end, layout.pinned);
                EXPECT_EQ(layout.ring_bytes & (layout.ring_bytes - 1), 0u);
                previous_end = layout.end;
            }
        }
    }
}

// Both sides compute it for themselves, of whatever version: it never changes.
TEST(Layout, ItsPartsHaveTheSizesThatTheContractGivesThem) {
    struct Case {
        std::uint64_t region_mib;
        std::uint64_t part_mib;  // Of the ring, and of bulk.
    };
    for (const Case& c : {Case{5, 1}, Case{15, 1}, Case{17, 2}, Case{64, 4}, Case{65, 8},
                          Case{129, 16}, Case{4096, 16}}) {
        ChannelLayout layout{};
        ASSERT_TRUE(compute_layout(c.region_mib << 20, 1, 0, &layout));
        EXPECT_EQ(layout.ring_bytes, c.part_mib << 20) << c.region_mib;
        EXPECT_EQ(layout.bulk_bytes, c.part_mib << 20) << c.region_mib;
        EXPECT_EQ(layout.guest_words, 2 * kPageBytes);
        EXPECT_EQ(layout.host_words, 3 * kPageBytes);
        EXPECT_EQ(layout.replies, 4 * kPageBytes);
        EXPECT_EQ(layout.ring, (4 + kLaneCount) * kPageBytes);
        EXPECT_EQ(layout.bulk, layout.ring + layout.ring_bytes);
        EXPECT_EQ(layout.pinned, layout.bulk + layout.bulk_bytes);
        EXPECT_EQ(layout.pinned_bytes, (c.region_mib << 20) - layout.pinned);
    }
}

TEST(Layout, RefusesWhatDoesNotFit) {
    ChannelLayout layout{};
    EXPECT_FALSE(compute_layout(0, 1, 0, &layout));
    EXPECT_FALSE(compute_layout(1 << 20, 1, 0, &layout));
    EXPECT_FALSE(compute_layout(64 << 20, 0, 0, &layout));
    EXPECT_FALSE(compute_layout(64 << 20, 2, 2, &layout));
    EXPECT_FALSE(compute_layout(~0ull, kMaxChannels + 1, 0, &layout));
}

TEST(Ring, ARecordHasNothingOfWhatStoodInItsPlace) {
    Fixture f;
    std::memset(f.memory, 0xff, kRingBytes);
    RingRecord record;
    ASSERT_TRUE(f.producer.try_reserve(100, 3, 8, 16, &record));
    const CommandHeader& header = *record.header;
    EXPECT_EQ(header.bytes, record_bytes(8, 16));
    EXPECT_EQ(header.op, 100);
    EXPECT_EQ(header.lane, 3);
    EXPECT_EQ(header.context, 0u);
    EXPECT_EQ(header.flags, 0u);
    EXPECT_EQ(header.args_bytes, 8u);
    EXPECT_EQ(header.trailing_bytes, 16u);
    EXPECT_EQ(header.bulk_page, 0u);
    EXPECT_EQ(header.bulk_pages, 0u);
}

TEST(Ring, CarriesRecordsAcrossTheEndInOrder) {
    Fixture f(7ull << kGenerationShift);
    CommandView view;
    const char* reason = nullptr;
    for (std::uint32_t i = 0; i < 10'000; ++i) {
        const std::uint32_t trailing = (i * 37) % 3000;
        RingRecord record;
        ASSERT_TRUE(f.producer.try_reserve(100, 3, 4, trailing, &record));
        std::memcpy(record.args(), &i, 4);
        std::memset(record.trailing(), static_cast<int>(i & 0xff), trailing);
        EXPECT_EQ(f.consumer.peek(&view, &reason), PeekStatus::kEmpty);
        record.publish();
        ASSERT_EQ(f.consumer.peek(&view, &reason), PeekStatus::kReady);
        EXPECT_EQ(view.trailing_bytes, trailing);
        std::uint32_t got = 0;
        std::memcpy(&got, view.args, 4);
        EXPECT_EQ(got, i);
        if (trailing != 0) {
            EXPECT_EQ(view.trailing[trailing - 1], static_cast<std::byte>(i & 0xff));
        }
        f.consumer.advance(view);
        f.head.store(f.consumer.next());
    }
}

TEST(Ring, RefusesToOverrunTheConsumer) {
    Fixture f;
    RingRecord record;
    int reserved = 0;
    while (f.producer.try_reserve(100, 0, 8, 1000, &record)) {
        record.publish();
        ++reserved;
    }
    EXPECT_EQ(static_cast<std::uint64_t>(reserved),
              (kRingBytes - kCallbackRoomBytes) / record_bytes(8, 1000));
    CommandView view;
    const char* reason = nullptr;
    ASSERT_EQ(f.consumer.peek(&view, &reason), PeekStatus::kReady);
    f.consumer.advance(view);
    EXPECT_FALSE(f.producer.try_reserve(100, 0, 8, 1000, &record));
    f.head.store(f.consumer.next());
    EXPECT_TRUE(f.producer.try_reserve(100, 0, 8, 1000, &record));
}

/// Records of up to a quarter of the ring, taken as seldom as they can be: the pads at the ring's
/// end are as large as they get, and what was not read yet must still be there.
TEST(Ring, NeverOverrunsUnreadRecordsWithPadsOfAnySize) {
    std::mt19937 random(20'261'128);
    for (int lap = 0; lap < 50; ++lap) {
        Fixture f(random() % kRingBytes / kRecordAlign * kRecordAlign);
        CommandView view;
        const char* reason = nullptr;
        std::uint32_t written = 0;
        std::uint32_t read = 0;
        for (int step = 0; step < 400; ++step) {
            RingRecord record;
            const auto trailing = static_cast<std::uint32_t>(random() % (kRingBytes / 4 - 256));
            // A callback's may use the whole ring, so that no spare room hides what is not counted.
            if (f.producer.try_reserve(static_cast<std::uint16_t>(ControlOp::kCallbackDone), 0, 4,
                                       trailing, &record)) {
                ASSERT_LE(f.producer.tail() - f.head.load(), kRingBytes);
                std::memcpy(record.args(), &written, 4);
                std::memset(record.trailing(), static_cast<int>(written & 0xff), trailing);
                record.publish();
                ++written;
                continue;
            }
            ASSERT_NE(read, written) << "a record of a quarter fits an empty ring";
            ASSERT_EQ(f.consumer.peek(&view, &reason), PeekStatus::kReady) << reason;
            std::uint32_t got = 0;
            std::memcpy(&got, view.args, 4);
            ASSERT_EQ(got, read);
            const std::vector want(view.trailing_bytes, static_cast<std::byte>(read & 0xff));
            ASSERT_TRUE(want.empty() || std::memcmp(view.trailing, want.data(), want.size()) == 0);
            f.consumer.advance(view);
            f.head.store(f.consumer.next());
            ++read;
        }
        ASSERT_GT(read, 10U);
    }
}

TEST(Ring, KeepsRoomForTheCommandsOfHostCallbacks) {
    Fixture f;
    RingRecord record;
    while (f.producer.try_reserve(100, 0, 8, 1000, &record)) {
        record.publish();
    }
    const auto done = static_cast<std::uint16_t>(ControlOp::kCallbackDone);
    std::uint64_t fitted = 0;
    while (f.producer.try_reserve(done, 0, 8, 0, &record)) {
        record.publish();
        ++fitted;
    }
    EXPECT_GE(fitted, kCallbackRoomBytes / record_bytes(8, 0));
}

TEST(Ring, MalformedHeadersAreNamedNotFollowed) {
    struct Case {
        std::uint32_t bytes, args, trailing;
        std::uint16_t lane;
    };
    const Case cases[] = {{0, 0, 0, 0},           {63, 0, 0, 0},        {1u << 20, 0, 0, 0},
                          {64, 4096, 0, 0},       {64, 8, ~0u, 0},      {64, ~0u, 8, 0},
                          {64, 8, 8, kLaneCount}, {kRingBytes, 8, 8, 0}};
    for (const Case& c : cases) {
        Fixture f;
        auto* header = reinterpret_cast<CommandHeader*>(f.memory);
        header->bytes = c.bytes;
        header->args_bytes = c.args;
        header->trailing_bytes = c.trailing;
        header->lane = c.lane;
        header->op = 100;
        header->publish.store(1);
        CommandView view;
        const char* reason = nullptr;
        EXPECT_EQ(f.consumer.peek(&view, &reason), PeekStatus::kMalformed);
        EXPECT_NE(reason, nullptr);
    }
}

TEST(Ring, ManyProducersKeepEachThreadsOrder) {
    Fixture f;
    constexpr std::uint32_t kThreads = 4;
    constexpr std::uint32_t kEach = 20'000;
    std::vector<std::jthread> threads;
    for (std::uint32_t t = 0; t < kThreads; ++t) {
        threads.emplace_back([&f, t] {
            for (std::uint32_t i = 0; i < kEach; ++i) {
                RingRecord record;
                while (!f.producer.try_reserve(100, static_cast<std::uint16_t>(t), 4, i % 200,
                                               &record)) {
                    std::this_thread::yield();
                }
                std::memcpy(record.args(), &i, 4);
                record.publish();
            }
        });
    }
    std::uint32_t next[kThreads] = {};
    for (std::uint32_t seen = 0; seen < kThreads * kEach;) {
        CommandView view;
        const char* reason = nullptr;
        const PeekStatus status = f.consumer.peek(&view, &reason);
        ASSERT_NE(status, PeekStatus::kMalformed) << reason;
        if (status == PeekStatus::kEmpty) {
            std::this_thread::yield();
            continue;
        }
        std::uint32_t got = 0;
        std::memcpy(&got, view.args, 4);
        ASSERT_EQ(got, next[view.lane]++);
        f.consumer.advance(view);
        f.head.store(f.consumer.next(), std::memory_order_release);
        ++seen;
    }
}

}  // namespace
}  // namespace gantry::wire
