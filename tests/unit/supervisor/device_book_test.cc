#include "host-daemon/supervisor/registry/device_book.h"

#include <gtest/gtest.h>

namespace gantry::supervisor {
namespace {

constexpr std::uint64_t kMebibyte = 1 << 20;

/// Devices 0 and 1 of 100 MiB each; there is no other.
class DeviceBookTest : public testing::Test {
protected:
    DeviceBook book_{[this](DeviceNumber device) -> Result<control::DeviceDescription> {
        ++asked_;
        if (device > 1) {
            return Error{Code::kNotFound, "driver.device", "no such device"};
        }
        control::DeviceDescription out;
        out.set_name("GPU " + std::to_string(device));
        out.set_memory_bytes(100 * kMebibyte);
        return out;
    }};
    int asked_ = 0;
};

TEST_F(DeviceBookTest, IsAskedOnceUnlessAnew) {
    EXPECT_EQ(book_.probe(0, DeviceBook::Probe::kUnlessKnown)->name(), "GPU 0");
    EXPECT_TRUE(book_.probe(0, DeviceBook::Probe::kUnlessKnown).ok());
    EXPECT_EQ(asked_, 1);
    EXPECT_TRUE(book_.probe(0, DeviceBook::Probe::kAnew).ok());
    EXPECT_EQ(asked_, 2);
}

TEST_F(DeviceBookTest, AFailureIsKeptUntilTheDeviceIsThere) {
    EXPECT_FALSE(book_.probe(7, DeviceBook::Probe::kUnlessKnown).ok());
    EXPECT_EQ(book_.error_of(7).reason, "driver.device");
    EXPECT_FALSE(book_.known(7));
    const auto refused = book_.reserve("a", 7, kMebibyte);
    EXPECT_EQ(refused.error().reason, "gpu.absent");
    book_.note(7, {});
    EXPECT_TRUE(book_.error_of(7).reason.empty());
}

TEST_F(DeviceBookTest, NothingIsPromisedTwice) {
    (void)book_.probe(0, DeviceBook::Probe::kUnlessKnown);
    EXPECT_TRUE(book_.reserve("a", 0, 60 * kMebibyte).ok());
    EXPECT_EQ(book_.reserve("b", 0, 41 * kMebibyte).error().reason, "gpu.memory.in_use");
    EXPECT_TRUE(book_.reserve("b", 0, 40 * kMebibyte).ok());
    // Its own counts as free.
    EXPECT_TRUE(book_.reserve("a", 0, 50 * kMebibyte).ok());
    EXPECT_EQ(book_.promised(0), 90 * kMebibyte);
    EXPECT_EQ(book_.reserve("c", 0, 101 * kMebibyte).error().reason, "gpu.memory.in_use");
    book_.forget("a");
    EXPECT_EQ(book_.promised(0), 40 * kMebibyte);
}

TEST_F(DeviceBookTest, APromiseIsOnBothDevicesUntilTheSessionIsOnOne) {
    (void)book_.probe(0, DeviceBook::Probe::kUnlessKnown);
    (void)book_.probe(1, DeviceBook::Probe::kUnlessKnown);
    EXPECT_TRUE(book_.reserve("a", 0, 60 * kMebibyte).ok());
    EXPECT_TRUE(book_.reserve("a", 1, 60 * kMebibyte).ok());
    EXPECT_EQ(book_.reserve("b", 0, 50 * kMebibyte).error().reason, "gpu.memory.in_use");
    EXPECT_EQ(book_.reserve("b", 1, 50 * kMebibyte).error().reason, "gpu.memory.in_use");
    book_.keep_only("a", 1);
    EXPECT_EQ(book_.promised_to("a", 0), 0U);
    EXPECT_EQ(book_.promised_to("a", 1), 60 * kMebibyte);
    EXPECT_TRUE(book_.reserve("b", 0, 50 * kMebibyte).ok());
    EXPECT_EQ(book_.reserve("b", 1, 50 * kMebibyte).error().reason, "gpu.memory.in_use");
}

}  // namespace
}  // namespace gantry::supervisor
