// Who may open what at the share broker: its group alone, as long as it is offered.
#include "host-daemon/sharing/share_broker.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <thread>

namespace gantry::sharing {
namespace {

using control::ShareKind;
using control::ShareOp;
using control::ShareReply;
using control::ShareRequest;
using control::ShareStatus;
using control::ShareToken;

constexpr std::uint64_t kBytes = 2 << 20;

struct Answer {
    ShareReply reply;
    control::UniqueFd descriptor;
};

class Peer {
public:
    Peer(ShareBroker& broker, const std::string& group)
        : socket_(std::move(broker.connect(group)).value()) {}

    void tell(ShareOp op, const ShareToken& token = {}, int descriptor = -1,
              ShareKind kind = ShareKind::kDeviceMemory) {
        ShareRequest request;
        request.op = op;
        request.kind = kind;
        request.token = token;
        request.bytes = kBytes;
        request.word.fill(std::byte{0x5a});
        const std::span<const int> descriptors(&descriptor, descriptor >= 0 ? 1 : 0);
        ASSERT_TRUE(socket_.send(std::as_bytes(std::span(&request, 1)), descriptors).ok());
    }

    std::optional<Answer> answer() {
        auto packet = socket_.receive(std::chrono::seconds(20));
        Answer answer;
        if (!packet.ok() || packet->bytes.size() != sizeof(answer.reply)) {
            return std::nullopt;
        }
        std::memcpy(&answer.reply, packet->bytes.data(), sizeof(answer.reply));
        if (!packet->descriptors.empty()) {
            answer.descriptor = std::move(packet->descriptors[0]);
        }
        return answer;
    }

    Answer ask(ShareOp op, const ShareToken& token = {}, int descriptor = -1,
               ShareKind kind = ShareKind::kDeviceMemory) {
        tell(op, token, descriptor, kind);
        auto answered = answer();
        EXPECT_TRUE(answered.has_value());
        return answered ? std::move(*answered) : Answer{};
    }

    /// A fresh piece of memory; its token.
    ShareToken offer(int descriptor) {
        const Answer made = ask(ShareOp::kOffer, {}, descriptor);
        EXPECT_EQ(made.reply.status, ShareStatus::kDone);
        return made.reply.token;
    }

    /// An event.
    ShareToken offer_event() {
        const Answer made = ask(ShareOp::kOffer, {}, -1, ShareKind::kEvent);
        EXPECT_EQ(made.reply.status, ShareStatus::kDone);
        return made.reply.token;
    }

    std::uint64_t open_count(ShareKind kind = ShareKind::kDeviceMemory) {
        return ask(ShareOp::kCount, {}, -1, kind).reply.bytes;
    }

