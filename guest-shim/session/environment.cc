#include "guest-shim/session/environment.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

extern char** environ;

namespace gantry::session {
namespace {

constexpr char kPrefix[] = "GANTRY_";
constexpr char kKnown[] =
    "GANTRY_TRANSPORT, GANTRY_SYNC, GANTRY_TRACE, GANTRY_REPORT, GANTRY_CONNECT_TIMEOUT_MS";

/// Keys that other parts of Gantry read in the same process (the soft driver's, NVML's).
bool is_foreign(const char* key, unsigned long key_bytes) {
    static constexpr const char* kForeign[] = {"GANTRY_SOFT", "GANTRY_NVML_", "GANTRY_TEST_"};
    for (const char* prefix : kForeign) {
        const unsigned long prefix_bytes = std::strlen(prefix);
        if (key_bytes >= prefix_bytes && std::strncmp(key, prefix, prefix_bytes) == 0) {
            return true;
        }
    }
    return false;
}

bool key_is(const char* entry, unsigned long key_bytes, const char* key) {
    return std::strlen(key) == key_bytes && std::strncmp(entry, key, key_bytes) == 0;
}

bool parse_flag(const char* value, bool* out) {
    if (std::strcmp(value, "0") != 0 && std::strcmp(value, "1") != 0) {
        return false;
    }
    *out = value[0] == '1';
    return true;
}

bool parse_milliseconds(const char* value, unsigned* out) {
    char* end = nullptr;
    const unsigned long number = std::strtoul(value, &end, 10);
    if (end == value || *end != '\0' || number == 0 || number > 3'600'000) {
        return false;
    }
    *out = static_cast<unsigned>(number);
    return true;
}

}  // namespace

bool read_environment(Environment* out, char* problem, unsigned long problem_bytes) {
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
        const char* equals = std::strchr(*entry, '=');
        if (equals == nullptr || std::strncmp(*entry, kPrefix, sizeof(kPrefix) - 1) != 0) {
            continue;
        }
        const auto key_bytes = static_cast<unsigned long>(equals - *entry);
        const char* value = equals + 1;
        const char* wanted = nullptr;  // What the value must be, when it is not that.
        if (key_is(*entry, key_bytes, "GANTRY_TRANSPORT")) {
            out->transport = value;
        } else if (key_is(*entry, key_bytes, "GANTRY_TRACE")) {
            out->trace_path = value;
        } else if (key_is(*entry, key_bytes, "GANTRY_REPORT")) {
            out->report_path = value;
        } else if (key_is(*entry, key_bytes, "GANTRY_SYNC")) {
            wanted = parse_flag(value, &out->synchronous) ? nullptr : "0 or 1";
        } else if (key_is(*entry, key_bytes, "GANTRY_CONNECT_TIMEOUT_MS")) {
            wanted = parse_milliseconds(value, &out->connect_timeout_ms)
                         ? nullptr
                         : "1 to 3600000 milliseconds";
        } else if (!is_foreign(*entry, key_bytes)) {
            std::snprintf(problem, problem_bytes,
                          "unknown setting %.*s in the environment; known are %s",
                          static_cast<int>(key_bytes), *entry, kKnown);
            return false;
        }
        if (wanted != nullptr) {
            std::snprintf(problem, problem_bytes, "%s in the environment: the value must be %s",
                          *entry, wanted);
            return false;
        }
    }
    return true;
}

}  // namespace gantry::session
