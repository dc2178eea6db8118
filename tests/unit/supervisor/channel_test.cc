// The private protocol's transport: packets with descriptors, blobs, and what hostile bytes do.
#include "proto/control/channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <random>
#include <thread>

#include "host-daemon/supervisor/workers/worker_channel.h"
#include "proto/base/packet.h"
#include "proto/control/worker.pb.h"

namespace gantry::supervisor {
namespace {

using control::PacketSocket;
using control::UniqueFd;
using std::chrono::milliseconds;

std::size_t open_descriptors() {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry :
         std::filesystem::directory_iterator("/proc/self/fd")) {
        ++count;
    }
    return count;
}

std::span<const std::byte> bytes_of(std::string_view text) {
    return std::as_bytes(std::span(text.data(), text.size()));
}

struct Pair {
    PacketSocket ours;
    PacketSocket theirs;
};
Pair make_pair_of_sockets() {
    auto pair = PacketSocket::pair();
    EXPECT_TRUE(pair.ok());
    return {std::move(pair->first), std::move(pair->second)};
}

TEST(PacketSocket, DeliversBytesAndDescriptors) {
    Pair pair = make_pair_of_sockets();
    const UniqueFd file{::memfd_create("x", 0)};
    const int fds[] = {file.get(), file.get()};
    ASSERT_TRUE(pair.ours.send(bytes_of("hello"), fds).ok());
    const auto packet = pair.theirs.receive(milliseconds{1000});
    ASSERT_TRUE(packet.ok());
    EXPECT_EQ(packet->bytes.size(), 5U);
    ASSERT_EQ(packet->descriptors.size(), 2U);
    EXPECT_NE(::fcntl(packet->descriptors[0].get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(PacketSocket, RefusesWhatIsTooLongAndLeaksNothing) {
    Pair pair = make_pair_of_sockets();
    const std::string huge(control::kMaxPacketBytes + 1, 'x');
    EXPECT_EQ(pair.ours.send(bytes_of(huge), {}).error().reason, "control.packet_size");
    // A hostile side does not ask our send(): one byte too many, with a descriptor beside it.
    const std::size_t before = open_descriptors();
    const int buffer_bytes = 1 << 20;
    ::setsockopt(pair.ours.fd(), SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof buffer_bytes);
    const int fd = 0;
    ASSERT_GT(send_packet_with(pair.ours.fd(), huge.data(), huge.size(), &fd, 1), 0);
    const auto packet = pair.theirs.receive(milliseconds{1000});
    ASSERT_FALSE(packet.ok());
    EXPECT_EQ(packet.error().reason, "control.packet");
    EXPECT_EQ(open_descriptors(), before);
}

TEST(PacketSocket, TimesOutAndSeesTheEnd) {
    Pair pair = make_pair_of_sockets();
    EXPECT_EQ(pair.theirs.receive(milliseconds{10}).error().code, Code::kDeadlineExceeded);
    pair.ours.close();
    EXPECT_EQ(pair.theirs.receive(milliseconds{1000}).error().code, Code::kUnavailable);
}

TEST(PacketListener, AdoptRefusesWhatDoesNotListen) {
    Pair pair = make_pair_of_sockets();
    EXPECT_FALSE(control::PacketListener::adopt(UniqueFd{::dup(pair.ours.fd())}).ok());
    EXPECT_FALSE(control::PacketListener::adopt(UniqueFd{::open("/dev/null", O_RDONLY)}).ok());
}

TEST(Blob, RoundTripAndSealed) {
    auto blob = control::make_blob(bytes_of("content"));
    ASSERT_TRUE(blob.ok());
    EXPECT_LT(::write(blob->get(), "x", 1), 0) << "a blob cannot be written any more";
    const auto mapped = control::MappedBlob::map(std::move(*blob), 7);
    ASSERT_TRUE(mapped.ok());
    EXPECT_EQ(std::memcmp(mapped->bytes().data(), "content", 7), 0);
}

TEST(Blob, RefusesUnsealedAndWrongLength) {
    UniqueFd open_file{::memfd_create("x", MFD_ALLOW_SEALING)};
    ASSERT_EQ(::ftruncate(open_file.get(), 7), 0);
    EXPECT_FALSE(control::MappedBlob::map(std::move(open_file), 7).ok());
    auto blob = control::make_blob(bytes_of("content"));
    ASSERT_TRUE(blob.ok());
    EXPECT_FALSE(control::MappedBlob::map(std::move(*blob), 8).ok());
    auto large = control::make_blob(bytes_of("content"));
    ASSERT_TRUE(large.ok());
    EXPECT_FALSE(control::MappedBlob::map(std::move(*large), 7, 6).ok());
}

TEST(Blob, OfAMessageIsTakenByItsIndexAndParsed) {
    control::BlockRunList list;
    list.add_runs()->set_count(3);
    const std::string bytes = list.SerializeAsString();
    std::vector<UniqueFd> descriptors;
    for (const std::string& content : {bytes, std::string("\xff\xff"), bytes}) {
        auto blob = control::make_blob(content);
        ASSERT_TRUE(blob.ok());
        descriptors.push_back(std::move(*blob));
    }
    control::BlockRunList parsed;
    ASSERT_TRUE(control::parse_blob(descriptors, 2, bytes.size(), &parsed).ok());
    EXPECT_EQ(parsed.SerializeAsString(), bytes);
    EXPECT_EQ(control::parse_blob(descriptors, 1, 2, &parsed).error().reason, "worker.protocol");
    EXPECT_EQ(control::take_blob(descriptors, 3, 2).error().reason, "worker.protocol");
    EXPECT_FALSE(control::take_blob(descriptors, 2, bytes.size()).ok()) << "it was taken before";
    const auto taken = control::take_blob(descriptors, 0, bytes.size());
    ASSERT_TRUE(taken.ok());
    EXPECT_EQ(taken->text(), bytes);
}

class ChannelTest : public testing::Test {
protected:
    ChannelTest() {
        Pair pair = make_pair_of_sockets();
        worker_ = std::move(pair.theirs);
        channel_ = std::make_unique<WorkerChannel>(
            std::move(pair.ours), "worker under test", [this](const control::Event&) { ++events_; },
            [this](const Error&) { closed_ = true; });
    }

    static control::ToWorker status_request() {
        control::ToWorker request;
        request.mutable_status();
        return request;
    }

    /// Waits for one request and answers with what `fill` makes of it.
    std::thread answer(std::function<void(control::FromWorker&)> fill) {
        return std::thread([this, fill = std::move(fill)] {
            control::ToWorker request;
            ASSERT_TRUE(worker_.receive_message(request, milliseconds{2000}).ok());
            control::FromWorker reply;
            reply.set_request_id(request.request_id());
            reply.mutable_status();
            fill(reply);
            (void)worker_.send_message(reply);
        });
    }

    std::atomic<int> events_{0};
    std::atomic<bool> closed_{false};
    PacketSocket worker_;
    std::unique_ptr<WorkerChannel> channel_;
};

TEST_F(ChannelTest, CallAndReply) {
    std::thread worker = answer(
        [](control::FromWorker& reply) { reply.mutable_status_reply()->set_session_id("s"); });
    const auto reply = channel_->call(status_request(), milliseconds{2000});
    worker.join();
    ASSERT_TRUE(reply.ok()) << reply.error().text;
    EXPECT_EQ(reply->message.status_reply().session_id(), "s");
}

TEST_F(ChannelTest, WhatIsSentAheadIsTakenInItsOrderAndAwaitedInAny) {
    auto first = channel_->send(status_request(), milliseconds{2000});
    auto dropped = channel_->send(status_request(), milliseconds{2000});
    auto last = channel_->send(status_request(), milliseconds{2000});
    ASSERT_TRUE(first.ok() && dropped.ok() && last.ok());
    const std::uint64_t ids[] = {first->id, dropped->id, last->id};
    dropped = Error{Code::kCancelled, "test", "nobody waits for it"};
    for (const std::uint64_t id : ids) {
        control::ToWorker request;
        ASSERT_TRUE(worker_.receive_message(request, milliseconds{1000}).ok());
        ASSERT_EQ(request.request_id(), id);
        control::FromWorker reply;
        reply.set_request_id(id);
        reply.mutable_status_reply()->set_session_id(std::to_string(id));
        ASSERT_TRUE(worker_.send_message(reply).ok());
    }
    for (auto* sent : {&last, &first}) {
        const std::uint64_t id = (*sent)->id;
        const auto reply = channel_->await(std::move(**sent));
        ASSERT_TRUE(reply.ok()) << reply.error().text;
        EXPECT_EQ(reply->message.status_reply().session_id(), std::to_string(id));
    }
    EXPECT_TRUE(channel_->open());
}

TEST_F(ChannelTest, ErrorsOfTheWorkerArriveAsErrors) {
    std::thread worker = answer([](control::FromWorker& reply) {
        reply.mutable_status()->set_code(9);
        reply.mutable_status()->set_reason("worker.state");
        reply.mutable_status()->set_text("not now");
    });
    const auto reply = channel_->call(status_request(), milliseconds{2000});
    worker.join();
    ASSERT_FALSE(reply.ok());
    EXPECT_EQ(reply.error().code, Code::kFailedPrecondition);
    EXPECT_EQ(reply.error().reason, "worker.state");
}

TEST_F(ChannelTest, DeadlineLeavesTheChannelUsable) {
    EXPECT_EQ(channel_->call(status_request(), milliseconds{20}).error().reason, "worker.deadline");
    control::ToWorker late;
    ASSERT_TRUE(worker_.receive_message(late, milliseconds{1000}).ok());
    control::FromWorker reply;
    reply.set_request_id(late.request_id());
    reply.mutable_status();
    ASSERT_TRUE(worker_.send_message(reply).ok());
    std::thread worker = answer([](control::FromWorker&) {});
    EXPECT_TRUE(channel_->call(status_request(), milliseconds{2000}).ok());
    worker.join();
}

TEST_F(ChannelTest, AWorkerThatReadsNothingHoldsNobodyUp) {
    auto calls = std::async(std::launch::async, [this] {
        constexpr int kMoreThanFit = 5000;
        for (int i = 0; i < kMoreThanFit; ++i) {
            const auto reply = channel_->call(status_request(), milliseconds{0});
            if (reply.error().text.find("takes no requests") != std::string::npos) {
                return reply.error().reason;
            }
        }
        return std::string("every request was taken");
    });
    EXPECT_EQ(calls.wait_for(std::chrono::seconds{30}), std::future_status::ready);
    worker_.close();  // Ends a call that waits all the same.
    EXPECT_EQ(calls.get(), "worker.deadline");
}

TEST_F(ChannelTest, ReplyThatWasNotAskedClosesTheChannel) {
    control::FromWorker reply;
    reply.set_request_id(77);
    reply.mutable_status();
    ASSERT_TRUE(worker_.send_message(reply).ok());
    for (int i = 0; i < 200 && !closed_; ++i) {
        std::this_thread::sleep_for(milliseconds{5});
    }
    EXPECT_TRUE(closed_);
    EXPECT_EQ(channel_->call(status_request(), milliseconds{100}).error().reason, "worker.gone");
}

TEST_F(ChannelTest, WrongDescriptorCountClosesTheChannel) {
    std::thread worker = answer([](control::FromWorker& reply) { reply.set_descriptor_count(1); });
    EXPECT_FALSE(channel_->call(status_request(), milliseconds{2000}).ok());
    worker.join();
    EXPECT_FALSE(channel_->open());
}

TEST_F(ChannelTest, EndOfTheWorkerFailsCallsInHand) {
    std::thread worker([this] {
        control::ToWorker request;
        (void)worker_.receive_message(request, milliseconds{2000});
        worker_.close();
    });
    EXPECT_EQ(channel_->call(status_request(), milliseconds{5000}).error().reason, "worker.gone");
    worker.join();
}

TEST(HostileWorker, AnErrorThatSaysSuccessIsAnErrorLikeOthers) {
    const Error error = to_error(control::WorkerStatus{});
    EXPECT_EQ(error.code, Code::kUnknown);
    EXPECT_EQ(error.reason, "worker.unknown");
}

TEST(HostileWorker, WhatItSaysOfAnErrorIsOneBoundedLine) {
    control::WorkerStatus status;
    status.set_code(1'000'000);
    status.set_reason("gpu.absent\nsession x: running");
    status.set_text("first\nsecond\x1b[2J\x7f" + std::string(1 << 20, 'a'));
    Error error = to_error(status);
    EXPECT_EQ(error.code, Code::kUnknown);
    EXPECT_EQ(error.reason, "worker.unknown");
    EXPECT_EQ(error.text.rfind("first second [2J a", 0), 0U) << error.text.substr(0, 40);
    EXPECT_LE(error.text.size(), 4096U);
    status.set_code(static_cast<std::uint32_t>(Code::kUnavailable));
    status.set_reason("worker.file_busy");
    status.set_text("gr\u00fcn");
    error = to_error(status);
    EXPECT_EQ(error.code, Code::kUnavailable);
    EXPECT_EQ(error.reason, "worker.file_busy");
    EXPECT_EQ(error.text, "gr\u00fcn");
}

TEST(HostileWorker, RandomBytesNeverCrash) {
    std::mt19937 random(12345);
    for (int round = 0; round < 300; ++round) {
        Pair pair = make_pair_of_sockets();
        WorkerChannel channel(
            std::move(pair.ours), "fuzzed", [](const control::Event&) {}, [](const Error&) {});
        std::vector<std::byte> bytes(1 + random() % 300);
        for (std::byte& byte : bytes) {
            byte = static_cast<std::byte>(random());
        }
        (void)pair.theirs.send(bytes, {});
        pair.theirs.close();
    }
}

}  // namespace
}  // namespace gantry::supervisor
