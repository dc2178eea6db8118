// SHA-256 and HMAC-SHA-256 (FIPS 180-4, RFC 2104) by OpenSSL, of bytes that lie in memory.
//
// For everything but the shim, which links libc only and needs neither. Threads: any. A failure of
// the library ends the process. Link gantry_sha256.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace gantry {

using Sha256 = std::array<std::byte, 32>;

Sha256 sha256_of(std::span<const std::byte> bytes);
Sha256 hmac_sha256(std::span<const std::byte, 32> key, std::span<const std::byte> message);

/// Takes the same time wherever the two differ.
bool is_same_digest(const Sha256& a, const Sha256& b);

}  // namespace gantry
