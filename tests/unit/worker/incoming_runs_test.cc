// Runs of blocks that come from another worker, into device memory, on the soft GPU's driver.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "tests/unit/worker/holder.h"

namespace gantry::worker {
namespace {

TEST(IncomingRuns, MayReachOverSeveralPiecesOfMemory) {
    Holder holder;
    DeviceMemory& memory = holder.process->memory.device;
    constexpr std::uint64_t kPiece = ArenaAllocator::kGranuleBytes;
    constexpr std::uint64_t kPieces = 5;
    std::uint64_t begin = 0;
    for (std::uint64_t i = 0; i < kPieces; ++i) {
        const std::uint64_t at = memory.allocate(kPiece).value().value;
        begin = i == 0 ? at : begin;
        ASSERT_EQ(at, begin + i * kPiece) << "without gaps";
    }
    // What lies elsewhere is in nobody's way, on either side.
    memory.add_outside(1, begin - 4096, 4096);
    memory.add_outside(1, begin + kPieces * kPiece, 4096);
    constexpr std::uint64_t kAll = kPieces * kPiece / kBlockBytes;
    const engine::BlockAddress first{MemorySpace::kDevice, begin / kBlockBytes};
    const std::span bytes = std::span<const std::byte>(holder.bytes).first(kPieces * kPiece);
    const auto now = [&] {
        std::vector<std::byte> content(bytes.size());
        EXPECT_EQ(holder.device->api().cuMemcpyDtoH_v2(content.data(), begin, content.size()),
                  CUDA_SUCCESS);
        return content;
    };
    ASSERT_TRUE(holder.part.target.apply_run(first, kAll, bytes));
    ASSERT_TRUE(holder.part.target.settle());
    std::vector<std::byte> expected(bytes.begin(), bytes.end());
    EXPECT_EQ(now(), expected);
    const engine::BlockAddress inner{MemorySpace::kDevice, first.index + 7};
    ASSERT_TRUE(holder.part.target.apply_run(inner, kAll - 9, {}));  // Zeros.
    ASSERT_TRUE(holder.part.target.settle());
    std::fill_n(&expected[7 * kBlockBytes], (kAll - 9) * kBlockBytes, std::byte{0});
    EXPECT_EQ(now(), expected);
}

TEST(IncomingRuns, AreWrittenAsFarAsThereIsMemory) {
    Holder holder;
    constexpr std::uint64_t kPiece = ArenaAllocator::kGranuleBytes;
    constexpr std::uint64_t kHalf = kPiece / kBlockBytes;
    const std::uint64_t at = holder.process->memory.device.allocate(kPiece).value().value;
    const engine::BlockAddress first{MemorySpace::kDevice, at / kBlockBytes};
    const std::span bytes = std::span<const std::byte>(holder.bytes).first(2 * kPiece);
    ASSERT_TRUE(holder.part.target.apply_run(first, 2 * kHalf, bytes))
        << "half of it has no place yet";
    ASSERT_TRUE(holder.part.target.settle());
    std::vector<std::byte> now(kPiece);
    ASSERT_EQ(holder.device->api().cuMemcpyDtoH_v2(now.data(), at, kPiece), CUDA_SUCCESS);
    EXPECT_EQ(std::memcmp(now.data(), bytes.data(), kPiece), 0);
}

TEST(DeviceMemory, TellsOfWhatLiesElsewhereInARange) {
    Host host;
    DeviceMemory& memory = host.process->memory.device;
    const auto found = [&](std::uint64_t address, std::uint64_t bytes) {
        std::vector<std::uint64_t> addresses;
        for (const OutsideRange& range : memory.outside_in(address, bytes)) {
            addresses.push_back(range.address);
        }
        return addresses;
    };
    constexpr std::uint64_t kBase = 0x7000'0000'0000;
    for (const std::uint64_t at : {0U, 100U, 200U}) {
        memory.add_outside(1, kBase + at, 50);
    }
    using Addresses = std::vector<std::uint64_t>;
    EXPECT_EQ(found(kBase - 10, 10), Addresses{});
    EXPECT_EQ(found(kBase - 10, 11), Addresses{kBase});
    EXPECT_EQ(found(kBase + 49, 51), Addresses{kBase});
    EXPECT_EQ(found(kBase + 50, 50), Addresses{});
    EXPECT_EQ(found(kBase + 120, 200), (Addresses{kBase + 100, kBase + 200}));
    EXPECT_EQ(found(kBase + 120, 1), Addresses{kBase + 100});
    EXPECT_EQ(found(0, ~std::uint64_t{0}), (Addresses{kBase, kBase + 100, kBase + 200}));
    EXPECT_EQ(found(kBase + 250, 1 << 20), Addresses{});
}

}  // namespace
}  // namespace gantry::worker
