#include "proto/wire/mirror/mirror.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace gantry::wire {
namespace {

constexpr std::uint64_t kRegionBytes = 8ull << 20;

struct Region {
    Region() : memory(new (std::align_val_t{kPageBytes}) std::byte[kRegionBytes]()) {
        channel.region = memory;
        EXPECT_TRUE(compute_layout(kRegionBytes, 1, 0, &channel.layout));
    }
    ~Region() { ::operator delete[](memory, std::align_val_t{kPageBytes}); }
    std::byte* memory;
    MappedChannel channel;
};

/// Two regions and the mirrors between them, with a pipe cut into arbitrary pieces.
struct Pair {
    Pair()
        : guest_end(guest.channel, [this](std::span<const std::byte> f) { return add(&up, f); }),
          host_end(host.channel, 0,
                   [this](std::span<const std::byte> f) { return add(&down, f); }) {
        ChannelClaim& claim = guest.channel.guest_directory()->claims[0];
        claim.generation = 3;
        claim.state.store(ClaimState::kOpen);
        start = 3ull << kGenerationShift;
        producer.attach(guest.channel.ring(), guest.channel.layout.ring_bytes,
                        &guest.channel.host_words()->head, start);
        guest.channel.host_words()->head.store(start);
        host.channel.host_words()->head.store(start);
        consumer.attach(host.channel.ring(), host.channel.layout.ring_bytes, start);
    }
    static bool add(std::vector<std::byte>* to, std::span<const std::byte> frame) {
        to->insert(to->end(), frame.begin(), frame.end());
        return true;
    }
    bool carry() {
        guest_end.pump();
        bool good =
            deliver(&up, [this](std::span<const std::byte> b) { return host_end.receive(b); });
        host_end.pump();
        return deliver(&down,
                       [this](std::span<const std::byte> b) { return guest_end.receive(b); }) &&
               good;
    }
    template <typename Receive>
    bool deliver(std::vector<std::byte>* from, Receive receive) {
        std::vector<std::byte> bytes;
        bytes.swap(*from);
        for (std::size_t done = 0; done < bytes.size();) {
            const std::size_t take =
                std::min<std::size_t>(1 + random() % 5000, bytes.size() - done);
            if (!receive(std::span(bytes).subspan(done, take))) {
                return false;
            }
            done += take;
        }
        return true;
    }

