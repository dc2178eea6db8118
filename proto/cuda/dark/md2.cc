// MD2 (RFC 1319) and HMAC (RFC 2104) over it. Only start-up uses them, so they are plain.
#include <cstring>

#include "proto/cuda/dark/dark.h"

namespace gantry::dark {
namespace {

constexpr std::size_t kBlock = 16;

// The substitution of RFC 1319, made of the digits of pi.
constexpr std::uint8_t kPi[256] = {
    41,  46,  67,  201, 162, 216, 124, 1,   61,  54,  84,  161, 236, 240, 6,   19,  98,  167, 5,
    243, 192, 199, 115, 140, 152, 147, 43,  217, 188, 76,  130, 202, 30,  155, 87,  60,  253, 212,
    224, 22,  103, 66,  111, 24,  138, 23,  229, 18,  190, 78,  196, 214, 218, 158, 222, 73,  160,
    251, 245, 142, 187, 47,  238, 122, 169, 104, 121, 145, 21,  178, 7,   63,  148, 194, 16,  137,
    11,  34,  95,  33,  128, 127, 93,  154, 90,  144, 50,  39,  53,  62,  204, 231, 191, 247, 151,
    3,   255, 25,  48,  179, 72,  165, 181, 209, 215, 94,  146, 42,  172, 86,  170, 198, 79,  184,
    56,  210, 150, 164, 125, 182, 118, 252, 107, 226, 156, 116, 4,   241, 69,  157, 112, 89,  100,
    113, 135, 32,  134, 91,  207, 101, 230, 45,  168, 2,   27,  96,  37,  173, 174, 176, 185, 246,
    28,  70,  97,  105, 52,  64,  126, 15,  85,  71,  163, 35,  221, 81,  175, 58,  195, 92,  249,
    206, 186, 197, 234, 38,  44,  83,  13,  110, 133, 40,  132, 9,   211, 223, 205, 244, 65,  129,
    77,  82,  106, 220, 55,  200, 108, 193, 171, 250, 36,  225, 123, 8,   12,  189, 177, 74,  120,
    136, 149, 139, 227, 99,  232, 109, 233, 203, 213, 254, 59,  0,   29,  57,  242, 239, 183, 14,
    102, 88,  208, 228, 166, 119, 114, 248, 235, 117, 75,  10,  49,  68,  80,  180, 143, 237, 31,
    26,  219, 153, 141, 51,  159, 17,  131, 20};

class Md2 {
public:
    void update(const void* data, std::size_t bytes) {
        const auto* in = static_cast<const std::uint8_t*>(data);
        for (std::size_t i = 0; i < bytes; ++i) {
            pending_[used_++] = in[i];
            if (used_ == kBlock) {
                absorb();
            }
        }
    }

    void finish(std::uint8_t digest[16]) {
        const auto padding = static_cast<std::uint8_t>(kBlock - used_);
        for (std::uint8_t i = 0; i < padding; ++i) {
            update(&padding, 1);
        }
        std::uint8_t checksum[kBlock];
        std::memcpy(checksum, checksum_, kBlock);
        update(checksum, kBlock);
        std::memcpy(digest, state_, kBlock);
    }

private:
    void absorb() {
        std::uint8_t last = checksum_[kBlock - 1];
        for (std::size_t i = 0; i < kBlock; ++i) {
            checksum_[i] = static_cast<std::uint8_t>(checksum_[i] ^ kPi[pending_[i] ^ last]);
            last = checksum_[i];
            state_[kBlock + i] = pending_[i];
            state_[2 * kBlock + i] = static_cast<std::uint8_t>(state_[i] ^ pending_[i]);
        }
        unsigned mix = 0;
        for (unsigned round = 0; round < 18; ++round) {
            for (std::uint8_t& byte : state_) {
                byte = static_cast<std::uint8_t>(byte ^ kPi[mix]);
                mix = byte;
            }
            mix = (mix + round) & 0xff;
        }
        used_ = 0;
    }

    std::uint8_t state_[3 * kBlock] = {};
    std::uint8_t checksum_[kBlock] = {};
    std::uint8_t pending_[kBlock] = {};
    std::size_t used_ = 0;
};

}  // namespace

void md2(const void* data, std::size_t bytes, std::uint8_t digest[16]) {
    Md2 hash;
    hash.update(data, bytes);
    hash.finish(digest);
}

void hmac_md2(const std::uint8_t key[16], const void* data, std::size_t bytes,
              std::uint8_t digest[16]) {
    std::uint8_t inner_key[kBlock];
    std::uint8_t outer_key[kBlock];
    for (std::size_t i = 0; i < kBlock; ++i) {
        inner_key[i] = key[i] ^ 0x36;
        outer_key[i] = key[i] ^ 0x5c;
    }
    std::uint8_t inner_digest[16];
    Md2 inner;
    inner.update(inner_key, kBlock);
    inner.update(data, bytes);
    inner.finish(inner_digest);
    Md2 outer;
    outer.update(outer_key, kBlock);
    outer.update(inner_digest, sizeof inner_digest);
    outer.finish(digest);
}

}  // namespace gantry::dark
