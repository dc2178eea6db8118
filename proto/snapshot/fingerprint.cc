#include "proto/snapshot/fingerprint.h"

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

Fingerprint fingerprint_scalar(const std::uint32_t* key, const std::byte* block) {
    Fingerprint sum;
    for (std::size_t i = 0; i < kBlockWords; i += 2) {
        std::uint32_t m[2];
        std::memcpy(m, block + 4 * i, sizeof m);
        sum.low += product(m[0] + key[i], m[1] + key[i + 1]);
        sum.high += product(m[0] + key[i + 4], m[1] + key[i + 5]);
    }
    return sum;
}

#if defined(__x86_64__)

/// A block comes from memory more often than from a cache, and the hardware fetches ahead within a
/// page of 4 KiB only. What lies beyond the block's end is most often the next one.
constexpr std::size_t kAheadBytes = 2048;

void fetch_ahead(const std::byte* at) {
    _mm_prefetch(reinterpret_cast<const char*>(at) + kAheadBytes, _MM_HINT_T0);
}

__attribute__((target("avx2"))) Fingerprint fingerprint_avx2(const std::uint32_t* key,
                                                             const std::byte* block) {
    __m256i low[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    __m256i high[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (std::size_t i = 0; i < kBlockWords; i += 16) {
        fetch_ahead(block + 4 * i);
        for (std::size_t j = 0; j < 2; ++j) {
            const std::size_t at = i + 8 * j;
            const __m256i m =
                _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 4 * at));
            const __m256i a = _mm256_add_epi32(
                m, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(key + at)));
            const __m256i b = _mm256_add_epi32(
                m, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(key + at + 4)));
            low[j] = _mm256_add_epi64(low[j], _mm256_mul_epu32(a, _mm256_srli_epi64(a, 32)));
            high[j] = _mm256_add_epi64(high[j], _mm256_mul_epu32(b, _mm256_srli_epi64(b, 32)));
        }
    }
    alignas(32) std::uint64_t sums[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(sums), _mm256_add_epi64(low[0], low[1]));
    _mm256_store_si256(reinterpret_cast<__m256i*>(sums + 4),
                       _mm256_add_epi64(high[0], high[1]));
    return {sums[0] + sums[1] + sums[2] + sums[3], sums[4] + sums[5] + sums[6] + sums[7]};
}

__attribute__((target("avx512f"))) Fingerprint fingerprint_avx512(const std::uint32_t* key,
                                                                  const std::byte* block) {
    constexpr __mmask8 kAll = 0xFF;
    __m512i low = _mm512_setzero_si512();
    __m512i high = _mm512_setzero_si512();
    for (std::size_t i = 0; i < kBlockWords; i += 16) {
        fetch_ahead(block + 4 * i);
        const __m512i m = _mm512_loadu_si512(block + 4 * i);
        const __m512i a = _mm512_add_epi32(m, _mm512_loadu_si512(key + i));
        const __m512i b = _mm512_add_epi32(m, _mm512_loadu_si512(key + i + 4));
        // The zero-masked forms: GCC 12 warns about its own plain ones.
        low = _mm512_add_epi64(
            low, _mm512_maskz_mul_epu32(kAll, a, _mm512_maskz_srli_epi64(kAll, a, 32)));
        high = _mm512_add_epi64(
            high, _mm512_maskz_mul_epu32(kAll, b, _mm512_maskz_srli_epi64(kAll, b, 32)));
    }
    alignas(64) std::uint64_t sums[16];
    _mm512_store_si512(sums, low);
    _mm512_store_si512(sums + 8, high);
    Fingerprint sum;
    for (std::size_t i = 0; i < 8; ++i) {
        sum.low += sums[i];
        sum.high += sums[8 + i];
    }
    return sum;
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

Fingerprint fingerprint_with(FingerprintKind kind, const FingerprintKey& key, BlockSpan block) {
    GANTRY_ASSERT(fingerprint_kind_available(kind), "implementation %d", static_cast<int>(kind));
    const std::uint32_t* words = key.words().data();
#if defined(__x86_64__)
    switch (kind) {
        case FingerprintKind::kAvx512: return fingerprint_avx512(words, block.data());
        case FingerprintKind::kAvx2: return fingerprint_avx2(words, block.data());
        case FingerprintKind::kScalar: break;
    }
#endif
    return fingerprint_scalar(words, block.data());
}

Fingerprint fingerprint(const FingerprintKey& key, BlockSpan block) {
    static const FingerprintKind kind = best_kind();
    return fingerprint_with(kind, key, block);
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
