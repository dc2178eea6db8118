// HMAC-SHA-256 (FIPS 180-4, RFC 2104) for both ends of the guest's TCP transport: libc only, a few
// hundred bytes at a time. Not for bulk data: no hardware instructions are used.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace gantry {

using Digest256 = std::array<std::uint8_t, 32>;

class Sha256Stream {
public:
    void add(std::span<const std::byte> bytes) {
        for (const std::byte one : bytes) {
            block_[total_ % block_.size()] = static_cast<std::uint8_t>(one);
            if (++total_ % block_.size() == 0) {
                mix();
            }
        }
    }
    Digest256 finish() {
        const std::uint64_t bits = total_ * 8;
        const std::byte one{0x80};
        const std::byte zero{0};
        add(std::span(&one, 1));
        while (total_ % block_.size() != block_.size() - 8) {
            add(std::span(&zero, 1));
        }
        std::array<std::byte, 8> length{};
        for (std::size_t i = 0; i < 8; ++i) {
            length[i] = static_cast<std::byte>(bits >> (56 - 8 * i));
        }
        add(length);
        Digest256 out{};
        for (std::size_t i = 0; i < out.size(); ++i) {
            out[i] = static_cast<std::uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
        }
        return out;
    }

private:
    void mix() {
        std::array<std::uint32_t, 64> w{};
        for (std::size_t i = 0; i < 16; ++i) {
            w[i] = static_cast<std::uint32_t>(block_[4 * i]) << 24 |
                   static_cast<std::uint32_t>(block_[4 * i + 1]) << 16 |
                   static_cast<std::uint32_t>(block_[4 * i + 2]) << 8 | block_[4 * i + 3];
        }
        for (std::size_t i = 16; i < 64; ++i) {
            const std::uint32_t a = w[i - 15];
            const std::uint32_t b = w[i - 2];
            w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) + w[i - 7] +
                   (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
        }
        std::array<std::uint32_t, 8> s = state_;
        for (std::size_t i = 0; i < 64; ++i) {
            const std::uint32_t e = s[4];
            const std::uint32_t a = s[0];
            const std::uint32_t t1 = s[7] +
                                     (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                                     ((e & s[5]) ^ (~e & s[6])) + kRound[i] + w[i];
            const std::uint32_t t2 = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) +
                                     ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
            s = {t1 + t2, s[0], s[1], s[2], s[3] + t1, s[4], s[5], s[6]};
        }
        for (std::size_t i = 0; i < 8; ++i) {
            state_[i] += s[i];
        }
    }
    /// Fractional parts of the cube roots of the first 64 primes.
    static constexpr std::array<std::uint32_t, 64> kRound = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
        0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
        0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
        0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
        0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
        0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
        0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
        0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
        0xc67178f2};
    /// ... and of the square roots of the first eight.
    std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                           0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<std::uint8_t, 64> block_{};
    std::uint64_t total_ = 0;
};

/// `key`: exactly 32 bytes.
inline Digest256 hmac_sha256(std::span<const std::uint8_t, 32> key,
                             std::span<const std::byte> message) {
    std::array<std::byte, 64> inner{};
    std::array<std::byte, 64> outer{};
    for (std::size_t i = 0; i < inner.size(); ++i) {
        const std::uint8_t byte = i < key.size() ? key[i] : 0;
        inner[i] = static_cast<std::byte>(byte ^ 0x36);
        outer[i] = static_cast<std::byte>(byte ^ 0x5c);
    }
    Sha256Stream first;
    first.add(inner);
    first.add(message);
    const Digest256 digest = first.finish();
    Sha256Stream second;
    second.add(outer);
    second.add(std::as_bytes(std::span(digest)));
    return second.finish();
}

/// In the same time wherever they differ.
inline bool is_same(const Digest256& a, const Digest256& b) {
    unsigned difference = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        difference |= static_cast<unsigned>(a[i] ^ b[i]);
    }
    return difference == 0;
}

/// 64 hex digits; false when the text is anything else.
inline bool read_key(std::string_view text, Digest256* key) {
    if (text.size() != 64) {
        return false;
    }
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0) {
            return false;
        }
        std::uint8_t& byte = (*key)[i / 2];
        byte = static_cast<std::uint8_t>(i % 2 == 0 ? digit << 4 : byte | digit);
    }
    return true;
}

}  // namespace gantry
