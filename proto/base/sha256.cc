#include "proto/base/sha256.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "proto/base/assert.h"

namespace gantry {
namespace {

unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
const unsigned char* raw(const std::byte* bytes) {
    return reinterpret_cast<const unsigned char*>(bytes);
}

}  // namespace

Sha256 sha256_of(std::span<const std::byte> bytes) {
    Sha256 digest{};
    unsigned length = 0;
    const int done =
        EVP_Digest(bytes.data(), bytes.size(), raw(digest.data()), &length, EVP_sha256(), nullptr);
    GANTRY_ASSERT(done == 1 && length == digest.size(), "SHA-256 failed: %d, %u bytes", done,
                  length);
    return digest;
}

Sha256 hmac_sha256(std::span<const std::byte, 32> key, std::span<const std::byte> message) {
    Sha256 digest{};
    unsigned length = 0;
    const auto* done = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                            raw(message.data()), message.size(), raw(digest.data()), &length);
    GANTRY_ASSERT(done != nullptr && length == digest.size(), "HMAC-SHA-256 failed: %u bytes",
                  length);
    return digest;
}

bool is_same_digest(const Sha256& a, const Sha256& b) {
    return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace gantry