    Region guest, host;
    std::vector<std::byte> up, down;
    GuestMirror guest_end;
    HostMirror host_end;
    RingProducer producer;
    RingConsumer consumer;
    std::uint64_t start = 0;
    std::mt19937 random{42};
};

TEST(Mirror, CarriesCommandsRepliesAndBulkInOrder) {
    Pair pair;
    ASSERT_TRUE(pair.carry());
    std::uint64_t executed = 0;
    for (std::uint32_t i = 0; i < 4000; ++i) {
        RingRecord record;
        const auto trailing = static_cast<std::uint32_t>(pair.random() % 3000);
        ASSERT_TRUE(pair.producer.try_reserve(100, i % kLaneCount, 4, trailing, &record));
        std::memcpy(record.args(), &i, 4);
        std::memset(record.trailing(), static_cast<int>(i), trailing);
        record.publish();
        if (i % 5 != 0) {
            continue;
        }
        ASSERT_TRUE(pair.carry());
        CommandView view;
        const char* reason = nullptr;
        while (pair.consumer.peek(&view, &reason) == PeekStatus::kReady) {
            std::uint32_t number = 0;
            std::memcpy(&number, view.args, 4);
            ASSERT_EQ(number, executed++);
            ReplyPage* reply = pair.host.channel.reply(view.lane);
            std::memset(pair.host.channel.bulk() + 4096, static_cast<int>(number), 5000);
            std::memcpy(reply->payload, &number, 4);
            reply->payload_bytes = 4;
            reply->bulk_offset = 4096;
            reply->bulk_bytes = 5000;
            reply->seq.store(view.position + 1, std::memory_order_release);
            pair.consumer.advance(view);
            pair.host.channel.host_words()->head.store(pair.consumer.next());
        }
        ASSERT_TRUE(pair.carry());
        const ReplyPage* reply = pair.guest.channel.reply(i % kLaneCount);
        EXPECT_EQ(reply->seq.load(), record.position + 1);
        EXPECT_EQ(std::memcmp(reply->payload, &i, 4), 0);
        EXPECT_EQ(pair.guest.channel.bulk()[4096 + 4999], static_cast<std::byte>(i));
    }
    EXPECT_GT(executed, 3900u);
}

TEST(Mirror, PinnedBytesChangedOnBothSidesMeet) {
    Pair pair;
    ASSERT_TRUE(pair.carry());
    pair.guest.channel.guest_words()->pinned_high_water.store(1 << 20);
    std::byte* at_guest = pair.guest.channel.pinned();
    std::byte* at_host = pair.host.channel.pinned();
    for (int round = 0; round < 50; ++round) {
        // Even bytes belong to the guest, odd ones to the host, in the same pages.
        for (int i = 0; i < 300; ++i) {
            const std::size_t where = pair.random() % (1 << 20);
            const auto value = static_cast<std::byte>(pair.random());
            (where % 2 == 0 ? at_guest : at_host)[where] = value;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        ASSERT_TRUE(pair.carry());
        ASSERT_TRUE(pair.carry());
    }
    EXPECT_EQ(std::memcmp(at_guest, at_host, 1 << 20), 0);
}

std::vector<FrameKind> kinds_of(std::span<const std::byte> bytes) {
    std::vector<FrameKind> kinds;
    FrameReader reader;
    EXPECT_TRUE(reader.feed(bytes, [&](const FrameHeader& header, std::span<const std::byte>) {
        kinds.push_back(header.kind);
        return true;
    }));
    return kinds;
}

// Who is told of completed work sees its events done, and who sees an event done may read what the
// work has written.
TEST(Mirror, EventsComeBehindTheBytesAndBeforeTheAnswersOfTheirTime) {
    Pair pair;
    ASSERT_TRUE(pair.carry());
    pair.guest.channel.guest_words()->pinned_high_water.store(8192);
    ASSERT_TRUE(pair.carry());
    HostWords& host = *pair.host.channel.host_words();
    const HostWords& guest = *pair.guest.channel.host_words();
    EXPECT_EQ(guest.shows_events.load(), 0u);
    for (std::uint64_t round = 1; round <= 3; ++round) {
        pair.host.channel.pinned()[100] = static_cast<std::byte>(round);
        host.shows_events.store(1);
        host.late_errors.store(static_cast<std::uint32_t>(round));
        host.event_done[9].store(pair.start + round * 64);
        host.event_done[kEventWords - 1].store(pair.start + round * 64 + 1);
        host.looked.store(pair.start + round * 64 + 2);
        pair.host.channel.reply(4)->seq.store(pair.start + round * 64 + 3);
        pair.host_end.pump();
        const std::vector<FrameKind> kinds = kinds_of(pair.down);
        const auto at = [&](FrameKind kind) {
            return std::find(kinds.begin(), kinds.end(), kind) - kinds.begin();
        };
        EXPECT_LT(at(FrameKind::kPinned), at(FrameKind::kEvents));
        EXPECT_LT(at(FrameKind::kEvents), at(FrameKind::kReply));
        EXPECT_EQ(std::count(kinds.begin(), kinds.end(), FrameKind::kEvents), 1);
        ASSERT_TRUE(pair.carry());
        EXPECT_EQ(guest.shows_events.load(), 1u);
        EXPECT_EQ(guest.late_errors.load(), round);
        EXPECT_EQ(guest.event_done[9].load(), pair.start + round * 64);
        EXPECT_EQ(guest.event_done[kEventWords - 1].load(), pair.start + round * 64 + 1);
        EXPECT_EQ(guest.event_done[10].load(), 0u);
        EXPECT_EQ(guest.looked.load(), pair.start + round * 64 + 2);
    }
    EXPECT_EQ(guest.shares_bulk.load(), 0u);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    pair.host_end.pump();
    const std::vector<FrameKind> kinds = kinds_of(pair.down);
    EXPECT_EQ(std::count(kinds.begin(), kinds.end(), FrameKind::kEvents), 0) << "nothing is new";
}

// A channel is given out again: what the host said of its last guest is not told to the next one.
TEST(Mirror, TheEndOfAnEarlierGuestIsNotToldToTheNextOne) {
    Pair pair;
    HostChannel& said = pair.host.channel.host_directory()->channels[0];
    said.generation.store(2);
    said.state.store(ServeState::kClosed);
    ASSERT_TRUE(pair.carry());
    const HostChannel& told = pair.guest.channel.host_directory()->channels[0];
    EXPECT_EQ(told.state.load(), ServeState::kNone);
    said.state.store(ServeState::kServing);
    said.generation.store(3);
    ASSERT_TRUE(pair.carry());
    EXPECT_EQ(told.state.load(), ServeState::kServing);
    EXPECT_EQ(told.generation.load(), 3u);
}

// Who pumps sleeps when there was nothing.
TEST(Mirror, PumpTellsWhetherItHadSomethingToSend) {
    Pair pair;
    ASSERT_TRUE(pair.carry());
    EXPECT_FALSE(pair.host_end.pump());
    pair.host.channel.host_words()->announce.store(1);
    EXPECT_TRUE(pair.host_end.pump());
    EXPECT_FALSE(pair.host_end.pump());
    pair.host.channel.reply(2)->seq.store(pair.start + 1);
    EXPECT_TRUE(pair.host_end.pump());
    EXPECT_FALSE(pair.host_end.pump());
    EXPECT_FALSE(pair.guest_end.pump());
    pair.guest.channel.guest_words()->announce_seen.store(1);
    EXPECT_TRUE(pair.guest_end.pump());
    EXPECT_FALSE(pair.guest_end.pump());
}

std::vector<std::byte> events_frame(const EventsImage& image, const EventWord& word) {
    std::vector<std::byte> frame(sizeof(FrameHeader) + sizeof image + sizeof word);
    const FrameHeader header{FrameKind::kEvents, sizeof image + sizeof word, 0};
    std::memcpy(frame.data(), &header, sizeof header);
    std::memcpy(frame.data() + sizeof header, &image, sizeof image);
    std::memcpy(frame.data() + sizeof header + sizeof image, &word, sizeof word);
    return frame;
}

// Its region is another one, in which nothing was shown: what the guest was shown stays true, and
// an error of the new host's is not taken for one that the guest knows.
TEST(Mirror, EventsOfAnotherHostAreAddedToWhatWasShown) {
    Region region;
    GuestMirror mirror(region.channel, [](std::span<const std::byte>) { return true; });
    const HostWords& words = *region.channel.host_words();
    ASSERT_TRUE(mirror.receive(events_frame({900, 1, 1}, {5, 800})));
    EXPECT_EQ(words.late_errors.load(), 1u);
    mirror.taken_over(2);
    ASSERT_TRUE(mirror.receive(events_frame({700, 0, 1}, {5, 600})));
    ASSERT_TRUE(mirror.receive(events_frame({700, 1, 1}, {6, 650})));
    EXPECT_EQ(words.looked.load(), 900u);
    EXPECT_EQ(words.event_done[5].load(), 800u);
    EXPECT_EQ(words.event_done[6].load(), 650u);
    EXPECT_EQ(words.late_errors.load(), 3u);
    EXPECT_FALSE(mirror.receive(events_frame({700, 1, 1}, {kEventWords, 700})));
}

// A link that holds as much as it may waits for the other side's word, and that comes behind the
// bytes of the pool that the other side has changed.
TEST(Mirror, PinnedBytesArriveWhileOthersWaitToBeSent) {
    Region region;
    ChannelClaim& claim = region.channel.guest_directory()->claims[0];
    claim.generation = 3;
    claim.state.store(ClaimState::kOpen);
    region.channel.host_words()->head.store(3ull << kGenerationShift);
    std::promise<void> sending;
    std::promise<void> other_side_read;
    bool is_first = true;
    GuestMirror mirror(region.channel, [&](std::span<const std::byte> frame) {
        FrameHeader header;
        std::memcpy(&header, frame.data(), sizeof header);
        if (header.kind == FrameKind::kPinned && std::exchange(is_first, false)) {
            sending.set_value();
            other_side_read.get_future().wait();
        }
        return true;
    });
    region.channel.guest_words()->pinned_high_water.store(1 << 20);
    region.channel.pinned()[0] = std::byte{1};
    std::jthread pump([&] {
        while (is_first) {
            mirror.pump();
        }
    });
    sending.get_future().wait();
    std::vector<std::byte> frame(sizeof(FrameHeader) + 1, std::byte{7});
    const FrameHeader header{FrameKind::kPinned, 1, 5000};
    std::memcpy(frame.data(), &header, sizeof header);
    auto received = std::async(std::launch::async, [&] { return mirror.receive(frame); });
    EXPECT_EQ(received.wait_for(std::chrono::seconds(10)), std::future_status::ready);
    other_side_read.set_value();
    EXPECT_TRUE(received.get());
    EXPECT_EQ(region.channel.pinned()[5000], std::byte{7});
}

TEST(Mirror, HostEndRefusesFramesThatLieOutsideTheRegion) {
    struct Case {
        FrameKind kind;
        std::uint64_t argument;
        std::uint32_t bytes;
    };
    const Case cases[] = {
        {FrameKind::kPinned, kRegionBytes, 16},
        {FrameKind::kPinned, ~0ull - 3, 16},
        {FrameKind::kRing, 0, 64},
        {FrameKind::kReply, 0, 64},
        {FrameKind::kHostWords, 0, 64},
        {FrameKind::kInvalid, 0, 0},
        {static_cast<FrameKind>(99), 0, 8},
        {FrameKind::kClaim, 5, 0},
        {FrameKind::kRing, (3ull << kGenerationShift) + 64, 64},
    };
    for (const Case& c : cases) {
        Pair pair;
        ASSERT_TRUE(pair.carry());
        std::vector<std::byte> frame(sizeof(FrameHeader) + c.bytes);
        const FrameHeader header{c.kind, c.bytes, c.argument};
        std::memcpy(frame.data(), &header, sizeof header);
        EXPECT_FALSE(pair.host_end.receive(frame)) << static_cast<int>(c.kind);
    }
    Pair pair;
    const FrameHeader huge{FrameKind::kPinned, kMaxFrameBytes + 1, 0};
    EXPECT_FALSE(pair.host_end.receive(std::as_bytes(std::span(&huge, 1))));
}

}  // namespace
}  // namespace gantry::wire
