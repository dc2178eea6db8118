#include "host-daemon/supervisor/workers/memory_slot.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "host-daemon/execution/base/memory_share.h"

namespace gantry::supervisor {
namespace {

constexpr std::uint64_t kMib = 1ull << 20;

/// A device that has memory without end.
struct EndlessDevice : worker::GranuleMapper {
    Result<void> map(DeviceVa, std::uint64_t) override { return {}; }
    void unmap(DeviceVa, std::uint64_t) override {}
};

class MemorySlotTest : public testing::Test {
protected:
    MemorySlotTest()
        : folder_(std::filesystem::temp_directory_path() /
                  ("gantry-slots-" + std::to_string(::getpid()))) {
        std::filesystem::create_directories(folder_);
    }
    ~MemorySlotTest() override { std::filesystem::remove_all(folder_); }
    [[nodiscard]] std::string path() const { return (folder_ / "one.memory").string(); }
    MemorySlot claim() {
        auto slot = MemorySlot::claim(path());
        EXPECT_TRUE(slot.ok()) << slot.error().text;
        return std::move(slot).value();
    }
    std::filesystem::path folder_;
};

TEST_F(MemorySlotTest, TheQuotaHoldsForAllWorkersTogether) {
    MemorySlot first = claim();
    MemorySlot second = claim();
    EXPECT_NE(first.index(), second.index());
    EndlessDevice device;
    worker::MemoryShare a(device);
    worker::MemoryShare b(device);
    ASSERT_TRUE(a.join(first.fd(), first.index(), 100 * kMib).ok());
    ASSERT_TRUE(b.join(second.fd(), second.index(), 100 * kMib).ok());
    EXPECT_TRUE(a.map(DeviceVa{0}, 60 * kMib).ok());
    const auto refused = b.map(DeviceVa{0}, 50 * kMib);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().reason, "memory.quota");
    EXPECT_TRUE(b.map(DeviceVa{0}, 40 * kMib).ok());
    EXPECT_EQ(a.used_bytes(0), 100 * kMib);
    a.unmap(DeviceVa{0}, 60 * kMib);
    EXPECT_TRUE(b.map(DeviceVa{0}, 50 * kMib).ok());
    EXPECT_EQ(b.used_bytes(0), 90 * kMib);
}

TEST_F(MemorySlotTest, ARestoreIsCountedButNotRefused) {
    MemorySlot first = claim();
    EndlessDevice device;
    worker::MemoryShare share(device);
    ASSERT_TRUE(share.join(first.fd(), first.index(), 10 * kMib).ok());
    share.set_restoring(true);
    EXPECT_TRUE(share.map(DeviceVa{0}, 12 * kMib).ok());
    share.set_restoring(false);
    EXPECT_EQ(share.used_bytes(0), 12 * kMib);
    EXPECT_FALSE(share.map(DeviceVa{0}, 2 * kMib).ok());
    EXPECT_EQ(share.used_bytes(0), 12 * kMib);
}

TEST_F(MemorySlotTest, WhatADeadWorkerHadIsFreeAgain) {
    MemorySlot first = claim();
    MemorySlot second = claim();
    EndlessDevice device;
    worker::MemoryShare living(device);
    {
        worker::MemoryShare dying(device);
        ASSERT_TRUE(dying.join(first.fd(), first.index(), 100 * kMib).ok());
        ASSERT_TRUE(dying.map(DeviceVa{0}, 90 * kMib).ok());
    }
    ASSERT_TRUE(living.join(second.fd(), second.index(), 100 * kMib).ok());
    EXPECT_FALSE(living.map(DeviceVa{0}, 20 * kMib).ok());
    first.release();
    EXPECT_TRUE(living.map(DeviceVa{0}, 20 * kMib).ok());
    MemorySlot third = claim();
    EXPECT_EQ(third.index(), 0u);
    EXPECT_EQ(living.used_bytes(0), 20 * kMib);
}

TEST_F(MemorySlotTest, AWorkerThatCutsTheFileHarmsNobodyElse) {
    MemorySlot first = claim();
    MemorySlot second = claim();
    ASSERT_EQ(::ftruncate(first.fd(), 0), 0);
    auto adopted = MemorySlot::adopt(path(), second.index());  // By a restarted gantryd.
    ASSERT_TRUE(adopted.ok()) << adopted.error().text;
    EXPECT_EQ(claim().index(), 0u);
    first.release();
    adopted->release();
    second.release();
    EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(MemorySlotTest, ARestartedGantrydFindsItAndTheLastOneRemovesIt) {
    std::uint32_t index = 0;
    {
        MemorySlot left = claim();  // Not released: gantryd is restarted.
        index = left.index();
    }
    auto adopted = MemorySlot::adopt(path(), index);
    ASSERT_TRUE(adopted.ok()) << adopted.error().text;
    MemorySlot other = claim();
    EXPECT_NE(other.index(), index);
    other.release();
    EXPECT_TRUE(std::filesystem::exists(path()));
    adopted->release();
    EXPECT_FALSE(std::filesystem::exists(path()));
    EXPECT_EQ(MemorySlot::adopt(path(), index).error().reason, "memory.page");
}

}  // namespace
}  // namespace gantry::supervisor
