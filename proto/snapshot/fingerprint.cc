#include "proto/snapshot/fingerprint.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "proto/base/assert.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gantry::snapshot {
namespace {

std::uint64_t mix(std::uint64_t x) {
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9ULL;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBULL;
    x ^= x >> 31;
    return x;
}

std::uint64_t product(std::uint32_t a, std::uint32_t b) {
    return static_cast<std::uint64_t>(a) * b;
}

/// Blocks side by side share what is read of the key, which does not fit in the first cache.
template <std::size_t N>
using Blocks = std::array<const std::byte*, N>;
template <std::size_t N>
using Prints = std::array<Fingerprint, N>;

template <std::size_t N>
Prints<N> fingerprint_scalar(const std::uint32_t* key, const Blocks<N>& blocks) {
    Prints<N> sums;
    for (std::size_t n = 0; n < N; ++n) {
        for (std::size_t i = 0; i < kBlockWords; i += 2) {
            std::uint32_t m[2];
            std::memcpy(m, blocks[n] + 4 * i, sizeof m);
            sums[n].low += product(m[0] + key[i], m[1] + key[i + 1]);
            sums[n].high += product(m[0] + key[i + 4], m[1] + key[i + 5]);
        }
    }
    return sums;
}

#if defined(__x86_64__)

/// A block comes from memory more often than from a cache, and the hardware fetches ahead within a
/// page of 4 KiB only. What lies beyond the block's end is most often the next one.
constexpr std::size_t kAheadBytes = 2048;

void fetch_ahead(const std::byte* at) {
    _mm_prefetch(reinterpret_cast<const char*>(at) + kAheadBytes, _MM_HINT_T0);
}

#define GANTRY_AVX2 __attribute__((target("avx2")))
#define GANTRY_AVX512 __attribute__((target("avx512f")))
#define GANTRY_INLINE __attribute__((always_inline)) inline

/// Of one block; named one by one below, since a loop over them keeps them in memory.
struct Avx2Sums {
    __m256i low;
    __m256i high;
};

GANTRY_AVX2 GANTRY_INLINE __m256i load_avx2(const void* at) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(at));
}

GANTRY_AVX2 GANTRY_INLINE void add_avx2(Avx2Sums* sums, const std::byte* at, __m256i key,
                                        __m256i shifted) {
    const __m256i m = load_avx2(at);
    const __m256i a = _mm256_add_epi32(m, key);
    const __m256i b = _mm256_add_epi32(m, shifted);
    sums->low = _mm256_add_epi64(sums->low, _mm256_mul_epu32(a, _mm256_srli_epi64(a, 32)));
    sums->high = _mm256_add_epi64(sums->high, _mm256_mul_epu32(b, _mm256_srli_epi64(b, 32)));
}

GANTRY_AVX2 Fingerprint total_avx2(const Avx2Sums& of) {
    alignas(32) std::uint64_t sums[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(sums), of.low);
    _mm256_store_si256(reinterpret_cast<__m256i*>(sums + 4), of.high);
    return {sums[0] + sums[1] + sums[2] + sums[3], sums[4] + sums[5] + sums[6] + sums[7]};
}

/// N: 1 or 2, here and below.
template <std::size_t N>
GANTRY_AVX2 Prints<N> fingerprint_avx2(const std::uint32_t* key, const Blocks<N>& blocks) {
    Avx2Sums first{_mm256_setzero_si256(), _mm256_setzero_si256()};
    Avx2Sums second = first;
    for (std::size_t i = 0; i < kBlockWords; i += 16) {
        const __m256i k[] = {load_avx2(key + i), load_avx2(key + i + 8)};
        const __m256i shifted[] = {load_avx2(key + i + kKeyShiftWords),
                                   load_avx2(key + i + 8 + kKeyShiftWords)};
        fetch_ahead(blocks[0] + 4 * i);
        add_avx2(&first, blocks[0] + 4 * i, k[0], shifted[0]);
        add_avx2(&first, blocks[0] + 4 * i + 32, k[1], shifted[1]);
        if constexpr (N == 2) {
            fetch_ahead(blocks[1] + 4 * i);
            add_avx2(&second, blocks[1] + 4 * i, k[0], shifted[0]);
            add_avx2(&second, blocks[1] + 4 * i + 32, k[1], shifted[1]);
        }
    }
    Prints<N> fingerprints{total_avx2(first)};
    if constexpr (N == 2) {
        fingerprints[1] = total_avx2(second);
    }
    return fingerprints;
}

