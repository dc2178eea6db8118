// CUDA_* settings in a process's environment that the driver itself reads, as NVIDIA's reads them
// (driver 580 on an H200; tests/programs/cuda_settings.cu passes there).
//
// Threads: the environment is read when a function is called; callers keep what it answers, since
// native does not look again either. Uses libc only: the shim has it inlined.
#pragma once

#include <strings.h>

#include <cstdlib>
#include <cstring>

#include "proto/cuda/abi.h"

namespace gantry::cuda {

namespace settings_detail {

/// A token of CUDA_VISIBLE_DEVICES as a decimal ordinal, as strtol reads it: what follows the
/// digits does not matter ("0x1" and "0abc" are 0). -1 when it names no device.
inline int ordinal_of(const char* text, unsigned count) {
    char* end = nullptr;
    const long value = std::strtol(text, &end, 10);
    return end != text && value >= 0 && value < static_cast<long>(count) ? static_cast<int>(value)
                                                                         : -1;
}

/// "GPU-" and the UUID, of which the first digits suffice when they fit one device only; what
/// follows a whole UUID does not matter, nor does the letters' case.
inline int device_with_uuid(const char* text, std::size_t bytes, const CUuuid* uuids,
                            unsigned count) {
    int found = -1;
    for (unsigned device = 0; device < count && bytes > 4; ++device) {
        char name[36];
        std::size_t length = 0;
        for (int i = 0; i < 16; ++i) {
            const auto byte = static_cast<unsigned char>(uuids[device].bytes[i]);
            if (i == 4 || i == 6 || i == 8 || i == 10) {
                name[length++] = '-';
            }
            name[length++] = "0123456789abcdef"[byte >> 4];
            name[length++] = "0123456789abcdef"[byte & 15];
        }
        const std::size_t compared = bytes - 4 < length ? bytes - 4 : length;
        if (strncasecmp(text + 4, name, compared) == 0) {
            if (found >= 0) {
                return -1;
            }
            found = static_cast<int>(device);
        }
    }
    return found;
}

}  // namespace settings_detail

/// Which devices CUDA_VISIBLE_DEVICES shows.
struct VisibleDevices {
    /// What cuInit answers: 0, 100 (no device) when none is shown, 101 when one is named twice.
    CUresult result = CUDA_SUCCESS;
    unsigned count = 0;
};

/// `list` is the setting's value (null: not set). Of `count` devices with these UUIDs the ordinals
/// of those that are shown, in the list's order, go to `shown`, which has room for `count`. The
/// list ends at its first name that is no device's, or is not of the first one's kind (ordinal or
/// UUID).
inline VisibleDevices visible_devices(const char* list, const CUuuid* uuids, unsigned count,
                                      unsigned* shown) {
    VisibleDevices out;
    for (; list == nullptr && out.count < count; ++out.count) {
        shown[out.count] = out.count;
    }
    const bool by_uuid = list != nullptr && std::strncmp(list, "GPU-", 4) == 0;
    for (const char* token = list; token != nullptr;) {
        const std::size_t bytes = std::strcspn(token, ",");
        const int device = !by_uuid ? settings_detail::ordinal_of(token, count)
                           : std::strncmp(token, "GPU-", 4) == 0
                               ? settings_detail::device_with_uuid(token, bytes, uuids, count)
                               : -1;
        if (device < 0) {
            break;
        }
        for (unsigned i = 0; i < out.count; ++i) {
            if (shown[i] == static_cast<unsigned>(device)) {
                return {CUDA_ERROR_INVALID_DEVICE, 0};
            }
        }
        shown[out.count++] = static_cast<unsigned>(device);
        token = token[bytes] == ',' ? token + bytes + 1 : nullptr;
    }
    out.result = out.count == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
    return out;
}

/// CUDA_LAUNCH_BLOCKING, of which only "1" counts: kernels and graphs have ended when their launch
/// returns. Memsets and copies do not wait.
inline bool launches_block() {
    const char* setting = std::getenv("CUDA_LAUNCH_BLOCKING");
    return setting != nullptr && std::strcmp(setting, "1") == 0;
}

}  // namespace gantry::cuda
