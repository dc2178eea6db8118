// The worker's parts without a driver: ring loop, reply log, callbacks, images, output.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <set>
#include <thread>

#include "host-daemon/execution/code/image_store.h"
#include "host-daemon/execution/ring/callback_broker.h"
#include "host-daemon/execution/ring/command_loop.h"
#include "host-daemon/execution/ring/lane_executors.h"
#include "host-daemon/execution/ring/output_capture.h"
#include "host-daemon/execution/ring/reply_board.h"
#include "proto/cuda/soft_extension.h"

namespace gantry::worker {
namespace {

using namespace std::chrono_literals;
using wire::ControlOp;

constexpr std::uint64_t kRegionBytes = 16ull << 20;
constexpr std::uint64_t kStart = 1ull << wire::kGenerationShift;
constexpr std::uint64_t kHeldUp = ~0ull;  // Argument of a command that waits for a callback's end.

/// The condition comes true: the deadline is that of a hang.
template <typename Condition>
bool comes_true(Condition condition) {
    const auto until = std::chrono::steady_clock::now() + 30s;
    while (!condition() && std::chrono::steady_clock::now() < until) {
        std::this_thread::sleep_for(100us);
    }
    return condition();
}

/// A region of one channel, a producer as a guest has it, and a loop that notes what it executes.
struct Channel {
    explicit Channel(std::uint64_t next = kStart, std::set<std::uint64_t> skip = {},
                     std::chrono::nanoseconds sleep_slice = 50ms)
        : loop({nullptr,
                [this](const Command& command) { note(command); },
                [] { return false; },
                [this](const wire::CommandView& view, std::span<const std::byte> args) {
                    Command command;
                    command.header = view;
                    command.args = args;
                    note(command);
                },
                [this](const std::string& reason) {
                    std::lock_guard lock(mutex);
                    breach = reason;
                },
                [] { return std::uint64_t{0}; },
                [](std::uint64_t) {},
                nullptr,
                nullptr,
                nullptr,
                {},
                {},
                nullptr,
                static_cast<std::uint64_t>(sleep_slice.count())},
               5) {
        auto region = ChannelMemory::create_region(kRegionBytes);
        auto mapped = ChannelMemory::map(std::move(region).value(), {0, kRegionBytes});
        memory = std::move(mapped).value();
        ring = const_cast<std::byte*>(memory->ring());
        producer.attach(ring, memory->layout().ring_bytes, &memory->host_words().head, kStart);
        memory->host_words().head.store(kStart);
        loop.start(memory.get(), next, std::move(skip));
    }
    ~Channel() { loop.stop(); }
    std::uint64_t send(ControlOp op, std::uint32_t trailing = 0, std::uint64_t argument = 0) {
        wire::RingRecord record;
        while (!producer.try_reserve(static_cast<std::uint16_t>(op), 3, 8, trailing, &record)) {
            std::this_thread::yield();
        }
        std::memcpy(record.args(), &argument, 8);
        std::memset(record.trailing(), 0x5a, trailing);
        record.publish();
        memory->guest_words().doorbell.fetch_add(1);
        wire::futex_wake_all(&memory->guest_words().doorbell);
        return record.position;
    }
    void note(const Command& command) {
        std::unique_lock lock(mutex);
        positions.push_back(command.header.position);
        ops.push_back(command.header.op);
        sizes.push_back(command.trailing.size());
        std::uint64_t argument = 0;
        std::memcpy(&argument, command.args.data(), 8);
        arguments.push_back(argument);
        // As a driver holds a launch up until a callback has ended, which a later command says.
        while (argument == kHeldUp && !is_let_go) {
            changed.wait(lock);
        }
        is_let_go =
            is_let_go || command.header.op == static_cast<std::uint16_t>(ControlOp::kCallbackDone);
        changed.notify_all();
    }
    std::size_t count() {
        std::lock_guard lock(mutex);
        return positions.size();
    }
    bool wait_for(std::size_t wanted) {
        return comes_true([&] { return count() >= wanted; }) && count() == wanted;
    }
    std::unique_ptr<ChannelMemory> memory;
    std::byte* ring = nullptr;
    wire::RingProducer producer;
    std::mutex mutex;
    std::condition_variable changed;
    bool is_let_go = false;
    std::vector<std::uint64_t> positions;
    std::vector<std::uint16_t> ops;
    std::vector<std::size_t> sizes;
    std::vector<std::uint64_t> arguments;
    std::string breach;
    CommandLoop loop;
};

TEST(CommandLoop, ExecutesEveryCommandOnceInOrder) {
    Channel channel;
    constexpr std::uint64_t kCount = 20'000;
    for (std::uint64_t i = 0; i < kCount; ++i) {
        channel.send(ControlOp::kDropImage, static_cast<std::uint32_t>(i % 700), i);
    }
    ASSERT_TRUE(channel.wait_for(kCount));
    for (std::uint64_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(channel.arguments[i], i);
        ASSERT_EQ(channel.sizes[i], i % 700);
    }
    EXPECT_TRUE(channel.breach.empty());
}

TEST(CommandLoop, WakesFromItsSleep) {
    // By itself the loop wakes later than this test waits for it.
    Channel channel(kStart, {}, 90s);
    const std::atomic<std::uint32_t>& sleeping = channel.memory->host_words().consumer_sleeps;
    std::set<std::uint32_t> sleeps;
    for (std::size_t i = 1; i <= 50; ++i) {
        ASSERT_TRUE(comes_true([&] { return sleeping.load() != 0; }));
        EXPECT_TRUE(sleeps.insert(sleeping.load()).second) << "a guest rings once for a number";
        channel.send(ControlOp::kDropImage);
        ASSERT_TRUE(channel.wait_for(i));
    }
    // A loop that is held sleeps no more: it is told to stop at once.
    EXPECT_TRUE(channel.loop.hold(std::chrono::steady_clock::now() + 30s));
}

TEST(CommandLoop, AHoldWakesItFromItsSleep) {
    // By itself the loop wakes later than the hold may take.
    Channel channel(kStart, {}, 90s);
    const std::atomic<std::uint32_t>& sleeping = channel.memory->host_words().consumer_sleeps;
    ASSERT_TRUE(comes_true([&] { return sleeping.load() != 0; }));
    EXPECT_TRUE(channel.loop.hold(std::chrono::steady_clock::now() + 10s));
    channel.loop.resume();
}

TEST(CommandLoop, HoldStopsAtABoundaryAndResumeGoesOn) {
    Channel channel;
    channel.send(ControlOp::kDropImage);
    ASSERT_TRUE(channel.wait_for(1));
    ASSERT_TRUE(channel.loop.hold(std::chrono::steady_clock::now() + 1s));
    const std::uint64_t held_at = channel.loop.next();
    const std::uint64_t first = channel.send(ControlOp::kDropImage);
    EXPECT_EQ(first, held_at);
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(channel.count(), 1u);
    EXPECT_EQ(channel.memory->host_words().head.load(), held_at);
    channel.loop.seal();
    channel.loop.resume();
    ASSERT_TRUE(channel.wait_for(2));
    EXPECT_EQ(channel.positions[1], held_at);
}

TEST(CommandLoop, CallbackCommandsPassAHeldRingOnceAndAreSkippedLater) {
    std::uint64_t held_at = 0;
    std::uint64_t done_at = 0;
    std::set<std::uint64_t> ahead;
    {
        Channel channel;
        ASSERT_TRUE(channel.loop.hold(std::chrono::steady_clock::now() + 1s));
        held_at = channel.send(ControlOp::kDropImage, 0, 1);
        done_at = channel.send(ControlOp::kCallbackDone, 0, 2);
        ASSERT_TRUE(channel.wait_for(1));
        EXPECT_EQ(channel.positions[0], done_at);
        channel.loop.seal();
        channel.send(ControlOp::kCallbackDone, 0, 3);
        std::this_thread::sleep_for(20ms);
        EXPECT_EQ(channel.count(), 1u);
        ahead = channel.loop.executed_ahead();
        EXPECT_EQ(ahead, std::set<std::uint64_t>{done_at});
        EXPECT_EQ(channel.loop.next(), held_at);
        channel.loop.resume();
        ASSERT_TRUE(channel.wait_for(3));
        EXPECT_EQ(channel.arguments, (std::vector<std::uint64_t>{2, 1, 3}));
    }
    // Another worker that takes over from the same position must skip it as well.
    Channel target(held_at, ahead);
    target.producer.attach(target.ring, target.memory->layout().ring_bytes,
                           &target.memory->host_words().head, held_at);
    target.send(ControlOp::kDropImage, 0, 1);
    target.send(ControlOp::kCallbackDone, 0, 2);
    target.send(ControlOp::kCallbackDone, 0, 3);
    ASSERT_TRUE(target.wait_for(2));
    EXPECT_EQ(target.arguments, (std::vector<std::uint64_t>{1, 3}));
}

TEST(CommandLoop, CallbackCommandsBehindACommandThatIsHeldUpAreHelpedThrough) {
    Channel channel;
    channel.send(ControlOp::kDropImage, 0, kHeldUp);
    channel.send(ControlOp::kDropImage, 0, 1);
    const std::uint64_t done_at = channel.send(ControlOp::kCallbackDone, 0, 2);
    ASSERT_TRUE(channel.wait_for(1));
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(channel.count(), 1u);
    channel.loop.help_callbacks();  // The loop may just have moved.
    channel.loop.help_callbacks();
    channel.loop.help_callbacks();
    ASSERT_TRUE(channel.wait_for(3));
    EXPECT_EQ(channel.positions[1], done_at);
    EXPECT_EQ(channel.arguments, (std::vector<std::uint64_t>{kHeldUp, 2, 1}));
    channel.send(ControlOp::kCallbackDone, 0, 3);
    ASSERT_TRUE(channel.wait_for(4));
    EXPECT_TRUE(channel.loop.executed_ahead().empty());
}

TEST(RingProducer, KeepsRoomForTheCommandsOfCallbacks) {
    std::vector<std::byte> ring(1 << 16);
    std::atomic<std::uint64_t> head{0};
    wire::RingProducer producer;
    producer.attach(ring.data(), ring.size(), &head, 0);
    wire::RingRecord record;
    const auto launch = static_cast<std::uint16_t>(ControlOp::kDropImage);
    while (producer.try_reserve(launch, 0, 8, 0, &record)) {
    }
    const auto done = static_cast<std::uint16_t>(ControlOp::kCallbackDone);
    EXPECT_TRUE(producer.try_reserve(done, 0, 8, 0, &record));
    EXPECT_FALSE(producer.try_reserve(launch, 0, 8, 0, &record));
}

TEST(CommandLoop, HostileRecordsStopTheChannelByName) {
    Channel channel;
    const std::uint64_t first = channel.send(ControlOp::kDropImage);
    ASSERT_TRUE(channel.wait_for(1));
    while (channel.loop.next() == first) {  // It moves on when the command has been executed.
        std::this_thread::sleep_for(1ms);
    }
    auto* header = reinterpret_cast<wire::CommandHeader*>(
        channel.ring + (channel.loop.next() & (channel.memory->layout().ring_bytes - 1)));
    header->bytes = 64;
    header->args_bytes = ~0u;
    header->trailing_bytes = ~0u;
    header->lane = 1;
    header->op = 100;
    header->publish.store(channel.loop.next() + 1);
    channel.memory->guest_words().doorbell.fetch_add(1);
    wire::futex_wake_all(&channel.memory->guest_words().doorbell);
    const auto has_stopped = [&] {
        const std::lock_guard lock(channel.mutex);
        return !channel.breach.empty();
    };
    for (int i = 0; i < 10'000 && !has_stopped(); ++i) {
        std::this_thread::sleep_for(1ms);
    }
    EXPECT_EQ(channel.breach, "arguments longer than their record");
    EXPECT_EQ(channel.count(), 1u);
}

Answer make_answer(std::uint64_t position, std::uint32_t lane, std::uint32_t status,
                   std::size_t payload) {
    Answer answer;
    answer.position = position;
    answer.lane = lane;
    answer.status = status;
    answer.payload.assign(payload, static_cast<std::byte>(lane));
    return answer;
}

void publish(ReplyBoard& board, const Answer& answer) { board.publish(answer, answer.payload); }

struct Board {
    Board() {
        auto region = ChannelMemory::create_region(kRegionBytes);
        memory = ChannelMemory::map(std::move(region).value(), {0, kRegionBytes}).value();
        board.attach(memory.get());
    }
    std::unique_ptr<ChannelMemory> memory;
    ReplyBoard board;
};

TEST(ReplyBoard, PublishesAndKeepsTheLastAnswerOfALane) {
    Board b;
    publish(b.board, make_answer(kStart, 7, 0, 100));
    Answer newer = make_answer(kStart + 64, 7, 2, 8);
    newer.flags = 5;
    publish(b.board, newer);
    EXPECT_EQ(b.memory->reply(7).seq.load(), kStart + 65);
    EXPECT_EQ(b.memory->reply(7).status, 2u);
    EXPECT_EQ(b.memory->reply(7).flags, 5u);
    EXPECT_EQ(b.memory->reply(7).payload_bytes, 8u);
    const auto log = b.board.log();
    ASSERT_EQ(log.size(), 1u);
    EXPECT_EQ(log[0].position, kStart + 64);
}

/// The page bytes that a hypervisor did not carry come back, bulk bytes included; without the log
/// the second half of this test would find zeros.
TEST(ReplyBoard, RepublishesWhatTheMigrationLost) {
    std::vector<Answer> log;
    std::vector<std::uint64_t> confirmed;
    {
        Board source;
        Answer answer = make_answer(kStart + 128, 5, 0, 64);
        answer.bulk_offset = 8192;
        answer.bulk_bytes = 5000;
        std::memset(source.memory->bulk(8192, 5000).data(), 0x77, 5000);
        publish(source.board, answer);
        source.board.confirm(9, kStart + 192);
        log = source.board.log();
        confirmed = source.board.confirmed();
    }
    Board target;
    EXPECT_EQ(target.memory->reply(5).seq.load(), 0u);
    ASSERT_TRUE(target.board.load(log, confirmed).ok());
    target.board.republish();
    EXPECT_EQ(target.memory->reply(5).seq.load(), kStart + 129);
    EXPECT_EQ(target.memory->bulk(8192, 5000)[4999], std::byte{0x77});
    EXPECT_EQ(target.memory->host_words().confirm_seq[9].load(), kStart + 193);
    EXPECT_EQ(target.board.log().size(), 1u);
}

TEST(ReplyBoard, TheNewestAnswerWinsAnExtentThatWasReused) {
    Answer old_answer = make_answer(kStart, 1, 0, 0);
    old_answer.bulk_bytes = 4096;
    Answer new_answer = make_answer(kStart + 64, 0, 0, 0);
    new_answer.bulk_bytes = 4096;
    std::vector<Answer> log{old_answer, new_answer};
    log[0].bulk.assign(4096, std::byte{1});
    log[1].bulk.assign(4096, std::byte{2});
    Board target;
    ASSERT_TRUE(target.board.load(log, {}).ok());
    target.board.republish();
    EXPECT_EQ(target.memory->bulk(0, 4096)[0], std::byte{2});
}

/// A snapshot says where an answer's bytes were, and is not believed.
TEST(ReplyBoard, BytesThatLieOutsideOfTheRegionAreNotWritten) {
    Board target;
    Answer answer = make_answer(kStart, 1, 0, 0);
    answer.bulk_offset = target.memory->layout().bulk_bytes;
    answer.bulk_bytes = 16;
    answer.bulk.assign(16, std::byte{1});
    ASSERT_TRUE(target.board.load({&answer, 1}, {}).ok());
    target.board.republish();
    EXPECT_EQ(target.memory->reply(1).seq.load(), kStart + 1);
    EXPECT_EQ(target.memory->pinned()[0], std::byte{0}) << "which is what follows";
}

/// Each lane's thread publishes for itself; what one writes down must not undo another's.
TEST(ReplyBoard, KeepsTheAnswersOfLanesThatAnswerAtOnce) {
    Board b;
    constexpr int kRounds = 2'000;
    std::atomic<ReplyBoard*> board{nullptr};
    std::atomic<int> round{0};
    std::atomic<int> done{0};
    const auto publish_half = [](ReplyBoard& to, std::uint32_t first) {
        for (std::uint32_t lane = first; lane < wire::kLaneCount; lane += 2) {
            publish(to, make_answer(kStart + lane * 64, lane, 0, 0));
        }
    };
    std::thread other([&] {
        for (int i = 1; i <= kRounds; ++i) {
            while (round.load() != i) {
                std::this_thread::yield();
            }
            publish_half(*board.load(), 1);
            done.store(i);
        }
    });
    std::size_t lost = 0;
    for (int i = 1; i <= kRounds; ++i) {
        ReplyBoard fresh;
        fresh.attach(b.memory.get());
        board = &fresh;
        round = i;
        publish_half(fresh, 0);
        while (done.load() != i) {
            std::this_thread::yield();
        }
        lost += wire::kLaneCount - fresh.log().size();
    }
    other.join();
    EXPECT_EQ(lost, 0u);
}

/// A guest may send its lane's next command as soon as the page shows the answer to the last one;
/// another thread may then answer it while the first is still busy with the log.
TEST(ReplyBoard, ALanesPublishersTakeTurns) {
    Board b;
    constexpr std::uint64_t kAnswers = 4'000;
    const auto publish_every_other = [&](std::uint64_t first) {
        for (std::uint64_t i = first; i < kAnswers; i += 2) {
            while (b.memory->reply(3).seq.load() != (i == 0 ? 0 : kStart + i)) {
                std::this_thread::yield();
            }
            publish(b.board, make_answer(kStart + i, 3, 0, i % 101));
        }
    };
    std::thread other([&] { publish_every_other(1); });
    publish_every_other(0);
    other.join();
    const auto log = b.board.log();
    ASSERT_EQ(log.size(), 1u);
    EXPECT_EQ(log[0].position, kStart + kAnswers - 1);
    EXPECT_EQ(log[0].payload, std::vector<std::byte>((kAnswers - 1) % 101, std::byte{3}));
}

TEST(ReplyBoard, RefusesAnImpossibleLog) {
    Board b;
    std::vector<Answer> log{make_answer(kStart, wire::kLaneCount, 0, 0)};
    EXPECT_FALSE(b.board.load(log, {}).ok());
    log = {make_answer(kStart, 0, 0, wire::kReplyInlineBytes + 1)};
    EXPECT_FALSE(b.board.load(log, {}).ok());
    log = {make_answer(kStart, 0, 0, 0)};
    log[0].bulk.resize(10);
    log[0].bulk_bytes = 11;
    EXPECT_FALSE(b.board.load(log, {}).ok());
}

TEST(ChannelMemory, GivesNoExtentOutsideTheBulkArea) {
    Board b;
    const std::uint64_t bulk = b.memory->layout().bulk_bytes;
    EXPECT_EQ(b.memory->bulk(0, bulk).size(), bulk);
    EXPECT_TRUE(b.memory->bulk(bulk, 1).empty());
    EXPECT_TRUE(b.memory->bulk(1, bulk).empty());
    EXPECT_TRUE(b.memory->bulk(~0ull, 2).empty());
    EXPECT_TRUE(b.memory->bulk(2, ~0ull).empty());
}

TEST(ChannelMemory, RefusesAFileThatIsTooShort) {
    auto region = ChannelMemory::create_region(kRegionBytes);
    auto mapped = ChannelMemory::map(std::move(region).value(), {0, 2 * kRegionBytes});
    ASSERT_FALSE(mapped.ok());
    EXPECT_EQ(mapped.error().reason, "region.size");
}

TEST(CallbackBroker, HandsCallbacksToTheGuestOneByOne) {
    std::vector<wire::CallbackReply> given;
    std::mutex mutex;
    CallbackBroker broker(
        [&](const CallbackBroker::Parked&, const wire::CallbackReply& reply) {
            std::lock_guard lock(mutex);
            given.push_back(reply);
        },
        [] {});
    auto given_count = [&] {
        std::lock_guard lock(mutex);
        return given.size();
    };
    wire::CallbackReply reply{};
    reply.function = 0x1234;
    auto* first = broker.add(reply, 1);
    auto* second = broker.add(reply, 1);
    EXPECT_EQ(broker.outstanding(), 2u);
    broker.wait({kStart, 63});
    std::thread driver([&] {
        CallbackBroker::run(first, 0);
        CallbackBroker::run(second, 719);
    });
    while (given_count() < 1) {
        std::this_thread::yield();
    }
    EXPECT_FALSE(broker.parked().has_value());
    EXPECT_FALSE(broker.done(given[0].callback_id + 1));
    broker.wait({kStart + 64, 63});
    EXPECT_EQ(given_count(), 1u);
    EXPECT_TRUE(broker.done(given[0].callback_id));
    while (given_count() < 2) {
        std::this_thread::yield();
    }
    EXPECT_EQ(given[1].status, 719u);
    EXPECT_TRUE(broker.done(given[1].callback_id));
    driver.join();
    EXPECT_EQ(broker.outstanding(), 0u);
}

TEST(CallbackBroker, CancelLetsStreamsGo) {
    CallbackBroker broker([](const CallbackBroker::Parked&, const wire::CallbackReply&) {}, [] {});
    auto* callback = broker.add({}, 1);
    std::thread driver([&] { CallbackBroker::run(callback, 0); });
    broker.cancel();
    driver.join();
    EXPECT_EQ(broker.outstanding(), 0u);
}

TEST(ImageStore, TakesPiecesInOrderAndSharesEqualImages) {
    ImageStore store(1 << 20);
    const std::vector<std::byte> bytes(1000, std::byte{42});
    const std::span<const std::byte> all = bytes;
    EXPECT_TRUE(store.stage(1, 1000, 0, all.first(600)).ok());
    EXPECT_FALSE(store.take(1, 1000).ok());
    EXPECT_TRUE(store.stage(1, 1000, 600, all.subspan(600)).ok());
    auto first = store.take(1, 1000);
    ASSERT_TRUE(first.ok());
    EXPECT_FALSE(store.take(1, 1000).ok());
    EXPECT_TRUE(store.stage(2, 1000, 0, all).ok());
    auto second = store.take(2, 1000);
    ASSERT_TRUE(second.ok());
    EXPECT_EQ(*first, *second);
    EXPECT_EQ(store.find((*first)->sha256), *first);
    EXPECT_EQ(store.staged_bytes(), 0u);
}

TEST(ImageStore, FillsTheGapBetweenAlignedParts) {
    ImageStore store(1 << 20);
    const std::vector<std::byte> bytes(13, std::byte{1});
    EXPECT_TRUE(store.stage(1, 32, 0, bytes).ok());
    EXPECT_TRUE(store.stage(1, 32, 16, bytes).ok());
    auto image = store.take(1, 32);
    ASSERT_TRUE(image.ok());
    EXPECT_EQ((*image)->bytes[14], std::byte{0});
    EXPECT_EQ((*image)->bytes[16], std::byte{1});
    EXPECT_EQ((*image)->bytes[31], std::byte{0});
}

TEST(ImageStore, RefusesHostilePieces) {
    ImageStore store(4096);
    const std::vector<std::byte> bytes(100);
    EXPECT_FALSE(store.stage(1, 0, 0, bytes).ok());
    EXPECT_FALSE(store.stage(1, 5000, 0, bytes).ok());
    EXPECT_FALSE(store.stage(1, ~0ull, 0, bytes).ok());
    EXPECT_FALSE(store.stage(1, 200, 50, bytes).ok());
    EXPECT_TRUE(store.stage(2, 150, 0, bytes).ok());
    EXPECT_FALSE(store.stage(2, 150, 100, bytes).ok());
    EXPECT_EQ(store.staged_bytes(), 0u);
}

TEST(OutputCapture, DeliversPiecesAndSplitsThemWhenRoomIsShort) {
    OutputCapture output;
    const std::string text = "hello from a kernel";
    output.push(1, std::as_bytes(std::span(text)));
    output.push(2, std::as_bytes(std::span(text)));
    EXPECT_TRUE(output.pending());
    OutputCapture copy;
    copy.load(output.save());
    std::string got[2];
    std::byte room[20];
    while (copy.pending()) {
        const std::size_t used = copy.take(room);
        for (std::size_t at = 0; at < used;) {
            std::uint32_t header[2];
            std::memcpy(header, room + at, 8);
            got[header[0] - 1].append(reinterpret_cast<const char*>(room + at + 8), header[1]);
            at += 8 + header[1];
        }
    }
    EXPECT_EQ(got[0], text);
    EXPECT_EQ(got[1], text);
}

GantrySoftOutput g_sink = nullptr;
void* g_sink_user = nullptr;

TEST(OutputCapture, ADriversChannelsAreTheProgramsOutputAndErrors) {
    GantrySoftExtension extension{};
    extension.set_output = [](GantrySoftOutput sink, void* user) {
        g_sink = sink;
        g_sink_user = user;
        return CUDA_SUCCESS;
    };
    OutputCapture output;
    output.attach(&extension);
    ASSERT_NE(g_sink, nullptr);
    for (const int channel : {1, 2}) {
        g_sink(g_sink_user, channel, "x", 1);
        std::byte room[64];
        ASSERT_EQ(output.take(room), 9u);
        std::uint32_t descriptor = 0;
        std::memcpy(&descriptor, room, sizeof descriptor);
        EXPECT_EQ(descriptor, static_cast<std::uint32_t>(channel));
    }
}

TEST(LaneExecutors, RunsALanesJobsInOrderAndLanesBesideEachOther) {
    std::atomic<int> started{0};
    LaneExecutors executors([&] { started.fetch_add(1); });
    std::atomic<bool> go{false};
    std::vector<int> order;
    executors.post(1, [&] {
        while (!go.load()) {
            std::this_thread::yield();
        }
        order.push_back(1);
    });
    executors.post(1, [&] { order.push_back(2); });
    executors.post(2, [&] { go.store(true); });  // Would never run behind lane 1.
    EXPECT_TRUE(executors.wait_idle(std::chrono::steady_clock::now() + 5s));
    EXPECT_EQ(order, (std::vector<int>{1, 2}));
    EXPECT_EQ(started.load(), 2);
    executors.post(3, [] { std::this_thread::sleep_for(50ms); });
    EXPECT_FALSE(executors.wait_idle(std::chrono::steady_clock::now() + 1ms));
}

}  // namespace
}  // namespace gantry::worker
