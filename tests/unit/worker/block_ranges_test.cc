#include "host-daemon/state/blocks/block_ranges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "host-daemon/state/blocks/fingerprint_table.h"

namespace gantry::state {
namespace {

using Block = std::pair<MemorySpace, std::uint64_t>;

BlockRange device(std::uint64_t first, std::uint64_t count) {
    return {MemorySpace::kDevice, first, count};
}

std::vector<Block> blocks_of(std::span<const BlockRange> ranges) {
    std::vector<Block> blocks;
    for (const BlockRange& range : ranges) {
        EXPECT_NE(range.count, 0U);
        for (std::uint64_t i = 0; i < range.count; ++i) {
            blocks.emplace_back(range.space, range.first + i);
        }
    }
    return blocks;
}

TEST(BlockRanges, WhatIsTakenFromOutsideOrBetweenChangesNothing) {
    const std::vector ranges{device(10, 5), device(20, 5)};
    const auto rest = without(ranges, {device(0, 10), device(15, 5), device(25, 100)});
    EXPECT_EQ(blocks_of(rest), blocks_of(ranges));
}

TEST(BlockRanges, OneThatIsTakenMayReachOverTwo) {
    const std::vector ranges{device(10, 5), device(20, 5)};
    const auto rest = without(ranges, {device(12, 10)});
    EXPECT_EQ(blocks_of(rest), blocks_of(std::vector{device(10, 2), device(22, 3)}));
}

TEST(BlockRanges, TheSameNumbersOfAnotherSpaceStay) {
    const std::vector ranges{device(10, 5), BlockRange{MemorySpace::kArray, 10, 5}};
    const auto rest = without(ranges, {BlockRange{MemorySpace::kArray, 10, 5}});
    EXPECT_EQ(blocks_of(rest), blocks_of(std::vector{device(10, 5)}));
}

TEST(BlockRanges, AreTakenAsSetsAre) {
    std::mt19937 random(11);
    for (int round = 0; round < 2000; ++round) {
        const auto some = [&random] {  // In ascending order, none touches the next.
            std::vector<BlockRange> ranges;
            for (const MemorySpace space : {MemorySpace::kDevice, MemorySpace::kArray}) {
                std::uint64_t at = random() % 4;
                for (std::uint64_t count = random() % 5; count != 0; --count) {
                    ranges.push_back({space, at, 1 + random() % 6});
                    at += ranges.back().count + 1 + random() % 4;
                }
            }
            return ranges;
        };
        const std::vector<BlockRange> ranges = some();
        std::vector<BlockRange> taken = some();
        const std::vector<Block> gone = blocks_of(taken);
        const std::set<Block> is_gone(gone.begin(), gone.end());
        std::vector<Block> wanted;
        for (const Block& block : blocks_of(ranges)) {
            if (!is_gone.contains(block)) {
                wanted.push_back(block);
            }
        }
        std::shuffle(taken.begin(), taken.end(), random);
        const auto rest = without(ranges, taken);
        EXPECT_EQ(blocks_of(rest), wanted) << "round " << round;
    }
}

TEST(BlockRanges, TheFirstAreTakenByAddress) {
    const BlockRange array{MemorySpace::kArray, 1, 3};
    std::vector ranges{array, device(20, 5), device(10, 5)};
    const std::vector all{device(10, 5), device(20, 5), array};
    EXPECT_TRUE(take_first(&ranges, 0).empty());
    std::vector<Block> taken;
    for (const std::uint64_t count : {3, 2, 4, 2, 100, 1}) {
        const auto some = blocks_of(take_first(&ranges, count));
        taken.insert(taken.end(), some.begin(), some.end());
        auto both = taken;
        const auto left = blocks_of(ranges);
        both.insert(both.end(), left.begin(), left.end());
        EXPECT_EQ(both, blocks_of(all)) << count;
    }
    EXPECT_TRUE(ranges.empty());
}

TEST(FingerprintTable, CountsWhatIsLeftOfALook) {
    FingerprintTable table;
    for (std::uint64_t i = 0; i < 600; ++i) {
        table.set({MemorySpace::kDevice, i}, {i + 1, i + 2});
    }
    table.set({MemorySpace::kDevice, 3}, {7, 8});
    EXPECT_EQ(table.size(), 600U);
    table.begin_look();
    for (std::uint64_t i = 0; i < 600; i += 3) {
        EXPECT_NE(table.find({MemorySpace::kDevice, i}), nullptr);
    }
    EXPECT_EQ(table.drop_unseen(), 400U);
    EXPECT_EQ(table.size(), 200U);
    table.erase({MemorySpace::kDevice, 3});
    table.erase({MemorySpace::kDevice, 4});
    EXPECT_EQ(table.size(), 199U);
    std::uint64_t visited = 0;
    table.for_each([&](engine::BlockAddress, const snapshot::Fingerprint&) { ++visited; });
    EXPECT_EQ(visited, 199U);
    table.begin_look();
    EXPECT_EQ(table.drop_unseen(), 199U);
    EXPECT_TRUE(table.empty());
}

}  // namespace
}  // namespace gantry::state
