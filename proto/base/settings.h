// Names of the settings in the environment, GANTRY_*, of all parts of the project and of its
// scripts and rigs: any process of ours refuses one that is not among them, so that a typing
// mistake is not silently without effect. One list, since the environment of one part may hold the
// settings of another: a rig's reach the gantryd that it starts.
//
// libc only (the shim includes it), no allocation. Threads: reads the environment it is given.
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstring>

namespace gantry {

inline constexpr const char* kSettings[] = {
    // guest-shim/README.md
    "GANTRY_TRANSPORT", "GANTRY_SYNC", "GANTRY_TRACE", "GANTRY_REPORT", "GANTRY_CONNECT_TIMEOUT_MS",
    // host-daemon/softgpu/README.md
    "GANTRY_SOFT_PROFILE", "GANTRY_SOFT_MEMORY", "GANTRY_SOFT_THREADS", "GANTRY_SOFT_ISA",
    "GANTRY_SOFT_LOG",
    // gantryd and its workers
    "GANTRY_FINGERPRINTS", "GANTRY_SNAPSHOTS",
    // libvirt's hook
    "GANTRY_HOOK_ADMIT_S", "GANTRY_HOOK_RELEASE_S",
    // scripts, tests and their rigs
    "GANTRY_BUILD", "GANTRY_KERNEL_DIR", "GANTRY_LOG_LEVEL", "GANTRY_PATIENCE", "GANTRY_QEMU_DIR"};

namespace settings_detail {

inline constexpr char kPrefix[] = "GANTRY_";
inline constexpr std::size_t kCompared = 48;  ///< Characters of a name; ours are shorter.

inline std::size_t least(std::size_t a, std::size_t b) { return a < b ? a : b; }

/// Fewest characters to put in, take out or exchange that make one of the other.
inline std::size_t distance(const char* a, std::size_t a_size, const char* b) {
    std::size_t row[kCompared + 1];
    const std::size_t b_size = least(std::strlen(b), kCompared);
    for (std::size_t j = 0; j <= b_size; ++j) {
        row[j] = j;
    }
    for (std::size_t i = 1; i <= a_size; ++i) {
        std::size_t diagonal = row[0];
        row[0] = i;
        for (std::size_t j = 1; j <= b_size; ++j) {
            const std::size_t exchanged = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            diagonal = row[j];
            row[j] = least(least(row[j], row[j - 1]) + 1, exchanged);
        }
    }
    return row[b_size];
}

inline bool is_known(const char* name, std::size_t size) {
    for (const char* known : kSettings) {
        if (std::strlen(known) == size && std::memcmp(known, name, size) == 0) {
            return true;
        }
    }
    return false;
}

inline const char* nearest(const char* name, std::size_t size) {
    const char* best = kSettings[0];
    for (const char* known : kSettings) {
        if (distance(name, size, known) < distance(name, size, best)) {
            best = known;
        }
    }
    return best;
}

}  // namespace settings_detail

/// False, with one line in `problem`, for an environment (NULL-ended, as `environ`) that holds a
/// GANTRY_ name which is none of ours. Values are checked by who reads them.
inline bool check_setting_names(const char* const* environment, char* problem,
                                std::size_t problem_bytes) {
    namespace detail = settings_detail;
    for (; environment != nullptr && *environment != nullptr; ++environment) {
        const char* entry = *environment;
        const char* equals = std::strchr(entry, '=');
        if (equals == nullptr ||
            std::strncmp(entry, detail::kPrefix, sizeof(detail::kPrefix) - 1) != 0) {
            continue;
        }
        const auto size = static_cast<std::size_t>(equals - entry);
        if (!detail::is_known(entry, size)) {
            const std::size_t shown = detail::least(size, 2 * detail::kCompared);
            std::snprintf(problem, problem_bytes,
                          "unknown setting %.*s in the environment; the nearest that is known is "
                          "%s: correct it or unset it",
                          static_cast<int>(shown), entry, detail::nearest(entry, shown));
            return false;
        }
    }
    return true;
}

}  // namespace gantry
