// Fingerprints: all implementations give the same bits, fixed for ever by known answers (a GPU
// kernel is held against these too).
#include "proto/snapshot/fingerprint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

namespace gantry::snapshot {
namespace {

std::vector<std::byte> pattern(std::uint64_t start) {
    std::vector<std::byte> block(kBlockBytes);
    std::uint64_t x = start;
    for (std::byte& byte : block) {
        x = x * 6364136223846793005ULL + 1442695040888963407ULL;
        byte = static_cast<std::byte>(x >> 56);
    }
    return block;
}

Fingerprint of(const FingerprintKey& key, const std::vector<std::byte>& block) {
    return fingerprint(key, BlockSpan(block));
}

TEST(Fingerprint, KeyFollowsTheDefinition) {
    const auto mix = [](std::uint64_t x) {
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
        return x ^ (x >> 31);
    };
    const FingerprintKey key({7, 11});
    for (const std::uint64_t p : {0ULL, 1ULL, 8193ULL}) {
        const std::uint64_t y = mix(mix(7 + (p + 1) * 0x9E3779B97F4A7C15ULL) ^ 11);
        EXPECT_EQ(key.words()[2 * p], static_cast<std::uint32_t>(y));
        EXPECT_EQ(key.words()[2 * p + 1], static_cast<std::uint32_t>(y >> 32));
    }
}

TEST(Fingerprint, KnownAnswers) {
    const FingerprintKey key({0x0123456789ABCDEFULL, 0xFEDCBA9876543210ULL});
    EXPECT_EQ(of(key, pattern(1)), (Fingerprint{0x38B5D9FB6F114B87ULL, 0x285240A60850360EULL}));
    EXPECT_EQ(key.zero_block(), (Fingerprint{0x9B026E42345515F3ULL, 0x99E225FB56324ED3ULL}));
}

TEST(Fingerprint, ImplementationsAgree) {
    const FingerprintKey key({42, 43});
    constexpr std::size_t kBlocks = 7;  // The last by itself, where they go two by two.
    std::vector<std::byte> memory;
    for (std::uint64_t i = 0; i < kBlocks; ++i) {
        const auto block = pattern(i);
        memory.insert(memory.end(), block.begin(), block.end());
    }
    std::vector<const std::byte*> blocks;
    for (std::size_t i = 0; i < kBlocks; ++i) {
        blocks.push_back(&memory[(i * 3 % kBlocks) * kBlockBytes]);  // Not one after the other.
    }
    for (std::size_t count = 0; count <= kBlocks; ++count) {
        const auto some = std::span(blocks).first(count);
        std::vector<Fingerprint> reference(count);
        for (std::size_t i = 0; i < count; ++i) {
            fingerprints_with(FingerprintKind::kScalar, key, some.subspan(i, 1),
                              {&reference[i], 1});
            EXPECT_EQ(fingerprint(key, BlockSpan(some[i], kBlockBytes)), reference[i]);
        }
        for (const auto kind :
             {FingerprintKind::kScalar, FingerprintKind::kAvx2, FingerprintKind::kAvx512}) {
            if (fingerprint_kind_available(kind)) {
                std::vector<Fingerprint> fingerprints(count);
                fingerprints_with(kind, key, some, fingerprints);
                EXPECT_EQ(fingerprints, reference) << static_cast<int>(kind) << ", " << count;
            }
        }
        std::vector<Fingerprint> in_order(count);
        fingerprints(key, std::span(memory).first(count * kBlockBytes), in_order);
        for (std::size_t i = 0; i < count; ++i) {
            EXPECT_EQ(in_order[i], of(key, pattern(i))) << i << " of " << count;
        }
    }
}

TEST(Fingerprint, EveryByteMatters) {
    const FingerprintKey key({1, 2});
    auto block = pattern(3);
    const Fingerprint before = of(key, block);
    for (std::size_t i = 0; i < kBlockBytes; i += 61) {
        block[i] ^= std::byte{0x10};
        EXPECT_NE(of(key, block), before) << "byte " << i;
        block[i] ^= std::byte{0x10};
    }
    EXPECT_EQ(of(key, block), before);
}

TEST(Fingerprint, PositionMatters) {
    const FingerprintKey key({1, 2});
    const auto block = pattern(4);
    auto swapped = block;
    std::swap_ranges(swapped.begin(), swapped.begin() + 4096, swapped.begin() + 32768);
    EXPECT_NE(of(key, swapped), of(key, block));
}

TEST(Fingerprint, ZeroBlock) {
    const FingerprintKey key({5, 6});
    std::vector<std::byte> block(kBlockBytes);
    EXPECT_EQ(of(key, block), key.zero_block());
    EXPECT_TRUE(is_zero_block(BlockSpan(block)));
    block[kBlockBytes - 1] = std::byte{1};
    EXPECT_FALSE(is_zero_block(BlockSpan(block)));
}

TEST(BlockSetDigest, IsFreeOfOrderAndBoundToAddresses) {
    BlockSetDigest a;
    a.add(1, 10, {1, 2});
    a.add(1, 11, {3, 4});
    BlockSetDigest b;
    b.add(1, 11, {3, 4});
    BlockSetDigest c;
    c.add(1, 10, {1, 2});
    b.merge(c);
    EXPECT_EQ(a, b);
    BlockSetDigest exchanged;
    exchanged.add(1, 11, {1, 2});
    exchanged.add(1, 10, {3, 4});
    EXPECT_NE(a, exchanged);
    BlockSetDigest other_space;
    other_space.add(2, 10, {1, 2});
    other_space.add(1, 11, {3, 4});
    EXPECT_NE(a, other_space);
}

}  // namespace
}  // namespace gantry::snapshot