struct Avx512Sums {
    __m512i low;
    __m512i high;
};

GANTRY_AVX512 GANTRY_INLINE void add_avx512(Avx512Sums* sums, const std::byte* at, __m512i key,
                                            __m512i shifted) {
    constexpr __mmask8 kAll = 0xFF;
    const __m512i m = _mm512_loadu_si512(at);
    const __m512i a = _mm512_add_epi32(m, key);
    const __m512i b = _mm512_add_epi32(m, shifted);
    // The zero-masked forms: GCC 12 warns about its own plain ones.
    sums->low = _mm512_add_epi64(
        sums->low, _mm512_maskz_mul_epu32(kAll, a, _mm512_maskz_srli_epi64(kAll, a, 32)));
    sums->high = _mm512_add_epi64(
        sums->high, _mm512_maskz_mul_epu32(kAll, b, _mm512_maskz_srli_epi64(kAll, b, 32)));
}

GANTRY_AVX512 Fingerprint total_avx512(const Avx512Sums& of) {
    alignas(64) std::uint64_t sums[16];
    _mm512_store_si512(sums, of.low);
    _mm512_store_si512(sums + 8, of.high);
    Fingerprint sum;
    for (std::size_t i = 0; i < 8; ++i) {
        sum.low += sums[i];
        sum.high += sums[8 + i];
    }
    return sum;
}

template <std::size_t N>
GANTRY_AVX512 Prints<N> fingerprint_avx512(const std::uint32_t* key, const Blocks<N>& blocks) {
    Avx512Sums first{_mm512_setzero_si512(), _mm512_setzero_si512()};
    Avx512Sums second = first;
    for (std::size_t i = 0; i < kBlockWords; i += 16) {
        const __m512i k = _mm512_loadu_si512(key + i);
        const __m512i shifted = _mm512_loadu_si512(key + i + kKeyShiftWords);
        fetch_ahead(blocks[0] + 4 * i);
        add_avx512(&first, blocks[0] + 4 * i, k, shifted);
        if constexpr (N == 2) {
            fetch_ahead(blocks[1] + 4 * i);
            add_avx512(&second, blocks[1] + 4 * i, k, shifted);
        }
    }
    Prints<N> fingerprints{total_avx512(first)};
    if constexpr (N == 2) {
        fingerprints[1] = total_avx512(second);
    }
    return fingerprints;
}

#endif

FingerprintKind best_kind() {
    if (fingerprint_kind_available(FingerprintKind::kAvx512)) {
        return FingerprintKind::kAvx512;
    }
    if (fingerprint_kind_available(FingerprintKind::kAvx2)) {
        return FingerprintKind::kAvx2;
    }
    return FingerprintKind::kScalar;
}

template <std::size_t N>
Prints<N> side_by_side(FingerprintKind kind, const FingerprintKey& key, const Blocks<N>& blocks) {
    const std::uint32_t* words = key.words().data();
#if defined(__x86_64__)
    switch (kind) {
        case FingerprintKind::kAvx512: return fingerprint_avx512<N>(words, blocks);
        case FingerprintKind::kAvx2: return fingerprint_avx2<N>(words, blocks);
        case FingerprintKind::kScalar: break;
    }
#endif
    return fingerprint_scalar<N>(words, blocks);
}

FingerprintKind kind_here() {
    static const FingerprintKind kind = best_kind();
    return kind;
}

}  // namespace

