// A guest's link and mirror going on with another host's ends, as after a move of its VM.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <thread>

#include "proto/wire/mirror/link.h"
#include "proto/wire/mirror/mirror.h"
#include "tests/unit/mirror/cut_network.h"

namespace gantry::wire {
namespace {

using std::chrono::milliseconds;

// ---- the link -------------------------------------------------------------------------------

/// Takes numbers that must come one after the other, in whole multiples of 8 bytes.
class Sequence {
public:
    explicit Sequence(std::uint64_t next) : next_(next) {}
    void take(std::span<const std::byte> bytes) {
        held_.insert(held_.end(), bytes.begin(), bytes.end());
        std::size_t used = 0;
        for (; held_.size() - used >= 8; used += 8) {
            std::uint64_t number = 0;
            std::memcpy(&number, held_.data() + used, 8);
            wrong_ = wrong_ || number != next_.load();
            next_.store(number + 1);
        }
        held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(used));
    }
    void restart() {
        held_.clear();
        next_.store(0);
    }
    [[nodiscard]] std::uint64_t next() const { return next_.load(); }
    [[nodiscard]] bool wrong() const { return wrong_.load(); }

private:
    std::vector<std::byte> held_;
    std::atomic<std::uint64_t> next_;
    std::atomic<bool> wrong_{false};
};

/// One host's end: it acknowledges whole numbers only, and none while it is held.
struct HostEnd {
    HostEnd(std::uint64_t next, std::uint64_t epoch)
        : numbers(next),
          link([this](std::span<const std::byte> b) { numbers.take(b); }, {}, 10'000) {
        if (epoch != 0) {
            link.take_over(next * 8, epoch);
        }
        link.set_ackable([this]() -> std::optional<std::uint64_t> {
            const std::uint64_t received = numbers.next() * 8;
            return is_held.load() ? std::nullopt : std::optional(received);
        });
    }
    Sequence numbers;
    std::atomic<bool> is_held{false};
    ResumableLink link;
};

/// The address that the guest dials: whichever host it is on answers there.
class Address {
public:
    Address() : listener_(listen_tcp("127.0.0.1:0")) {
        thread_ = std::jthread([this](const std::stop_token& stop) {
            while (!stop.stop_requested()) {
                pollfd entry{listener_, POLLIN, 0};
                if (::poll(&entry, 1, 5) == 1) {
                    greet(::accept(listener_, nullptr, nullptr));
                }
            }
        });
    }
    ~Address() {
        thread_.request_stop();
        thread_.join();
        ::close(listener_);
    }
    void lead_to(HostEnd* host) { host_.store(host); }
    [[nodiscard]] std::uint16_t port() const { return local_port(listener_); }
    [[nodiscard]] int refused() const { return refused_.load(); }

private:
    void greet(int fd) {
        LinkHello theirs, mine;
        if (!read_exactly(fd, &theirs, sizeof theirs)) {
            ::close(fd);
            return;
        }
        mine.session[0] = 7;
        if (HostEnd* host = host_.load(); host != nullptr) {
            host->link.adopt(fd, theirs, mine);
            return;
        }
        ++refused_;
        mine.verdict = LinkVerdict::kNotNow;
        (void)write_exactly(fd, &mine, sizeof mine);
        ::close(fd);
    }
    int listener_;
    std::atomic<HostEnd*> host_{nullptr};
    std::atomic<int> refused_{0};
    std::jthread thread_;
};

void send_numbers_from(ResumableLink& link, std::uint64_t first, std::uint64_t count) {
    std::vector<std::uint64_t> batch;
    for (std::uint64_t i = first; i < first + count;) {
        batch.clear();
        for (std::uint64_t j = 0; j < 1 + i % 700 && i < first + count; ++j) {
            batch.push_back(i++);
        }
        link.send(std::as_bytes(std::span(batch)));
    }
}

bool wait_until(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!condition()) {
        if (std::chrono::steady_clock::now() > deadline) {
            return false;
        }
        std::this_thread::sleep_for(milliseconds(2));
    }
    return true;
}

