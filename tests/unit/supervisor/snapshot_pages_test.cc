// Where the parts of a snapshot will lie in its file, as far as can be told before.
#include "host-daemon/supervisor/snapshots/snapshot_pages.h"

#include <gtest/gtest.h>

#include "proto/snapshot/large_pages.h"

namespace gantry::supervisor {
namespace {

constexpr std::uint64_t kLarge = snapshot::kLargePageBytes;
constexpr std::uint64_t kNoEnd = ~std::uint64_t{0};

TEST(SnapshotPages, PartsFollowEachOtherInLargePages) {
    const PartEstimate parts[] = {{100, 100ULL << 16, 5000}, {0, 0, 0}, {40'000, 3ULL << 30, 1}};
    const auto ranges = lay_out(parts, kNoEnd);
    ASSERT_EQ(ranges.size(), 3U);
    std::uint64_t before = 0;
    for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(ranges[i].begin, before);
        EXPECT_EQ(ranges[i].end % kLarge, 0U);
        EXPECT_GE(ranges[i].bytes(), parts[i].stored_bytes);
        before = ranges[i].end;
    }
    // The blocks, and not much beside them.
    EXPECT_LE(before, (100ULL << 16) + (3ULL << 30) + 6 * kLarge);
}

TEST(SnapshotPages, WhatLiesBeyondTheEndIsLeftOut) {
    const PartEstimate parts[] = {{100, 8 * kLarge, 0}, {100, 8 * kLarge, 0}, {1, kLarge, 0}};
    const auto whole = lay_out(parts, kNoEnd);
    const std::uint64_t end = whole[1].begin + 2 * kLarge;
    const auto ranges = lay_out(parts, end);
    ASSERT_EQ(ranges.size(), 3U);
    EXPECT_EQ(ranges[0].bytes(), whole[0].bytes());
    EXPECT_EQ(ranges[1].begin, whole[1].begin);
    EXPECT_EQ(ranges[1].end, end);
    EXPECT_EQ(ranges[2].bytes(), 0U);
    for (const auto& range : lay_out(parts, 0)) {
        EXPECT_EQ(range.bytes(), 0U);
    }
}

}  // namespace
}  // namespace gantry::supervisor
