#include "guest-shim/session/base/environment.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "proto/base/settings.h"

extern char** environ;

namespace gantry::session {
namespace {

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
    if (!check_setting_names(environ, problem, problem_bytes)) {
        return false;
    }
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
        const char* equals = std::strchr(*entry, '=');
        if (equals == nullptr) {
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
