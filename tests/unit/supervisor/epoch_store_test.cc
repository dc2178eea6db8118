// The durable record: what save() claims must be what a restart reads, whichever step fails.
#include "host-daemon/supervisor/moves/epoch_store.h"

#include <gtest/gtest.h>

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>

namespace {
thread_local std::size_t t_written_at_once = SIZE_MAX;
}  // namespace

/// In the C library's place: a file may take less than it is given.
extern "C" ssize_t write(int fd, const void* bytes, std::size_t count) {
    return ::syscall(SYS_write, fd, bytes, std::min(count, t_written_at_once));
}

namespace gantry::supervisor {
namespace {

class EpochStoreTest : public testing::Test {
protected:
    void SetUp() override {
        std::string pattern = testing::TempDir() + "epochsXXXXXX";
        ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
        folder_ = pattern;
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }
    EpochStore open() {
        auto store = EpochStore::open(folder_);
        EXPECT_TRUE(store.ok());
        return std::move(store).value();
    }
    std::string folder_;
};

engine::DurableRecord owned(std::uint64_t epoch) {
    engine::DurableRecord record;
    record.epoch.value = epoch;
    return record;
}

engine::DurableRecord granted(std::uint64_t epoch) {
    engine::DurableRecord record = owned(epoch);
    record.granted = true;
    record.granted_migration = {0x1122334455667788, 0x99AABBCCDDEEFF00};
    record.granted_token = {record.granted_migration, 3};
    record.granted_peer = "10.77.0.2/host b";
    return record;
}

TEST_F(EpochStoreTest, UnknownSessionIsNoError) {
    const auto loaded = open().load("s");
    ASSERT_TRUE(loaded.ok());
    EXPECT_FALSE(loaded->has_value());
}

TEST_F(EpochStoreTest, SurvivesReopening) {
    {
        EpochStore store = open();
        ASSERT_TRUE(store.save("s", owned(4)).ok());
        ASSERT_TRUE(store.save("s", granted(4)).ok());
    }
    const auto loaded = open().load("s");
    ASSERT_TRUE(loaded.ok());
    ASSERT_TRUE(loaded->has_value());
    EXPECT_EQ(**loaded, granted(4));
    EXPECT_EQ(open().sessions().value(), std::vector<std::string>{"s"});
}

TEST_F(EpochStoreTest, IsWholeWhenItWasWrittenInPieces) {
    for (const std::size_t piece : {1U, 7U, 40U}) {
        EpochStore store = open();
        t_written_at_once = piece;
        const SaveOutcome outcome = store.save("s", granted(piece));
        t_written_at_once = SIZE_MAX;
        ASSERT_TRUE(outcome.ok()) << piece;
        const auto loaded = open().load("s");
        ASSERT_TRUE(loaded.ok()) << piece << ": " << loaded.error().to_string();
        EXPECT_EQ(**loaded, granted(piece));
    }
}

// A VM that is started again anywhere must not count from where a host has granted it already.
TEST(FirstEpoch, IsAboveThoseOfEarlierLives) {
    const std::chrono::sys_seconds now{std::chrono::seconds{1'795'000'000}};
    EXPECT_EQ(first_epoch(std::nullopt, now).value, 1'795'000'000u);
    EXPECT_GT(first_epoch(owned(3), now), first_epoch(std::nullopt, now - std::chrono::hours{1}));
    EXPECT_EQ(first_epoch(owned(1'900'000'000), now).value, 1'900'000'002u);  // Granted perhaps.
    EXPECT_EQ(first_epoch(owned(7), std::chrono::sys_seconds{}).value, 9u);   // Without a clock.
    EXPECT_EQ(first_epoch(std::nullopt, std::chrono::sys_seconds{}).value, 1u);
}

TEST_F(EpochStoreTest, EveryFailingStepIsEitherProvenOrUnknown) {
    for (int fail_at = 0; fail_at < 5; ++fail_at) {
        EpochStore store = open();
        ASSERT_TRUE(store.save("s", owned(1)).ok());
        int steps = 0;
        store.set_fault([&](StoreStep) { return steps++ == fail_at ? ENOSPC : 0; });
        const SaveOutcome outcome = store.save("s", granted(1));
        ASSERT_FALSE(outcome.ok()) << "step " << fail_at;
        const auto on_disk = open().load("s");
        ASSERT_TRUE(on_disk.ok());
        if (outcome.failure == SaveFailure::kProvenUnwritten) {
            EXPECT_EQ(**on_disk, owned(1)) << "step " << fail_at;
            EXPECT_LT(fail_at, 4);
        } else {
            EXPECT_EQ(fail_at, 4) << "only the folder's fsync leaves a doubt";
        }
    }
}

TEST_F(EpochStoreTest, ARemovalThatMayNotBeDurableIsAnError) {
    EpochStore store = *EpochStore::open(folder_);
    ASSERT_TRUE(store.save("session", {}).ok());
    int syncs = 0;
    store.set_fault([&](StoreStep step) {
        EXPECT_EQ(step, StoreStep::kSyncRemoval);
        return ++syncs == 1 ? EIO : 0;
    });
    const auto removed = store.remove("session");
    ASSERT_FALSE(removed.ok());
    EXPECT_EQ(removed.error().reason, "epoch.write");
    EXPECT_TRUE(store.remove("session").ok()) << "once more makes it so";
    EXPECT_EQ(syncs, 2);
}

TEST_F(EpochStoreTest, EveryFlippedByteIsRefused) {
    ASSERT_TRUE(open().save("s", granted(9)).ok());
    const std::string path = folder_ + "/epochs/s";
    std::ifstream in(path, std::ios::binary);
    const std::string good{std::istreambuf_iterator<char>(in), {}};
    for (std::size_t i = 0; i < good.size(); ++i) {
        std::string bad = good;
        bad[i] = static_cast<char>(bad[i] ^ 0x08);
        std::ofstream(path, std::ios::binary | std::ios::trunc) << bad;
        const auto loaded = open().load("s");
        ASSERT_FALSE(loaded.ok()) << "byte " << i;
        EXPECT_EQ(loaded.error().reason, "epoch.corrupt");
    }
}

TEST_F(EpochStoreTest, EveryTruncationIsRefused) {
    ASSERT_TRUE(open().save("s", granted(9)).ok());
    const std::string path = folder_ + "/epochs/s";
    const auto size = std::filesystem::file_size(path);
    for (std::uintmax_t keep = size; keep-- > 0;) {
        std::filesystem::resize_file(path, keep);
        ASSERT_FALSE(open().load("s").ok()) << keep << " bytes";
    }
}

TEST(SessionId, OnlyHarmlessFileNames) {
    EXPECT_TRUE(is_session_id("11111111-0000-4000-8000-000000000001"));
    for (const char* bad : {"", ".", "..", "a/b", "../x", ".hidden", "a b", "x\n"}) {
        EXPECT_FALSE(is_session_id(bad)) << bad;
    }
    EXPECT_FALSE(is_session_id(std::string(65, 'a')));
}

}  // namespace
}  // namespace gantry::supervisor
