// The ends of events and bulk copies, which a worker shows in words of the region: the guest reads
// them without asking. On the soft GPU's driver.
#include <gtest/gtest.h>

#include "tests/unit/worker/guest_fixture.h"

namespace gantry::worker {
namespace {

TEST(ShownEnds, TellOfEventsButNotWhileAMigrationIsAnnounced) {
    EXPECT_TRUE(in_child([] {
        Serving serving;
        Host& host = serving.host;
        Guest& guest = serving.guest;
        const wire::HostWords& words = serving.channel.host_words();
        const auto& shown = words.event_done[cuda::handle_slot(kEvent) % wire::kEventWords];
        const auto record = [&] {
            return guest.send(Op::cuEventRecord, payload::cuEventRecord_call{kEvent, kStream});
        };
        guest.retain();
        EXPECT_EQ(words.shows_events.load(), 1u);
        guest.send(Op::cuStreamCreate, payload::cuStreamCreate_call{kStream, 1, 0});
        guest.send(Op::cuEventCreate, payload::cuEventCreate_call{kEvent, 0, 0});
        EXPECT_TRUE(reaches(shown, record() + 1)) << "without being asked";
        const std::uint64_t second = record();
        EXPECT_EQ(guest.synchronise(kStream), 0u);
        EXPECT_EQ(shown.load(), second + 1) << "before the answer";
        host.execution->announce(true);
        const std::uint64_t third = record();
        EXPECT_EQ(guest.synchronise(kStream), 0u);
        const auto look_at = [&] {
            return guest.send(ControlOp::kLookAtEvent, wire::LookAtEventCall{kEvent, third});
        };
        EXPECT_TRUE(reaches(words.looked, look_at() + 1));
        EXPECT_EQ(shown.load(), second + 1);
        host.execution->announce(false);
        EXPECT_TRUE(reaches(words.looked, look_at() + 1));
        EXPECT_EQ(shown.load(), third + 1);
        // A record that fails is told by the next answer, and the count says that there is one.
        const std::uint32_t errors = words.late_errors.load();
        guest.send(Op::cuEventRecord, payload::cuEventRecord_call{kEvent, kStream + 1});
        EXPECT_EQ(guest.synchronise(kStream),
                  static_cast<std::uint32_t>(CUDA_ERROR_INVALID_HANDLE));
        EXPECT_EQ(words.late_errors.load(), errors + 1);
    }));
}

/// The worker that takes the region over knows nothing of these records, and no announcement tells
/// the guest to ask: it would take them for pending after it has synchronised.
TEST(ShownEnds, TellOfEventsThatAFreezeHasWaitedFor) {
    EXPECT_TRUE(in_child([] {
        Serving serving;
        Host& host = serving.host;
        Guest& guest = serving.guest;
        const wire::HostWords& words = serving.channel.host_words();
        guest.retain();
        guest.send(Op::cuStreamCreate, payload::cuStreamCreate_call{kStream, 1, 0});
        constexpr std::size_t kEvents = 200;
        std::uint64_t recorded[kEvents] = {};
        for (std::size_t i = 0; i < kEvents; ++i) {
            guest.send(Op::cuEventCreate,
                       payload::cuEventCreate_call{kEvent + i * cuda::kHandleStep, 0, 0});
        }
        EXPECT_EQ(guest.synchronise(kStream), 0u);
        for (std::size_t i = 0; i < kEvents; ++i) {
            recorded[i] =
                guest.send(Op::cuEventRecord,
                           payload::cuEventRecord_call{kEvent + i * cuda::kHandleStep, kStream});
        }
        while (host.execution->loop().next() <= recorded[kEvents - 1]) {
        }
        ASSERT_TRUE(host.execution->freeze(5s).ok());
        std::size_t shown = 0;
        for (std::size_t i = 0; i < kEvents; ++i) {
            const auto slot = cuda::handle_slot(kEvent + i * cuda::kHandleStep) % wire::kEventWords;
            shown += words.event_done[slot].load() == recorded[i] + 1 ? 1 : 0;
        }
        EXPECT_EQ(shown, kEvents);
    }));
}

TEST(ShownEnds, TellOfBulkCopies) {
    EXPECT_TRUE(in_child([] {
        Serving serving;
        ChannelMemory& channel = serving.channel;
        Guest& guest = serving.guest;
        const wire::HostWords& words = channel.host_words();
        const auto copy = [&](ControlOp op, const wire::BulkCopyCall& args) {
            return guest.send(op, args);
        };
        const auto is_done = [&](std::uint32_t word, std::uint64_t value) {
            return reaches(words.bulk_done[word], value);
        };
        guest.retain();
        guest.send(Op::cuStreamCreate, payload::cuStreamCreate_call{kStream, 1, 0});
        const std::uint64_t data = guest.allocate(1 << 20);
        const std::uint64_t out = wire::outbox_bytes(channel.layout()) * 3;
        const auto outbox = channel.bulk(out, 1 << 20);
        const auto inbox = channel.bulk(1 << 20, 1 << 20);
        for (std::size_t i = 0; i < outbox.size(); ++i) {
            outbox[i] = static_cast<std::byte>(i * 7 >> 3);
        }
        EXPECT_EQ(words.bulk_locked.load(), 0u);
        const std::uint64_t there =
            copy(ControlOp::kWriteFromBulk, {data, 1 << 20, kStream, out, 5, 0});
        EXPECT_TRUE(is_done(5, there + 1)) << "without being asked";
        EXPECT_EQ(words.bulk_locked.load(), 1u);
        const std::uint64_t back =
            copy(ControlOp::kReadToBulk, {data, 1 << 20, kStream, 1 << 20, 127, 0});
        EXPECT_TRUE(is_done(127, back + 1));
        EXPECT_EQ(std::memcmp(inbox.data(), outbox.data(), inbox.size()), 0);
        // It tells that all work before it has ended, and so must the events.
        constexpr std::size_t kEvents = 12;
        std::uint64_t recorded[kEvents] = {};
        for (std::size_t i = 0; i < kEvents; ++i) {
            guest.send(Op::cuEventCreate,
                       payload::cuEventCreate_call{kEvent + i * cuda::kHandleStep, 0, 0});
        }
        for (std::size_t i = 0; i < kEvents; ++i) {
            recorded[i] =
                guest.send(Op::cuEventRecord,
                           payload::cuEventRecord_call{kEvent + i * cuda::kHandleStep, kStream});
        }
        const std::uint64_t behind =
            copy(ControlOp::kReadToBulk, {data, 4096, kStream, 1 << 20, 125, 0});
        while (words.bulk_done[125].load(std::memory_order_acquire) != behind + 1) {
        }
        for (std::size_t i = 0; i < kEvents; ++i) {
            const auto slot = cuda::handle_slot(kEvent + i * cuda::kHandleStep) % wire::kEventWords;
            EXPECT_EQ(words.event_done[slot].load(), recorded[i] + 1) << i;
        }
        // A copy that fails frees its extent all the same, and its error is told.
        const std::uint64_t failed =
            copy(ControlOp::kWriteFromBulk, {data, 4096, kStream + 1, out, 6, 0});
        EXPECT_TRUE(is_done(6, failed + 1));
        EXPECT_EQ(guest.synchronise(kStream),
                  static_cast<std::uint32_t>(CUDA_ERROR_INVALID_HANDLE));
        // While a migration is announced a copy to the guest is not shown; one from it is.
        serving.host.execution->announce(true);
        copy(ControlOp::kReadToBulk, {data, 4096, kStream, 1 << 20, 126, 0});
        const std::uint64_t written =
            copy(ControlOp::kWriteFromBulk, {data, 4096, kStream, out, 7, 0});
        EXPECT_EQ(guest.synchronise(kStream), 0u);
        EXPECT_TRUE(is_done(7, written + 1));
        EXPECT_EQ(words.bulk_done[126].load(), 0u);
        serving.host.execution->announce(false);
        // The end of a copy that is not in flight any more was shown to other memory.
        guest.send(ControlOp::kLookAtBulk, wire::LookAtBulkCall{12345, 8, 0});
        EXPECT_TRUE(is_done(8, 12346));
        // What makes no sense is refused, and harms nobody.
        for (const wire::BulkCopyCall& bad :
             {wire::BulkCopyCall{data, 8192, kStream, channel.layout().bulk_bytes - 4096, 9, 0},
              wire::BulkCopyCall{data, ~0ull, kStream, 4096, 9, 0},
              wire::BulkCopyCall{data, 0, kStream, 0, 9, 0},
              wire::BulkCopyCall{data, 4096, kStream, 0, wire::kBulkWords, 0},
              wire::BulkCopyCall{data, 4096, kStream, 0, ~0u, 0}}) {
            for (const ControlOp op : {ControlOp::kWriteFromBulk, ControlOp::kReadToBulk}) {
                copy(op, bad);
                EXPECT_NE(guest.synchronise(kStream), 0u);
            }
        }
        EXPECT_EQ(words.bulk_done[9].load(), 0u);
        EXPECT_EQ(guest.synchronise(kStream), 0u);
    }));
}

}  // namespace
}  // namespace gantry::worker
