// Blocks pulled from a window on another worker's memory, on the soft GPU's driver.
#include <gtest/gtest.h>

#include <random>

#include "host-daemon/state/parts/part.h"
#include "tests/unit/worker/guest_fixture.h"

namespace gantry::worker {
namespace {

using engine::MemorySpace;
using snapshot::Fingerprint;
using snapshot::kBlockBytes;
using state::BlockRange;
using state::Fingerprints;

constexpr snapshot::Seed kPullSeed{0x0123456789abcdef, 0xfedcba9876543210};
constexpr std::uint64_t kMiB = 1 << 20;

/// Memory as another worker would have it: physical pieces with known bytes.
class Other {
public:
    Other(Device& device, std::uint64_t bytes, unsigned seed) : device_(device), content(bytes) {
        std::mt19937_64 random(seed);
        for (std::size_t i = 0; i < bytes; i += 8) {
            const std::uint64_t word = random();
            std::memcpy(&content[i], &word, 8);
        }
        const driver::DriverApi& api = device.api();
        CUmemAllocationProp properties{};
        properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        CUmemAccessDesc access{};
        access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        EXPECT_EQ(api.cuMemCreate(&handle_, bytes, &properties, 0), CUDA_SUCCESS);
        EXPECT_EQ(api.cuMemAddressReserve(&address_, bytes, 0, 0, 0), CUDA_SUCCESS);
        EXPECT_EQ(api.cuMemMap(address_, bytes, 0, handle_, 0), CUDA_SUCCESS);
        EXPECT_EQ(api.cuMemSetAccess(address_, bytes, &access, 1), CUDA_SUCCESS);
        EXPECT_EQ(api.cuMemcpyHtoD_v2(address_, content.data(), bytes), CUDA_SUCCESS);
    }
    ~Other() {
        device_.api().cuMemUnmap(address_, content.size());
        device_.api().cuMemAddressFree(address_, content.size());
        device_.api().cuMemRelease(handle_);
    }
    Other(const Other&) = delete;
    Other& operator=(const Other&) = delete;

