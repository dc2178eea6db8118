#include "host-daemon/softgpu/core/profile.h"

#include <sys/sysinfo.h>
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace gantry::softgpu {
namespace {

Error bad_profile(const std::string& where, const std::string& text) {
    return Error{Code::kInvalidArgument, "profile.value", where + ": " + text};
}

/// "67616e74-7279-..." or 32 digits without dashes.
bool parse_uuid(const std::string& text, std::array<std::uint8_t, 16>& uuid) {
    std::string digits;
    for (const char c : text) {
        if (c != '-') {
            digits += c;
        }
    }
    if (digits.size() != 32 ||
        digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
        return false;
    }
    for (std::size_t i = 0; i < 16; ++i) {
        uuid[i] = static_cast<std::uint8_t>(std::stoul(digits.substr(2 * i, 2), nullptr, 16));
    }
    return true;
}

class DeviceReader {
public:
    DeviceReader(const toml::table& table, std::string where)
        : table_(table), where_(std::move(where)) {}

    Result<GpuProfile> read() {
        for (const auto& [key, value] : table_) {
            GANTRY_TRY(apply(std::string(key.str()), value));
        }
        if (profile_.memory_bytes == 0) {
            profile_.memory_bytes = half_of_memory();
        }
        return profile_;
    }

private:
    static std::uint64_t half_of_memory() {
        struct sysinfo info {};
        constexpr std::uint64_t kGibibyte = std::uint64_t{1} << 30;
        if (sysinfo(&info) != 0) {
            return kGibibyte;
        }
        const std::uint64_t half = std::uint64_t{info.totalram} * info.mem_unit / 2;
        return half < kGibibyte ? kGibibyte : half / kGibibyte * kGibibyte;
    }

    template <typename Integer>
    Result<void> number(const std::string& key, const toml::node& value, Integer& out,
                        std::int64_t least, std::int64_t most) {
        const auto got = value.value<std::int64_t>();
        if (!got || *got < least || *got > most) {
            return bad_profile(where_, "key '" + key + "' must be a whole number from " +
                                           std::to_string(least) + " to " + std::to_string(most));
        }
        out = static_cast<Integer>(*got);
        return {};
    }

    Result<void> apply(const std::string& key, const toml::node& value) {
        constexpr std::int64_t kInt = 2147483647;
        DeviceProfile& e = profile_.engine;
        if (key == "name" || key == "compute_capability" || key == "uuid" || key == "pci") {
            return apply_text(key, value.value<std::string>().value_or(""));
        }
        if (key == "memory_bytes") {
            return number(key, value, profile_.memory_bytes, 0, std::int64_t{1} << 50);
        }
        if (key == "attributes") {
            return apply_attributes(value);
        }
        const struct {
            const char* name;
            std::uint32_t* out;
            std::int64_t most;
        } unsigned_keys[] = {
            {"sm_count", &e.sm_count, 65536},
            {"max_threads_per_sm", &e.max_threads_per_sm, 65536},
            {"max_blocks_per_sm", &e.max_blocks_per_sm, 1024},
            {"max_threads_per_block", &e.max_threads_per_block, 1024},
            {"registers_per_sm", &e.registers_per_sm, kInt},
            {"shared_bytes_per_sm", &e.shared_bytes_per_sm, kInt},
            {"shared_bytes_per_block", &e.shared_bytes_per_block, kInt},
            {"shared_bytes_per_block_optin", &e.shared_bytes_per_block_optin, kInt},
            {"reserved_shared_bytes_per_block", &e.reserved_shared_bytes_per_block, kInt},
            {"clock_khz", &e.clock_khz, kInt},
        };
        for (const auto& entry : unsigned_keys) {
            if (key == entry.name) {
                return number(key, value, *entry.out, 1, entry.most);
            }
        }
        const struct {
            const char* name;
            int* out;
        } signed_keys[] = {
            {"memory_clock_khz", &profile_.memory_clock_khz},
            {"memory_bus_bits", &profile_.memory_bus_bits},
            {"l2_bytes", &profile_.l2_bytes},
            {"ecc", &profile_.ecc},
            {"foreign", &profile_.foreign},
        };
        for (const auto& entry : signed_keys) {
            if (key == entry.name) {
                return number(key, value, *entry.out, 0, kInt);
            }
        }
        return bad_profile(where_, "unknown key '" + key + "'; see profiles/h200-like.toml");
    }

    Result<void> apply_text(const std::string& key, const std::string& text) {
        if (key == "name" && !text.empty()) {
            profile_.name = text;
            return {};
        }
        if (key == "uuid" && parse_uuid(text, profile_.uuid)) {
            return {};
        }
        char end = 0;
        if (key == "compute_capability" &&
            std::sscanf(text.c_str(), "%2d.%1d%c", &profile_.engine.compute_capability_major,
                        &profile_.engine.compute_capability_minor, &end) == 2) {
            return {};
        }
        unsigned domain = 0;
        unsigned bus = 0;
        unsigned device = 0;
        if (key == "pci" &&
            std::sscanf(text.c_str(), "%8x:%2x:%2x.0%c", &domain, &bus, &device, &end) == 3) {
            profile_.pci_domain = static_cast<int>(domain);
            profile_.pci_bus = static_cast<int>(bus);
            profile_.pci_device = static_cast<int>(device);
            return {};
        }
        return bad_profile(where_, "key '" + key + "' has a value that cannot be read: '" + text +
                                       "'; see profiles/h200-like.toml for its form");
    }

    Result<void> apply_attributes(const toml::node& value) {
        const toml::table* table = value.as_table();
        if (table == nullptr) {
            return bad_profile(where_, "key 'attributes' must be a table of number = value");
        }
        for (const auto& [key, entry] : *table) {
            const int id = std::atoi(std::string(key.str()).c_str());
            int out = 0;
            GANTRY_TRY(number("attributes." + std::string(key.str()), entry, out, -2147483647,
                              2147483647));
            if (id < 1 || id > 1000) {
                return bad_profile(where_, "attribute numbers run from 1 to 1000");
            }
            profile_.attributes[id] = out;
        }
        return {};
    }

    const toml::table& table_;
    std::string where_;
    GpuProfile profile_;
};

Result<void> apply_memory_override(std::vector<GpuProfile>& profiles) {
    const char* text = std::getenv("GANTRY_SOFT_MEMORY");
    if (text == nullptr || *text == '\0') {
        return {};
    }
    char* end = nullptr;
    std::uint64_t bytes = std::strtoull(text, &end, 10);
    const std::string suffix = end;
    if (suffix == "M" || suffix == "G") {
        bytes <<= suffix == "M" ? 20 : 30;
    } else if (!suffix.empty()) {
        bytes = 0;
    }
    if (bytes == 0) {
        return bad_profile("GANTRY_SOFT_MEMORY",
                           std::string("'") + text + "' is not a number of bytes (suffix M or G)");
    }
    for (GpuProfile& profile : profiles) {
        profile.memory_bytes = bytes;
    }
    return {};
}

}  // namespace

Result<std::vector<GpuProfile>> parse_profiles(const std::string& text, const std::string& where) {
    const toml::parse_result parsed = toml::parse(text);
    if (!parsed) {
        std::ostringstream message;
        message << parsed.error().description() << " at " << parsed.error().source().begin;
        return bad_profile(where, message.str());
    }
    std::vector<GpuProfile> profiles;
    for (const auto& [key, value] : parsed.table()) {
        const toml::array* devices = value.as_array();
        if (key.str() != "device" || devices == nullptr) {
            return bad_profile(where, "unknown key '" + std::string(key.str()) +
                                          "'; a profile is a list of [[device]] tables");
        }
        for (const toml::node& device : *devices) {
            const toml::table* table = device.as_table();
            if (table == nullptr) {
                return bad_profile(where, "every 'device' must be a table");
            }
            GANTRY_ASSIGN(GpuProfile profile, DeviceReader(*table, where).read());
            profiles.push_back(std::move(profile));
        }
    }
    if (profiles.empty() || profiles.size() > 64) {
        return bad_profile(where, "a profile needs 1 to 64 [[device]] tables");
    }
    return profiles;
}

Result<std::vector<GpuProfile>> load_profiles() {
    const char* setting = std::getenv("GANTRY_SOFT_PROFILE");
    const std::string name = setting != nullptr && *setting != '\0' ? setting : "h200-like";
    std::string text = builtin_profile(name);
    if (text.empty()) {
        const std::ifstream file(name);
        std::ostringstream contents;
        contents << file.rdbuf();
        text = contents.str();
        if (!file || text.empty()) {
            return Error{Code::kNotFound, "profile.file",
                         "GANTRY_SOFT_PROFILE names '" + name +
                             "', which is neither a readable file nor a built-in profile."};
        }
    }
    GANTRY_ASSIGN(std::vector<GpuProfile> profiles, parse_profiles(text, name));
    GANTRY_TRY(apply_memory_override(profiles));
    return profiles;
}

}  // namespace gantry::softgpu
