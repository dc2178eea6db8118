// The integrity digest: what a CUDA runtime expects in answer to its version, time, process,
// thread, table addresses and device list. It has to be computed in the process that asks.
//
// The 16-byte key and the two fixed answers are interoperability facts, published under MIT and
// Apache-2.0 by independent projects (ZLUDA, lupine).
#include <pthread.h>
#include <unistd.h>

#include <cstring>

#include "proto/cuda/dark/internal.h"

namespace gantry::dark {
namespace {

constexpr std::uint8_t kKey[16] = {0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52,
                                   0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f};
constexpr std::uint64_t kFixedLow[2] = {0x3341181c03cb675cULL, 0x1841181c03cb675cULL};
constexpr std::uint64_t kFixedHigh = 0x8ed383aa1f4cd1e8ULL;
constexpr int kDevicesMax = 128;
constexpr int kUnknown = 999;

struct Head {
    std::uint32_t driver_version;
    std::uint32_t version;
    std::uint32_t process;
    std::uint32_t thread;
    std::uint64_t interface_table;
    std::uint64_t integrity_table;
    std::uint64_t slot;
    std::uint64_t unix_seconds;
};
static_assert(sizeof(Head) == 48 && sizeof(DeviceIdentity) == 28, "hashed bytes have no padding");

}  // namespace

int integrity_digest(std::uint32_t version, std::uint64_t unix_seconds, std::uint64_t result[2],
                     const void* interface_table, const void* integrity_table, const void* slot) {
    if (result == nullptr) {
        return 1;
    }
    if (version % 10 < 2) {
        result[0] = kFixedLow[version % 10];
        result[1] = kFixedHigh;
        return 0;
    }
    std::uint8_t bytes[sizeof(Head) + kDevicesMax * sizeof(DeviceIdentity)];
    const Head head = {callbacks().driver_version(),
                       version,
                       static_cast<std::uint32_t>(getpid()),
                       static_cast<std::uint32_t>(pthread_self()),
                       reinterpret_cast<std::uint64_t>(interface_table),
                       reinterpret_cast<std::uint64_t>(integrity_table),
                       reinterpret_cast<std::uint64_t>(slot),
                       unix_seconds};
    std::memcpy(bytes, &head, sizeof head);
    const int count = callbacks().device_count();
    if (count < 0 || count > kDevicesMax) {
        return kUnknown;
    }
    std::size_t used = sizeof head;
    for (int i = 0; i < count; ++i) {
        DeviceIdentity identity;
        if (const int error = callbacks().device_identity(i, &identity); error != 0) {
            return error;
        }
        std::memcpy(bytes + used, &identity, sizeof identity);
        used += sizeof identity;
    }
    std::uint8_t digest[16];
    hmac_md2(kKey, bytes, used, digest);
    std::memcpy(result, digest, sizeof digest);
    return 0;
}

}  // namespace gantry::dark