    Result<void> show(PeerWindow& window, std::uint64_t address, std::uint64_t serial) const {
        int descriptor = -1;
        EXPECT_EQ(device_.api().cuMemExportToShareableHandle(
                      &descriptor, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                  CUDA_SUCCESS);
        return window.add({address, content.size(), serial}, control::UniqueFd(descriptor));
    }
    [[nodiscard]] std::span<const std::byte> block(std::uint64_t i) const {
        return std::span(content).subspan(i * kBlockBytes, kBlockBytes);
    }

private:
    Device& device_;

public:
    std::vector<std::byte> content;

private:
    CUmemGenericAllocationHandle handle_ = 0;
    CUdeviceptr address_ = 0;
};

/// A worker without a guest, with `bytes` of memory in one extent: zeros, as the soft GPU has them.
struct Fresh : Host {
    explicit Fresh(std::uint64_t bytes) : Host(std::max(bytes, kQuotaBytes)), part(*execution, 1) {
        device->bind_thread();
        address = process->memory.device.allocate(bytes).value().value;
        part.source.begin_precopy(kPullSeed);
    }
    void write(std::uint64_t offset, std::span<const std::byte> bytes) const {
        EXPECT_EQ(device->api().cuMemcpyHtoD_v2(address + offset, bytes.data(), bytes.size()),
                  CUDA_SUCCESS);
    }
    [[nodiscard]] BlockRange blocks(std::uint64_t first, std::uint64_t count) const {
        return {MemorySpace::kDevice, address / kBlockBytes + first, count};
    }
    [[nodiscard]] bool holds(std::uint64_t i, std::span<const std::byte> wanted) const {
        std::vector<std::byte> bytes(kBlockBytes);
        EXPECT_EQ(
            device->api().cuMemcpyDtoH_v2(bytes.data(), address + i * kBlockBytes, bytes.size()),
            CUDA_SUCCESS);
        return std::equal(bytes.begin(), bytes.end(), wanted.begin(), wanted.end());
    }
    state::Part part;
    std::uint64_t address = 0;
};

bool same(const std::vector<BlockRange>& found, const std::vector<BlockRange>& wanted) {
    return std::equal(found.begin(), found.end(), wanted.begin(), wanted.end(),
                      [](const BlockRange& a, const BlockRange& b) {
                          return a.space == b.space && a.first == b.first && a.count == b.count;
                      });
}

TEST(Pull, CopiesWhatBothHaveAndSaysWhatIsLeft) {
    EXPECT_TRUE(in_child([] {
        Fresh fresh(6 * kMiB);
        const Other other(*fresh.device, 4 * kMiB, 1);
        PeerWindow window(*fresh.device);
        ASSERT_TRUE(other.show(window, fresh.address, 1).ok());
        const BlockRange variable{MemorySpace::kDevice, 7, 1};
        const BlockRange array{MemorySpace::kArray, 1ull << 32, 1};
        // Blocks 64 to 95 have memory here, and none in the window; those beyond have none.
        const std::vector<BlockRange> wanted = {
            fresh.blocks(1, 3),  fresh.blocks(6, 1),    variable, fresh.blocks(50, 1),
            fresh.blocks(62, 4), fresh.blocks(1000, 2), array};
        const auto pulled = fresh.part.target.pull(window, wanted, Fingerprints::kOfCopies);
        ASSERT_TRUE(pulled.ok()) << pulled.error().text;
        // 4 and 5 lie in a short gap; 7 to 49 in a long one.
        const std::vector<BlockRange> copied = {fresh.blocks(1, 6), fresh.blocks(50, 1),
                                                fresh.blocks(62, 2)};
        EXPECT_TRUE(same(pulled->copied, copied));
        EXPECT_TRUE(same(pulled->outside, {variable, array}));
        EXPECT_TRUE(same(pulled->absent, {fresh.blocks(64, 2), fresh.blocks(1000, 2)}));
        const snapshot::FingerprintKey key(kPullSeed);
        const std::vector<std::byte> zeros(kBlockBytes);
        std::size_t fingerprint = 0;
        for (std::uint64_t i = 0; i < 64; ++i) {
            const bool is_copied = (i >= 1 && i <= 6) || i == 50 || i >= 62;
            EXPECT_TRUE(fresh.holds(i, is_copied ? other.block(i) : zeros)) << "block " << i;
            if (is_copied) {
                ASSERT_LT(fingerprint, pulled->fingerprints.size());
                EXPECT_EQ(pulled->fingerprints[fingerprint++],
                          snapshot::fingerprint(key, snapshot::BlockSpan(other.block(i))));
            }
        }
        EXPECT_EQ(fingerprint, pulled->fingerprints.size());
    }));
}

TEST(Pull, ALaterPieceTakesThePlaceOfThoseThatItMeets) {
    EXPECT_TRUE(in_child([] {
        Fresh fresh(4 * kMiB);
        PeerWindow window(*fresh.device);
        const Other first(*fresh.device, 2 * kMiB, 1);
        const Other second(*fresh.device, 4 * kMiB, 2);
        const Other third(*fresh.device, 2 * kMiB, 3);
        const std::vector<BlockRange> all = {fresh.blocks(0, 64)};
        ASSERT_TRUE(first.show(window, fresh.address, 1).ok());
        EXPECT_TRUE(same(fresh.part.target.pull(window, all, Fingerprints::kNone)->copied,
                         {fresh.blocks(0, 32)}));
        EXPECT_TRUE(fresh.holds(31, first.block(31)));
        ASSERT_TRUE(second.show(window, fresh.address, 2).ok());
        EXPECT_TRUE(same(fresh.part.target.pull(window, all, Fingerprints::kNone)->copied, all));
        EXPECT_TRUE(fresh.holds(0, second.block(0)));
        EXPECT_TRUE(fresh.holds(63, second.block(63)));
        ASSERT_TRUE(third.show(window, fresh.address + 2 * kMiB, 3).ok());
        const auto last = fresh.part.target.pull(window, all, Fingerprints::kNone);
        EXPECT_TRUE(same(last->copied, {fresh.blocks(32, 32)}));
        EXPECT_TRUE(same(last->absent, {fresh.blocks(0, 32)}));
        EXPECT_TRUE(fresh.holds(32, third.block(0)));
        const auto refused = third.show(window, fresh.address + 12345, 4);
        EXPECT_FALSE(refused.ok());
        EXPECT_EQ(refused.error().reason, "handover.window");
    }));
}

TEST(Pull, APaceRestsForTheWorkAndNotForAWait) {
    using std::chrono::milliseconds;
    state::RateLimiter pace;
    pace.rest(100, milliseconds(50));  // All of the time is its own.
    EXPECT_EQ(pace.take_rested_us(), 0u);
    pace.set_share(20);
    pace.rest(100, milliseconds(5));
    EXPECT_GE(pace.take_rested_us(), 20'000u);
    EXPECT_EQ(pace.take_rested_us(), 0u);
    pace.rest(50, milliseconds(2000));  // It stood in a queue: its work is 2.5 ms.
    const std::uint64_t rested = pace.take_rested_us();
    EXPECT_GE(rested, 10'000u);
    EXPECT_LT(rested, 4'000'000u);
}

TEST(Pull, CopiesTheSameBytesAtAPace) {
    EXPECT_TRUE(in_child([] {
        Fresh fresh(4 * kMiB);
        const Other other(*fresh.device, 4 * kMiB, 9);
        PeerWindow window(*fresh.device);
        ASSERT_TRUE(other.show(window, fresh.address, 1).ok());
        const std::vector<BlockRange> wanted = {fresh.blocks(0, 20), fresh.blocks(40, 24)};
        const auto pulled = fresh.part.target.pull(window, wanted, Fingerprints::kOfCopies, 50);
        ASSERT_TRUE(pulled.ok()) << pulled.error().text;
        EXPECT_TRUE(same(pulled->copied, wanted));
        EXPECT_GT(pulled->rest_us, 0u);
        for (const std::uint64_t i : {0U, 19U, 40U, 63U}) {
            EXPECT_TRUE(fresh.holds(i, other.block(i))) << "block " << i;
        }
        EXPECT_TRUE(fresh.holds(30, std::vector<std::byte>(kBlockBytes)));
    }));
}

// A long one is copied portion by portion, with rests between.
TEST(Pull, ARangeOfSeveralPortionsIsCopiedToItsEnd) {
    EXPECT_TRUE(in_child([] {
        constexpr std::uint64_t kPieceBytes = 32 * kMiB;
        constexpr std::uint64_t kPieceBlocks = kPieceBytes / kBlockBytes;
        constexpr std::uint64_t kPieces = state::RateLimiter::kPortionBlocks / kPieceBlocks + 1;
        Fresh fresh(kPieces * kPieceBytes);
        const Other other(*fresh.device, kPieceBytes, 4);  // The same in every place.
        PeerWindow window(*fresh.device);
        for (std::uint64_t i = 0; i < kPieces; ++i) {
            ASSERT_TRUE(other.show(window, fresh.address + i * kPieceBytes, i + 1).ok());
        }
        const std::vector<BlockRange> all = {fresh.blocks(0, kPieces * kPieceBlocks)};
        const auto pulled = fresh.part.target.pull(window, all, Fingerprints::kNone, 99);
        ASSERT_TRUE(pulled.ok()) << pulled.error().text;
        EXPECT_TRUE(same(pulled->copied, all));
        for (std::uint64_t i = 0; i < kPieces * kPieceBlocks; i += 511) {
            EXPECT_TRUE(fresh.holds(i, other.block(i % kPieceBlocks))) << "block " << i;
        }
        EXPECT_TRUE(fresh.holds(kPieces * kPieceBlocks - 1, other.block(kPieceBlocks - 1)));
    }));
}

TEST(Pull, TheDigestTellsOfABlockThatWasNotCopied) {
    EXPECT_TRUE(in_child([] {
        Fresh fresh(4 * kMiB);
        const Other other(*fresh.device, 4 * kMiB, 5);
        PeerWindow window(*fresh.device);
        ASSERT_TRUE(other.show(window, fresh.address, 1).ok());
        const snapshot::FingerprintKey key(kPullSeed);
        engine::BlockSetDigest wanted;
        for (std::uint64_t i = 0; i < 64; ++i) {
            wanted.add(static_cast<std::uint32_t>(MemorySpace::kDevice),
                       fresh.address / kBlockBytes + i,
                       snapshot::fingerprint(key, snapshot::BlockSpan(other.block(i))));
        }
        const std::vector<BlockRange> most = {fresh.blocks(0, 40), fresh.blocks(50, 14)};
        ASSERT_TRUE(fresh.part.target.pull(window, most, Fingerprints::kNone).ok());
        EXPECT_NE(fresh.part.content.digest().value(), wanted);
        const std::vector<BlockRange> rest = {fresh.blocks(40, 10)};
        ASSERT_TRUE(fresh.part.target.pull(window, rest, Fingerprints::kNone).ok());
        EXPECT_EQ(fresh.part.content.digest().value(), wanted);
    }));
}

TEST(Pull, WhatAnotherCopiedCountsAsSentUnlessItDiffers) {
    EXPECT_TRUE(in_child([] {
        Fresh old(4 * kMiB);
        const std::vector<BlockRange> all = {old.blocks(0, 64)};
        const std::vector<std::byte> zeros(kBlockBytes);
        const snapshot::FingerprintKey key(kPullSeed);
        std::vector<Fingerprint> fingerprints(
            64, snapshot::fingerprint(key, snapshot::BlockSpan(std::span(zeros))));
        fingerprints[9].low ^= 1;  // What the other copied was torn.
        ASSERT_TRUE(old.part.source.note_sent(all, fingerprints).ok());
        old.write(20 * kBlockBytes, std::vector<std::byte>(1, std::byte{7}));
        engine::BlockSetDigest seen;
        const auto scanned = old.part.source.scan_all(&seen);
        ASSERT_TRUE(scanned.ok());
        ASSERT_EQ(scanned->changed.size(), 2u);
        EXPECT_EQ(scanned->changed[0].index, old.address / kBlockBytes + 9);
        EXPECT_EQ(scanned->changed[1].index, old.address / kBlockBytes + 20);
        // Of what lies there, whatever was said to have been copied.
        EXPECT_EQ(seen, old.part.content.digest().value());
        EXPECT_NE(seen, old.part.source.sent_digest());
    }));
}

}  // namespace
}  // namespace gantry::worker