TEST(ResumableLink, IsTakenOverByOneHostAfterTheOther) {
    constexpr std::uint64_t kNumbers = 400'000;
    constexpr int kMoves = 4;
    Address address;
    Sequence at_guest(0);
    std::vector<std::unique_ptr<HostEnd>> hosts;
    ResumableLink guest([&](std::span<const std::byte> b) { at_guest.take(b); }, {}, 20'000);
    hosts.push_back(std::make_unique<HostEnd>(0, 0));
    address.lead_to(hosts.back().get());
    CutNetwork network(address.port(), 3 * kMaxPacketBytes / 2, 5 * kMaxPacketBytes);
    guest.start_dialing([&] { return connect_tcp(network.address()); },
                        [&](std::uint64_t) { at_guest.restart(); });
    std::jthread up([&] { send_numbers_from(guest, 0, kNumbers * (kMoves + 1)); });
    for (std::uint64_t move = 1; move <= kMoves; ++move) {
        HostEnd& old = *hosts.back();
        std::jthread down([&] { send_numbers_from(old.link, 0, kNumbers / 4); });
        ASSERT_TRUE(wait_until([&] { return old.numbers.next() >= move * kNumbers / 2; }));
        down.join();
        old.is_held.store(true);
        const std::uint64_t taken = old.numbers.next();  // As the snapshot has it.
        address.lead_to(nullptr);
        old.link.cut();
        std::this_thread::sleep_for(milliseconds(20));  // What comes still is of no account.
        EXPECT_FALSE(old.numbers.wrong());
        hosts.push_back(std::make_unique<HostEnd>(taken, move + 1));
        address.lead_to(hosts.back().get());
    }
    HostEnd& last = *hosts.back();
    send_numbers_from(last.link, 0, kNumbers);
    EXPECT_TRUE(wait_until([&] { return last.numbers.next() == kNumbers * (kMoves + 1); }));
    EXPECT_TRUE(wait_until([&] { return at_guest.next() == kNumbers; }));
    EXPECT_FALSE(last.numbers.wrong());
    EXPECT_FALSE(at_guest.wrong());
    guest.close();
    for (const auto& host : hosts) {
        host->link.close();
    }
}

TEST(ResumableLink, WaitsWhereItIsToldNotNowAndEndsWhereItIsUnknown) {
    Address address;
    std::atomic<bool> closed{false};
    ResumableLink guest([](std::span<const std::byte>) {}, [&] { closed.store(true); }, 20'000);
    guest.start_dialing([&] { return connect_tcp("127.0.0.1:" + std::to_string(address.port())); });
    ASSERT_TRUE(wait_until([&] { return address.refused() >= 3; }));
    EXPECT_FALSE(closed.load());
    // Who was never told what to forget cannot go on with another host's stream.
    HostEnd other(0, 9);
    address.lead_to(&other);
    EXPECT_TRUE(wait_until([&] { return closed.load(); }));
    other.link.close();
}

// ---- the mirror -----------------------------------------------------------------------------

constexpr std::uint64_t kMovedRegionBytes = 8ull << 20;
constexpr std::uint64_t kPool = 16 << 10;
constexpr std::uint64_t kGeneration = 3;

struct MovedRegion {
    MovedRegion() : memory(new (std::align_val_t{kPageBytes}) std::byte[kMovedRegionBytes]()) {
        channel.region = memory;
        channel.region_bytes = kMovedRegionBytes;
        EXPECT_TRUE(compute_layout(kMovedRegionBytes, 1, 0, &channel.layout));
    }
    ~MovedRegion() { ::operator delete[](memory, std::align_val_t{kPageBytes}); }
    std::byte* memory;
    MappedChannel channel;
};

/// One guest and the host that it is on. Each command writes a byte of the pool and answers with
/// its number in the bulk area, always at the same place.
struct Moving {
    Moving()
        : guest_end(guest.channel, [this](std::span<const std::byte> f) { return add(&up, f); }) {
        ChannelClaim& claim = guest.channel.guest_directory()->claims[0];
        claim.generation = kGeneration;
        claim.state.store(ClaimState::kOpen);
        const std::uint64_t start = kGeneration << kGenerationShift;
        producer.attach(guest.channel.ring(), guest.channel.layout.ring_bytes,
                        &guest.channel.host_words()->head, start);
        guest.channel.host_words()->head.store(start);
        guest.channel.guest_words()->pinned_high_water.store(kPool);
        host = std::make_unique<MovedRegion>();
        host->channel.host_words()->head.store(start);
        consumer.attach(host->channel.ring(), host->channel.layout.ring_bytes, start);
        host_end = std::make_unique<HostMirror>(
            host->channel, 0, [this](std::span<const std::byte> f) { return add(&down, f); });
        expected.assign(kPool, std::byte{});
    }
    static bool add(std::vector<std::byte>* to, std::span<const std::byte> frame) {
        to->insert(to->end(), frame.begin(), frame.end());
        return true;
    }
    /// Carries up to `most` bytes of the guest's stream.
    void carry_up(std::size_t most) {
        const std::size_t take = std::min(most, up.size() - at);
        ASSERT_TRUE(host_end->receive(std::span(up).subspan(at, take)));
        at += take;
    }
    void carry_down() {
        std::vector<std::byte> bytes;
        bytes.swap(down);
        ASSERT_TRUE(guest_end.receive(bytes));
        // Even bytes are the guest's: whatever its host believes, they are as it wrote them.
        const std::byte* pool = guest.channel.pinned();
        std::size_t at_byte = 0;
        while (at_byte < kPool && pool[at_byte] == expected[at_byte]) {
            at_byte += 2;
        }
        ASSERT_GE(at_byte, kPool);
    }
    void write_pool(MovedRegion& side, std::uint64_t parity) {
        const std::uint64_t where = random() % (kPool / 2) * 2 + parity;
        side.channel.pinned()[where] = expected[where] = static_cast<std::byte>(random());
    }
    void call() {
        RingRecord record;
        const auto trailing = static_cast<std::uint32_t>(random() % 700);
        const std::uint32_t lane = called % kLaneCount;
        if (!producer.try_reserve(100, static_cast<std::uint16_t>(lane), 4, trailing, &record)) {
            return;
        }
        std::memcpy(record.args(), &called, 4);
        std::memset(record.trailing(), static_cast<int>(called), trailing);
        record.publish();
        ++called;
    }
    void execute(int most) {
        CommandView view;
        const char* reason = nullptr;
        while (most-- > 0 && consumer.peek(&view, &reason) == PeekStatus::kReady) {
            std::uint32_t number = 0;
            std::memcpy(&number, view.args, 4);
            ASSERT_EQ(number, executed);
            ++executed;
            write_pool(*host, 1);
            ReplyPage* reply = host->channel.reply(view.lane);
            std::memcpy(host->channel.bulk() + 4096, &number, 4);
            std::memcpy(reply->payload, &number, 4);
            reply->payload_bytes = 4;
            reply->bulk_offset = 4096;
            reply->bulk_bytes = 4;
            reply->seq.store(view.position + 1);
            consumer.advance(view);
            host->channel.host_words()->head.store(consumer.next());
        }
        ASSERT_EQ(reason, nullptr);
    }
    /// What worker, snapshot and the target's worker do.
    void move() {
        const auto position = read_position(mirror_words(*host->channel.guest_words()));
        ASSERT_TRUE(position);
        const std::uint64_t next = consumer.next();
        carry_up(random() % 3000);  // The old relay goes on for a while: of no account.
        auto other = std::make_unique<MovedRegion>();
        const std::uint64_t mask = other->channel.layout.ring_bytes - 1;
        for (std::uint64_t p = next; p < position->ring_position; p += kRecordAlign) {
            std::memcpy(other->channel.ring() + (p & mask), host->channel.ring() + (p & mask),
                        kRecordAlign);
        }
        std::memcpy(other->channel.pinned(), host->channel.pinned(), kPool);
        other->channel.guest_words()->pinned_high_water.store(
            host->channel.guest_words()->pinned_high_water.load());
        other->channel.host_words()->head.store(next);
        std::memcpy(other->channel.bulk() + 4096, host->channel.bulk() + 4096, 4);
        for (std::uint32_t lane = 0; lane < kLaneCount; ++lane) {
            std::memcpy(static_cast<void*>(other->channel.reply(lane)), host->channel.reply(lane),
                        kPageBytes);
        }
        publish_position(mirror_words(*other->channel.guest_words()), *position);
        host = std::move(other);
        consumer.attach(host->channel.ring(), host->channel.layout.ring_bytes, next);
        ++epoch;
        host_end = std::make_unique<HostMirror>(
            host->channel, *position, epoch,
            [this](std::span<const std::byte> f) { return add(&down, f); });
        at = position->received;
        down.clear();
        guest_end.taken_over(epoch);
    }

    MovedRegion guest;
    std::unique_ptr<MovedRegion> host;
    std::vector<std::byte> up;  ///< The guest's whole stream: what was never acknowledged.
    std::vector<std::byte> down;
    std::size_t at = 0;
    GuestMirror guest_end;
    std::unique_ptr<HostMirror> host_end;
    RingProducer producer;
    RingConsumer consumer;
    std::vector<std::byte> expected;
    std::uint32_t called = 0;
    std::uint32_t executed = 0;
    std::uint64_t epoch = 1;
    std::mt19937 random{42};
};

TEST(MirrorTakeOver, LosesAndRepeatsNothingWhereverTheMoveFalls) {
    Moving one;
    int moves = 0;
    for (int round = 0; round < 2500; ++round) {
        for (int calls = round % 200 == 0 ? 1000 : 1; calls > 0; --calls) {
            one.call();  // Now and then more than a frame holds.
        }
        one.write_pool(one.guest, 0);
        if (round % 3 == 0) {
            one.guest_end.pump();
        }
        if (round % 40 == 0) {
            std::this_thread::sleep_for(milliseconds(1));  // Pools are compared once a while.
        }
        one.carry_up(one.random() % (one.random() % 8 == 0 ? 400'000 : 4000));
        one.execute(static_cast<int>(one.random() % 20));
        if (round % 2 == 0) {
            one.host_end->pump();
        }
        if (one.random() % 3 == 0) {
            one.carry_down();
        }
        if (one.random() % 60 == 0) {
            one.move();
            ++moves;
        }
        ASSERT_FALSE(::testing::Test::HasFatalFailure());
    }
    EXPECT_GT(moves, 20);
    for (int round = 0; round < 300; ++round) {
        std::this_thread::sleep_for(milliseconds(1));
        one.guest_end.pump();
        one.carry_up(one.up.size());
        one.execute(1000);
        one.host_end->pump();
        one.carry_down();
    }
    EXPECT_EQ(one.executed, one.called);
    EXPECT_GT(one.called, 1000u);
    EXPECT_EQ(std::memcmp(one.guest.channel.pinned(), one.expected.data(), kPool), 0);
    EXPECT_EQ(std::memcmp(one.host->channel.pinned(), one.expected.data(), kPool), 0);
    // The newest answer's extent, and not that of an older one that was told again.
    std::uint32_t newest = 0;
    std::memcpy(&newest, one.guest.channel.bulk() + 4096, 4);
    EXPECT_EQ(newest, one.called - 1);
    for (std::uint32_t back = 1; back <= kLaneCount; ++back) {
        const std::uint32_t number = one.called - back;
        std::uint32_t answered = 0;
        std::memcpy(&answered, one.guest.channel.reply(number % kLaneCount)->payload, 4);
        EXPECT_EQ(answered, number);
    }
}

TEST(MirrorTakeOver, ARecordThatCameInPartComesAgain) {
    Moving one;
    for (int i = 0; i < 1500; ++i) {
        one.call();  // More than a frame holds.
    }
    one.guest_end.pump();
    one.carry_up(kMaxFrameBytes + 1000);
    one.execute(200);
    one.move();
    for (int round = 0; round < 4; ++round) {
        one.guest_end.pump();
        one.carry_up(one.up.size());
        one.execute(2000);
        one.host_end->pump();
        one.carry_down();
    }
    EXPECT_EQ(one.executed, one.called);
    EXPECT_GT(one.called, 1000u);
}

TEST(MirrorTakeOver, WhatTheGuestWroteMeanwhileStaysAndIsSent) {
    Moving one;
    one.call();
    one.guest_end.pump();
    one.carry_up(one.up.size());
    one.move();
    one.guest_end.pump();  // Says what it has.
    one.host->channel.pinned()[10] = std::byte{1};
    one.host->channel.pinned()[12] = std::byte{2};
    one.guest.channel.pinned()[12] = one.expected[12] = std::byte{3};
    one.expected[10] = std::byte{1};
    one.carry_up(one.up.size());
    one.host_end->pump();
    one.carry_down();
    EXPECT_EQ(one.guest.channel.pinned()[10], std::byte{1});
    EXPECT_EQ(one.guest.channel.pinned()[12], std::byte{3});
    std::this_thread::sleep_for(milliseconds(2));
    one.guest_end.pump();
    one.carry_up(one.up.size());
    EXPECT_EQ(one.host->channel.pinned()[12], std::byte{3});
}

TEST(MirrorTakeOver, IsSilentUntilTheGuestHasSaidWhatItHas) {
    Moving one;
    one.call();
    one.guest_end.pump();
    one.carry_up(one.up.size());
    one.execute(1);
    one.host_end->pump();
    one.carry_down();
    std::memset(one.guest.channel.bulk() + 4096, 0x55, 4);  // The program has read its answer.
    one.move();
    EXPECT_FALSE(one.host_end->pump());
    EXPECT_TRUE(one.down.empty());
    // For another host's end: of no account. Nobody resumes what was not taken over.
    ResumeImage image{};
    std::vector<std::byte> frame(sizeof(FrameHeader) + sizeof image);
    FrameHeader header{FrameKind::kResume, sizeof image, one.epoch - 1};
    std::memcpy(frame.data(), &header, sizeof header);
    EXPECT_TRUE(one.host_end->receive(frame));
    EXPECT_FALSE(one.host_end->pump());
    one.guest_end.pump();
    one.carry_up(one.up.size());
    EXPECT_TRUE(one.host_end->pump());
    one.host_end->pump();
    one.carry_down();
    EXPECT_EQ(one.guest.channel.bulk()[4096], std::byte{0x55});
    Moving fresh;
    EXPECT_FALSE(fresh.host_end->receive(frame));
}

}  // namespace
}  // namespace gantry::wire
