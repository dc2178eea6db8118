// Names of the settings in the environment, GANTRY_*, of all parts of the project and of its
// scripts and rigs. A name that is a letter or two beside one of them is a typing mistake: every
// process of ours refuses it, so that it is not silently without effect. Any other name belongs to
// somebody else and is left alone: Kubernetes gives each pod beside a Service named "gantry"
// GANTRY_SERVICE_HOST and GANTRY_PORT, and other programs of that name have settings of their own.
// One list, since the environment of one part may hold the settings of another: a rig's reach the
// gantryd that it starts.
//
// libc only (the shim includes it), no allocation. Threads: reads the environment it is given.
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstring>

#include "proto/base/edit_distance.h"

namespace gantry {

inline constexpr const char* kSettings[] = {
    // guest-shim/README.md
    "GANTRY_TRANSPORT", "GANTRY_SYNC", "GANTRY_TRACE", "GANTRY_REPORT", "GANTRY_CONNECT_TIMEOUT_MS",
    // host-daemon/softgpu/README.md
    "GANTRY_SOFT_PROFILE", "GANTRY_SOFT_MEMORY", "GANTRY_SOFT_THREADS", "GANTRY_SOFT_ISA",
    "GANTRY_SOFT_LOG",
    // gantryd and its workers
    "GANTRY_FINGERPRINTS",
    // libvirt's hook
    "GANTRY_HOOK_ADMIT_S", "GANTRY_HOOK_RELEASE_S", "GANTRY_HOOK_RESTORE_S",
    // scripts, tests and their rigs
    "GANTRY_BUILD", "GANTRY_KERNEL_DIR", "GANTRY_LOG_LEVEL", "GANTRY_PATIENCE", "GANTRY_QEMU_DIR"};

namespace settings_detail {

inline constexpr char kPrefix[] = "GANTRY_";
inline constexpr std::size_t kPrefixBytes = sizeof(kPrefix) - 1;
inline constexpr std::size_t kLettersWrongMax = 2;
/// So that PORT is not taken for REPORT: one wrong letter of three at most.
inline constexpr std::size_t kLettersOfAWrongOne = 3;

inline bool is_known(const char* name, std::size_t size) {
    for (const char* known : kSettings) {
        if (std::strlen(known) == size && std::memcmp(known, name, size) == 0) {
            return true;
        }
    }
    return false;
}

/// The setting that `name` is a misspelling of; null when it is none's.
inline const char* misspelt(const char* name, std::size_t size) {
    const char* best = nullptr;
    std::size_t best_distance = kLettersWrongMax + 1;
    for (const char* known : kSettings) {
        const std::size_t known_size = std::strlen(known);
        if (known_size + kLettersWrongMax < size || size + kLettersWrongMax < known_size) {
            continue;
        }
        const std::size_t distance = edit_distance(name, size, known, known_size);
        if (distance < best_distance && distance * kLettersOfAWrongOne <= size - kPrefixBytes) {
            best = known;
            best_distance = distance;
        }
    }
    return best;
}

}  // namespace settings_detail

/// False, with one line in `problem`, for an environment (NULL-ended, as `environ`) that holds a
/// misspelt setting. Values are checked by who reads them.
inline bool check_setting_names(const char* const* environment, char* problem,
                                std::size_t problem_bytes) {
    namespace detail = settings_detail;
    for (; environment != nullptr && *environment != nullptr; ++environment) {
        const char* entry = *environment;
        const char* equals = std::strchr(entry, '=');
        if (equals == nullptr || std::strncmp(entry, detail::kPrefix, detail::kPrefixBytes) != 0) {
            continue;
        }
        const auto size = static_cast<std::size_t>(equals - entry);
        const char* meant = detail::is_known(entry, size) ? nullptr : detail::misspelt(entry, size);
        if (meant != nullptr) {
            std::snprintf(problem, problem_bytes,
                          "unknown setting %.*s in the environment; the nearest that is known is "
                          "%s: correct it or unset it",
                          static_cast<int>(size), entry, meant);
            return false;
        }
    }
    return true;
}

}  // namespace gantry