    control::PacketSocket& socket() { return socket_; }

private:
    control::PacketSocket socket_;
};

ino_t file_of(int descriptor) {
    struct stat status {};
    return fstat(descriptor, &status) == 0 ? status.st_ino : 0;
}

class Broker : public testing::Test {
protected:
    explicit Broker(std::chrono::milliseconds awaited = std::chrono::milliseconds(0))
        : broker(std::move(ShareBroker::start(awaited)).value()),
          memory(memfd_create("piece", 0)) {}
    std::unique_ptr<ShareBroker> broker;
    control::UniqueFd memory;
};

TEST_F(Broker, TheGroupOpensWhatOneOfItOffers) {
    Peer giver(*broker, "vm 1");
    Peer taker(*broker, "vm 1");
    const ShareToken token = giver.offer(memory.get());
    const Answer opened = taker.ask(ShareOp::kOpen, token);
    EXPECT_EQ(opened.reply.status, ShareStatus::kDone);
    EXPECT_EQ(opened.reply.kind, ShareKind::kDeviceMemory);
    EXPECT_EQ(opened.reply.bytes, kBytes);
    EXPECT_EQ(file_of(opened.descriptor.get()), file_of(memory.get()));
    EXPECT_NE(giver.offer(memory.get()), token);
}

TEST_F(Broker, AnEventIsAWordAndCountsByItself) {
    Peer giver(*broker, "vm 1");
    Peer taker(*broker, "vm 1");
    const ShareToken event = giver.offer_event();
    const ShareToken piece = giver.offer(memory.get());
    const Answer opened = taker.ask(ShareOp::kOpen, event, -1, ShareKind::kEvent);
    EXPECT_EQ(opened.reply.status, ShareStatus::kDone);
    EXPECT_EQ(opened.reply.kind, ShareKind::kEvent);
    EXPECT_FALSE(opened.descriptor.valid());
    control::ShareWord word;
    word.fill(std::byte{0x5a});
    EXPECT_EQ(opened.reply.word, word);
    EXPECT_EQ(giver.open_count(ShareKind::kEvent), 1u);
    EXPECT_EQ(giver.open_count(), 0u);
    // Neither passes for the other.
    EXPECT_EQ(taker.ask(ShareOp::kOpen, event).reply.status, ShareStatus::kUnknown);
    EXPECT_EQ(taker.ask(ShareOp::kOpen, piece, -1, ShareKind::kEvent).reply.status,
              ShareStatus::kUnknown);
    EXPECT_EQ(giver.ask(ShareOp::kOffer, {}, memory.get(), ShareKind::kEvent).reply.status,
              ShareStatus::kMalformed);
    Peer stranger(*broker, "vm 2");
    EXPECT_EQ(stranger.ask(ShareOp::kOpen, event, -1, ShareKind::kEvent).reply.status,
              ShareStatus::kUnknown);
}

TEST_F(Broker, ATokenOfAnotherVmIsNoToken) {
    Peer giver(*broker, "vm 1");
    Peer stranger(*broker, "vm 2");
    const ShareToken token = giver.offer(memory.get());
    const Answer refused = stranger.ask(ShareOp::kOpen, token);
    const Answer unknown = stranger.ask(ShareOp::kOpen, {1, 2});
    EXPECT_EQ(refused.reply.status, ShareStatus::kUnknown);
    EXPECT_FALSE(refused.descriptor.valid());
    EXPECT_EQ(std::memcmp(&refused.reply, &unknown.reply, sizeof(ShareReply)), 0);
    // Nor does it withdraw or close what others have.
    stranger.tell(ShareOp::kWithdraw, token);
    stranger.tell(ShareOp::kClose, token);
    EXPECT_EQ(stranger.open_count(), 0u);
    Peer taker(*broker, "vm 1");
    EXPECT_EQ(taker.ask(ShareOp::kOpen, token).reply.status, ShareStatus::kDone);
}

TEST_F(Broker, OnesOwnIsToldApart) {
    Peer giver(*broker, "vm 1");
    EXPECT_EQ(giver.ask(ShareOp::kOpen, giver.offer(memory.get())).reply.status, ShareStatus::kOwn);
}

TEST_F(Broker, WithdrawnOpensNothing) {
    Peer giver(*broker, "vm 1");
    Peer taker(*broker, "vm 1");
    const ShareToken token = giver.offer(memory.get());
    taker.tell(ShareOp::kWithdraw, token);  // Not the taker's to withdraw.
    EXPECT_EQ(taker.ask(ShareOp::kOpen, token).reply.status, ShareStatus::kDone);
    giver.tell(ShareOp::kWithdraw, token);
    EXPECT_EQ(giver.open_count(), 0u);  // It is not the giver's any more.
    EXPECT_EQ(taker.ask(ShareOp::kOpen, token).reply.status, ShareStatus::kUnknown);
}

TEST_F(Broker, CountsWhatIsOpenUntilItIsClosedOrItsTakerEnds) {
    Peer giver(*broker, "vm 1");
    const ShareToken token = giver.offer(memory.get());
    {
        Peer first(*broker, "vm 1");
        Peer second(*broker, "vm 1");
        EXPECT_EQ(first.ask(ShareOp::kOpen, token).reply.status, ShareStatus::kDone);
        EXPECT_EQ(first.ask(ShareOp::kOpen, token).reply.status, ShareStatus::kDone);
        EXPECT_EQ(second.ask(ShareOp::kOpen, token).reply.status, ShareStatus::kDone);
        EXPECT_EQ(giver.open_count(), 3u);
        first.tell(ShareOp::kClose, token);
        first.tell(ShareOp::kClose, token);
        first.tell(ShareOp::kClose, token);  // Once too often.
        EXPECT_EQ(first.open_count(), 0u);   // Answered behind the closes.
        EXPECT_EQ(giver.open_count(), 1u);
    }
    while (giver.open_count() != 0) {
        std::this_thread::yield();
    }
}

class PatientBroker : public Broker {
protected:
    PatientBroker() : Broker(ShareBroker::kAwaited) {}
};

TEST_F(PatientBroker, WhatWasGivenJustNowCountsUntilItWasOpenedOrWithdrawn) {
    Peer giver(*broker, "vm 1");
    Peer taker(*broker, "vm 1");
    const ShareToken token = giver.offer(memory.get());
    const ShareToken other = giver.offer(memory.get());
    EXPECT_EQ(giver.open_count(), 2u);
    EXPECT_EQ(giver.open_count(ShareKind::kEvent), 0u);
    EXPECT_EQ(taker.open_count(), 0u);
    EXPECT_EQ(taker.ask(ShareOp::kOpen, token).reply.status, ShareStatus::kDone);
    EXPECT_EQ(giver.open_count(), 2u);
    taker.tell(ShareOp::kClose, token);
    EXPECT_EQ(taker.open_count(), 0u);  // Answered behind the close.
    EXPECT_EQ(giver.open_count(), 1u);
    giver.tell(ShareOp::kWithdraw, other);
    EXPECT_EQ(giver.open_count(), 0u);
    taker.tell(ShareOp::kAgain, token);  // Not its own.
    EXPECT_EQ(taker.open_count(), 0u);
    EXPECT_EQ(giver.open_count(), 0u);
    giver.tell(ShareOp::kAgain, token);  // For somebody who opened it before, or another.
    EXPECT_EQ(giver.open_count(), 1u);
    EXPECT_EQ(taker.ask(ShareOp::kOpen, token).reply.status, ShareStatus::kDone);
    taker.tell(ShareOp::kClose, token);
    EXPECT_EQ(taker.open_count(), 0u);
    EXPECT_EQ(giver.open_count(), 0u);
}

class HastyBroker : public Broker {
protected:
    HastyBroker() : Broker(std::chrono::milliseconds(200)) {}
};

TEST_F(HastyBroker, WhatNobodyOpensCountsForAWhileOnly) {
    Peer giver(*broker, "vm 1");
    const ShareToken token = giver.offer(memory.get());
    while (giver.open_count() != 0) {
        std::this_thread::yield();
    }
    Peer taker(*broker, "vm 1");
    EXPECT_EQ(taker.ask(ShareOp::kOpen, token).reply.status, ShareStatus::kDone);
    EXPECT_EQ(giver.open_count(), 1u);
}

TEST_F(Broker, AGiversEndEndsItsOffers) {
    Peer taker(*broker, "vm 1");
    ShareToken token;
    {
        Peer giver(*broker, "vm 1");
        token = giver.offer(memory.get());
        EXPECT_EQ(taker.ask(ShareOp::kOpen, token).reply.status, ShareStatus::kDone);
    }
    while (taker.ask(ShareOp::kOpen, token).reply.status != ShareStatus::kUnknown) {
        std::this_thread::yield();
    }
    taker.tell(ShareOp::kClose, token);
    EXPECT_EQ(taker.open_count(), 0u);
}

TEST_F(Broker, NonsenseCostsItsSenderTheConnection) {
    Peer peer(*broker, "vm 1");
    Peer other(*broker, "vm 1");
    const char text[] = "hello";
    ASSERT_TRUE(peer.socket().send(std::as_bytes(std::span(text)), {}).ok());
    EXPECT_FALSE(peer.answer().has_value());
    EXPECT_EQ(other.open_count(), 0u);

    Peer without(*broker, "vm 1");
    EXPECT_EQ(without.ask(ShareOp::kOffer).reply.status, ShareStatus::kMalformed);
    without.tell(ShareOp::kOffer, {}, memory.get(), ShareKind::kInvalid);
    EXPECT_EQ(without.answer()->reply.status, ShareStatus::kMalformed);
    without.tell(static_cast<ShareOp>(77));
    EXPECT_FALSE(without.answer().has_value());
}

TEST_F(Broker, OffersAreBounded) {
    Peer giver(*broker, "vm 1");
    for (std::size_t i = 0; i < ShareBroker::kMemoryMax; ++i) {
        (void)giver.offer(memory.get());
    }
    EXPECT_EQ(giver.ask(ShareOp::kOffer, {}, memory.get()).reply.status, ShareStatus::kFull);
    for (std::size_t i = 0; i < ShareBroker::kEventsMax; ++i) {
        (void)giver.offer_event();
    }
    EXPECT_EQ(giver.ask(ShareOp::kOffer, {}, -1, ShareKind::kEvent).reply.status,
              ShareStatus::kFull);
    Peer elsewhere(*broker, "vm 2");
    (void)elsewhere.offer(memory.get());
}

TEST_F(Broker, AnAskerThatNeverReadsHoldsNobodyUp) {
    Peer deaf(*broker, "vm 1");
    Peer other(*broker, "vm 1");
    ShareRequest request;
    request.op = ShareOp::kCount;
    // Until its connection is gone: its answers have filled what the system keeps for it.
    while (deaf.socket().send(std::as_bytes(std::span(&request, 1)), {}).ok()) {
        EXPECT_EQ(other.open_count(), 0u);
    }
}

}  // namespace
}  // namespace gantry::sharing
