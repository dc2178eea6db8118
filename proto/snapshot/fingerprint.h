// Fingerprint: a keyed 128-bit hash of one 64 KiB memory block, cheap in AVX2 and on a GPU.
//
// Two blocks with equal fingerprints under one key are taken to hold the same bytes: this is how
// precopy finds changed blocks, elides and deduplicates, and proves at the end that both sides hold
// the same memory. For contents chosen independently of the seed two different blocks collide with
// probability at most 2^-64. It is not cryptographic: a tenant that learns its seed can craft a
// collision against itself, hence a fresh secret seed per migration, and never a use across
// tenants.
//
// Definition (all arithmetic unsigned, words little-endian; a GPU kernel must give the same bits):
//   block  = 16384 words m[0..16383] of 32 bits
//   key    = 16388 words k[0..16387] of 32 bits, derived from the seed by FingerprintKey
//   low    = sum over i of (m[2i] + k[2i]) * (m[2i+1] + k[2i+1])            mod 2^64
//   high   = sum over i of (m[2i] + k[2i+4]) * (m[2i+1] + k[2i+5])          mod 2^64
//   with i in [0, 8192), the additions in brackets mod 2^32 and the products 32 x 32 -> 64 bits.
//   This is UMAC's NH with w = 32 and one Toeplitz shift of 4 words; the order of the sums is free.
//   key words: z = seed.low + (p + 1) * 0x9E3779B97F4A7C15 for p in [0, 8194), mod 2^64;
//              y = mix(mix(z) ^ seed.high);  k[2p] = low 32 bits of y, k[2p+1] = high 32 bits;
//   mix(x): x ^= x >> 30; x *= 0xBF58476D1CE4E5B9; x ^= x >> 27; x *= 0x94D049BB133111EB; x ^= x >>
// 31.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>

namespace gantry::snapshot {

/// The unit of dirty tracking, transfer and storage. Memory is handled in whole blocks only.
inline constexpr std::size_t kBlockBytes = 64 * 1024;
inline constexpr std::size_t kBlockWords = kBlockBytes / 4;
inline constexpr std::size_t kKeyShiftWords = 4;
inline constexpr std::size_t kKeyWords = kBlockWords + kKeyShiftWords;

struct Fingerprint {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    friend constexpr auto operator<=>(const Fingerprint&, const Fingerprint&) = default;
};

/// Secret of one migration or one snapshot file; drawn from the system's random source.
struct Seed {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    friend constexpr auto operator<=>(const Seed&, const Seed&) = default;
};

/// The expanded key (64 KiB + 16 bytes). Immutable once made: any thread may read it.
class FingerprintKey {
public:
    explicit FingerprintKey(Seed seed);

    [[nodiscard]] std::span<const std::uint32_t, kKeyWords> words() const { return words_; }
    /// Fingerprint of a block of 65536 zero bytes.
    [[nodiscard]] Fingerprint zero_block() const { return zero_block_; }

private:
    alignas(64) std::array<std::uint32_t, kKeyWords> words_{};
    Fingerprint zero_block_;
};

using BlockSpan = std::span<const std::byte, kBlockBytes>;

/// Fastest implementation for this CPU, chosen once at the first call.
[[nodiscard]] Fingerprint fingerprint(const FingerprintKey& key, BlockSpan block);

/// Of as many blocks: two at a time, which is 1.3 times as fast where they come from memory (AVX2).
void fingerprints(const FingerprintKey& key, std::span<const std::byte* const> blocks,
                  std::span<Fingerprint> out);
/// Of blocks that lie one after the other.
void fingerprints(const FingerprintKey& key, std::span<const std::byte> blocks,
                  std::span<Fingerprint> out);

/// True when all 65536 bytes are zero; stops at the first that is not.
[[nodiscard]] bool is_zero_block(BlockSpan block);

/// Order-independent digest over (address, fingerprint) pairs, so that shards can be summed in any
/// order: both sides fold all blocks of a part and compare.
struct BlockSetDigest {
    std::uint64_t block_count = 0;
    Fingerprint sum;

    /// space: a MemorySpace number; index: block index in that space.
    void add(std::uint32_t space, std::uint64_t index, Fingerprint block);
    void merge(const BlockSetDigest& other);
    friend constexpr bool operator==(const BlockSetDigest&, const BlockSetDigest&) = default;
};

enum class FingerprintKind { kScalar, kAvx2, kAvx512 };
/// For tests and the benchmark: one given implementation. Asserts that this CPU has it.
void fingerprints_with(FingerprintKind kind, const FingerprintKey& key,
                       std::span<const std::byte* const> blocks, std::span<Fingerprint> out);
[[nodiscard]] bool fingerprint_kind_available(FingerprintKind kind);

}  // namespace gantry::snapshot
