#include "host-daemon/softgpu/core/settings.h"

#include <array>
#include <charconv>
#include <string>
#include <string_view>

#include "proto/base/settings.h"

namespace gantry::softgpu {
namespace {

constexpr std::string_view kPrefix = "GANTRY_SOFT_";
bool is_thread_count(std::string_view value) {
    int count = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), count);
    return error == std::errc{} && end == value.data() + value.size() && count >= 1 &&
           count <= 1024;
}

bool is_one_of(std::string_view value, const std::array<std::string_view, 3>& words) {
    return value == words[0] || value == words[1] || value == words[2];
}

Error wrong(std::string_view entry, const std::string& what) {
    return Error{Code::kInvalidArgument, "settings.value",
                 std::string(entry) + " in the environment: " + what};
}

}  // namespace

Result<void> check_settings(const char* const* environment) {
    char unknown[300];
    if (!check_setting_names(environment, unknown, sizeof(unknown))) {
        return Error{Code::kInvalidArgument, "settings.value", unknown};
    }
    for (; environment != nullptr && *environment != nullptr; ++environment) {
        const std::string_view entry = *environment;
        const std::size_t equals = entry.find('=');
        if (equals == std::string_view::npos || !entry.starts_with(kPrefix)) {
            continue;
        }
        const std::string_view key = entry.substr(kPrefix.size(), equals - kPrefix.size());
        const std::string_view value = entry.substr(equals + 1);
        if (key == "THREADS") {
            if (!is_thread_count(value)) {
                return wrong(entry, "the value must be a number of threads from 1 to 1024");
            }
        } else if (key == "ISA") {
            if (!is_one_of(value, {"v2", "v3", "v4"})) {
                return wrong(entry, "the value must be v2, v3 or v4, a level of x86-64");
            }
        } else if (key == "LOG") {
            if (!is_one_of(value, {"on", "off", "refusals"})) {
                return wrong(entry, "the value must be on, off or refusals");
            }
        }
    }
    return {};
}

}  // namespace gantry::softgpu