FingerprintKey::FingerprintKey(Seed seed) {
    std::uint64_t z = seed.low;
    for (std::size_t p = 0; p < kKeyWords / 2; ++p) {
        z += 0x9E3779B97F4A7C15ULL;
        const std::uint64_t y = mix(mix(z) ^ seed.high);
        words_[2 * p] = static_cast<std::uint32_t>(y);
        words_[2 * p + 1] = static_cast<std::uint32_t>(y >> 32);
    }
    for (std::size_t i = 0; i < kBlockWords; i += 2) {
        zero_block_.low += product(words_[i], words_[i + 1]);
        zero_block_.high += product(words_[i + 4], words_[i + 5]);
    }
}

bool fingerprint_kind_available(FingerprintKind kind) {
#if defined(__x86_64__)
    switch (kind) {
        case FingerprintKind::kAvx512: return __builtin_cpu_supports("avx512f") != 0;
        case FingerprintKind::kAvx2: return __builtin_cpu_supports("avx2") != 0;
        case FingerprintKind::kScalar: return true;
    }
    return false;
#else
    return kind == FingerprintKind::kScalar;
#endif
}

void fingerprints_with(FingerprintKind kind, const FingerprintKey& key,
                       std::span<const std::byte* const> blocks, std::span<Fingerprint> out) {
    GANTRY_ASSERT(fingerprint_kind_available(kind), "implementation %d", static_cast<int>(kind));
    GANTRY_ASSERT(blocks.size() == out.size(), "%zu blocks, %zu fingerprints", blocks.size(),
                  out.size());
    std::size_t at = 0;
    for (; at + 2 <= out.size(); at += 2) {
        const auto two = side_by_side<2>(kind, key, {blocks[at], blocks[at + 1]});
        std::copy(two.begin(), two.end(), &out[at]);
    }
    if (at < out.size()) {
        out[at] = side_by_side<1>(kind, key, {blocks[at]})[0];
    }
}

Fingerprint fingerprint(const FingerprintKey& key, BlockSpan block) {
    return side_by_side<1>(kind_here(), key, {block.data()})[0];
}

void fingerprints(const FingerprintKey& key, std::span<const std::byte* const> blocks,
                  std::span<Fingerprint> out) {
    fingerprints_with(kind_here(), key, blocks, out);
}

void fingerprints(const FingerprintKey& key, std::span<const std::byte> blocks,
                  std::span<Fingerprint> out) {
    GANTRY_ASSERT(blocks.size() == out.size() * kBlockBytes, "%zu bytes, %zu fingerprints",
                  blocks.size(), out.size());
    for (std::size_t at = 0; at < out.size(); at += 2) {
        const std::byte* const first = &blocks[at * kBlockBytes];
        const std::array two{first, first + kBlockBytes};
        const auto some = out.subspan(at, std::min<std::size_t>(2, out.size() - at));
        fingerprints(key, std::span(two).first(some.size()), some);
    }
}

bool is_zero_block(BlockSpan block) {
    for (std::size_t i = 0; i < kBlockBytes; i += 64) {
        std::uint64_t words[8];
        std::memcpy(words, block.data() + i, sizeof words);
        if ((words[0] | words[1] | words[2] | words[3] | words[4] | words[5] | words[6] |
             words[7]) != 0) {
            return false;
        }
    }
    return true;
}

void BlockSetDigest::add(std::uint32_t space, std::uint64_t index, Fingerprint block) {
    // Binds the address to the content; the sum over all blocks then does not depend on the order.
    const std::uint64_t at = mix(index + mix(space));
    ++block_count;
    sum.low += mix(block.low ^ at);
    sum.high += mix(block.high + mix(block.low) + at);
}

void BlockSetDigest::merge(const BlockSetDigest& other) {
    block_count += other.block_count;
    sum.low += other.sum.low;
    sum.high += other.sum.high;
}

}  // namespace gantry::snapshot
