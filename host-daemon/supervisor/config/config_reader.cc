#include "host-daemon/supervisor/config/config.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <sstream>

#include "host-daemon/supervisor/config/config_schema.h"
#include "proto/base/edit_distance.h"

namespace gantry::supervisor {
namespace {

/// Up to three candidates nearest to `text`, those that a typing error may have meant first.
std::string nearest(std::string_view text, std::vector<std::string> candidates) {
    const auto distance = [&](const std::string& candidate) {
        return edit_distance(text.data(), text.size(), candidate.data(), candidate.size());
    };
    std::stable_sort(candidates.begin(), candidates.end(),
                     [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
    std::string out;
    for (std::size_t i = 0; i < std::min<std::size_t>(3, candidates.size()); ++i) {
        out += (i == 0 ? "" : ", ") + candidates[i];
    }
    return out;
}

std::vector<std::string> section_names() {
    std::vector<std::string> names;
    for (const ConfigKey& key : config_keys()) {
        if (names.empty() || names.back() != key.section) {
            names.emplace_back(key.section);
        }
    }
    return names;
}

bool is_address(const std::string& text) {
    const std::size_t colon = text.rfind(':');
    if (colon == std::string::npos || colon == 0) {
        return false;
    }
    const char* end = text.data() + text.size();
    unsigned port = 0;
    const auto [at, error] = std::from_chars(text.data() + colon + 1, end, port);
    return error == std::errc{} && at == end && port <= 65535;
}

class Reader {
public:
    explicit Reader(std::string file) : file_(std::move(file)) {}

    Result<Config> read(const std::string& text) {
        const toml::parse_result parsed = toml::parse(text, file_);
        if (!parsed) {
            const toml::parse_error& error = parsed.error();
            complain(error.source(), std::string(error.description()));
            return failure();
        }
        for (const auto& [name, node] : parsed.table()) {
            read_section(std::string(name.str()), node);
        }
        check_devices(parsed.table());
        if (!problems_.empty()) {
            return failure();
        }
        return config_;
    }

private:
    void complain(const toml::source_region& at, const std::string& text) {
        problems_ +=
            fmt::format("{}{}:{}: {}", (problems_.empty() ? "" : "\n"), file_, at.begin.line, text);
    }

    Error failure() const { return Error{Code::kInvalidArgument, "config.invalid", problems_}; }

    /// A number that is there twice, or is none of a GPU, was meant to be another.
    void check_devices(const toml::table& all) {
        const toml::node_view<const toml::node> list = all["worker"]["devices"];
        const std::vector<std::int64_t>& numbers = config_.worker.devices;
        if (!list || numbers.empty()) {
            return;
        }
        for (auto at = numbers.begin(); at != numbers.end(); ++at) {
            if (*at < 0 || *at >= std::int64_t{kDevicesMax}) {
                complain(list.node()->source(),
                         fmt::format("'worker.devices' has {}: a GPU's number is 0 to {}", *at,
                                     kDevicesMax - 1));
            } else if (std::find(numbers.begin(), at, *at) != at) {
                complain(list.node()->source(), fmt::format("'worker.devices' has {} twice", *at));
            }
        }
        if (config_.worker.only_device >= 0) {
            complain(list.node()->source(),
                     "'worker.devices' and 'worker.device' both name GPUs: leave 'worker.device' "
                     "out");
        }
    }

    void read_section(const std::string& section, const toml::node& node) {
        const std::vector<std::string> names = section_names();
        if (std::find(names.begin(), names.end(), section) == names.end()) {
            complain(node.source(), "unknown section '" + section +
                                        "'; nearest valid sections: " + nearest(section, names));
            return;
        }
        const toml::table* table = node.as_table();
        if (table == nullptr) {
            complain(node.source(), "'" + section + "' must be a section: [" + section + "]");
            return;
        }
        for (const auto& [key, value] : *table) {
            read_key(section, std::string(key.str()), key.source(), value);
        }
    }

    void read_key(const std::string& section, const std::string& name,
                  const toml::source_region& at, const toml::node& value) {
        std::vector<std::string> names;
        for (const ConfigKey& key : config_keys()) {
            if (key.section == section) {
                if (key.name == name) {
                    std::visit([&](const auto& place) { store(key, place, value); }, key.place);
                    return;
                }
                names.push_back(section + "." + std::string(key.name));
            }
        }
        complain(at, "unknown key '" + section + "." + name +
                         "'; nearest valid keys: " + nearest(section + "." + name, names));
    }

    void wrong_type(const ConfigKey& key, const toml::node& value, const std::string& wanted) {
        complain(value.source(), "'" + std::string(key.section) + "." + std::string(key.name) +
                                     "' must be " + wanted);
    }

    void store(const ConfigKey& key, StringPlace place, const toml::node& value) {
        if (const auto text = value.value_exact<std::string>()) {
            *place(config_) = *text;
        } else {
            wrong_type(key, value, "a string in quotes");
        }
    }
    void store(const ConfigKey& key, BoolPlace place, const toml::node& value) {
        if (const auto flag = value.value_exact<bool>()) {
            *place(config_) = *flag;
        } else {
            wrong_type(key, value, "true or false");
        }
    }
    void store(const ConfigKey& key, const IntPlace& place, const toml::node& value) {
        const auto number = value.value_exact<std::int64_t>();
        if (!number || *number < place.min || *number > place.max) {
            wrong_type(key, value,
                       fmt::format("a whole number from {} to {}", place.min, place.max));
            return;
        }
        *place.place(config_) = *number;
    }
    void store(const ConfigKey& key, IntListPlace place, const toml::node& value) {
        const toml::array* list = value.as_array();
        std::vector<std::int64_t> numbers;
        for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
            if (const auto number = (*list)[i].value_exact<std::int64_t>()) {
                numbers.push_back(*number);
            }
        }
        if (list == nullptr || numbers.size() != list->size()) {
            wrong_type(key, value, "a list of whole numbers: [1000, 1001]");
            return;
        }
        *place(config_) = numbers;
    }
    void store(const ConfigKey& key, NameListPlace place, const toml::node& value) {
        const toml::array* list = value.as_array();
        std::vector<std::string> names;
        for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
            const auto name = (*list)[i].value_exact<std::string>();
            if (name && !name->empty()) {
                names.push_back(*name);
            }
        }
        if (list == nullptr || names.size() != list->size()) {
            wrong_type(key, value, "a list of names in quotes: [\"hosta\", \"10.77.0.2\"]");
            return;
        }
        *place(config_) = names;
    }
    void store(const ConfigKey& key, const ChoicePlace& choice, const toml::node& value) {
        std::vector<std::string> choices;
        std::istringstream stream{std::string(choice.choices)};
        for (std::string one; std::getline(stream, one, '|');) {
            choices.push_back(one);
        }
        const auto text = value.value_exact<std::string>();
        if (!text || std::find(choices.begin(), choices.end(), *text) == choices.end()) {
            wrong_type(key, value, "one of \"" + std::string(choice.choices) + "\"");
            return;
        }
        *choice.place(config_) = *text;
    }

    void store(const ConfigKey& key, const AddressPlace& address, const toml::node& value) {
        const auto text = value.value_exact<std::string>();
        if (!text || (!text->empty() && !is_address(*text))) {
            wrong_type(key, value, "\"ADDRESS:PORT\", with a port of at most 65535");
            return;
        }
        *address.place(config_) = *text;
    }

    void store(const ConfigKey& key, const PathPlace& path, const toml::node& value) {
        const bool may_be_empty =
            path.otherwise == Otherwise::kEmpty || path.otherwise == Otherwise::kEmptyOrName;
        const bool may_be_name =
            path.otherwise == Otherwise::kName || path.otherwise == Otherwise::kEmptyOrName;
        const auto text = value.value_exact<std::string>();
        const bool fits = text && (text->empty()                          ? may_be_empty
                                   : text->find('/') == std::string::npos ? may_be_name
                                                                          : text->front() == '/');
        if (!fits) {
            wrong_type(key, value,
                       std::string("an absolute path, \"/...\"") +
                           (may_be_name ? ", or a name without a folder" : "") +
                           (may_be_empty ? ", or \"\"" : ""));
            return;
        }
        *path.place(config_) = *text;
    }

    std::string file_;
    std::string problems_;
    Config config_;
};

std::string in_quotes(const std::string& text) {
    std::ostringstream out;
    out << toml::value<std::string>(text);
    return out.str();
}

struct Printer {
    Config& config;
    std::string operator()(StringPlace place) const { return in_quotes(*place(config)); }
    std::string operator()(BoolPlace place) const { return *place(config) ? "true" : "false"; }
    std::string operator()(const IntPlace& place) const {
        return std::to_string(*place.place(config));
    }
    std::string operator()(IntListPlace place) const {
        std::string out = "[";
        for (const std::int64_t number : *place(config)) {
            out += (out.size() > 1 ? ", " : "") + std::to_string(number);
        }
        return out + "]";
    }
    std::string operator()(NameListPlace place) const {
        std::string out = "[";
        for (const std::string& name : *place(config)) {
            out += (out.size() > 1 ? ", " : "") + in_quotes(name);
        }
        return out + "]";
    }
    std::string operator()(const AddressPlace& address) const {
        return in_quotes(*address.place(config));
    }
    std::string operator()(const ChoicePlace& choice) const {
        return in_quotes(*choice.place(config));
    }
    std::string operator()(const PathPlace& path) const { return in_quotes(*path.place(config)); }
};

}  // namespace

Result<Config> parse_config(const std::string& text, const std::string& name) {
    return Reader{name}.read(text);
}

std::vector<DeviceNumber> named_devices(const WorkerConfig& config) {
    if (config.only_device >= 0) {
        return {static_cast<DeviceNumber>(config.only_device)};
    }
    std::vector<DeviceNumber> out;
    for (const std::int64_t device : config.devices) {
        out.push_back(static_cast<DeviceNumber>(device));
    }
    return out;
}

Result<Config> load_config(const std::string& path) {
    errno = 0;
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    // Nothing to copy would set failbit. A folder can be opened, too: only reading it fails.
    const bool is_empty = file.peek() == std::ifstream::traits_type::eof();
    if (!file.is_open() || file.bad() || (!is_empty && !(text << file.rdbuf()))) {
        return Error{Code::kNotFound, "config.unreadable",
                     "cannot read " + path + (errno != 0 ? ": " : "") +
                         (errno != 0 ? std::strerror(errno) : "") +
                         "; write it (gantryd --print-config shows every key), or name another "
                         "with --config"};
    }
    return parse_config(text.str(), path);
}

std::string print_config(const Config& config) {
    Config copy = config;
    std::string out;
    std::string_view section;
    for (const ConfigKey& key : config_keys()) {
        if (key.section != section) {
            section = key.section;
            out += (out.empty() ? "[" : "\n[") + std::string(section) + "]\n";
        }
        out += "# " + std::string(key.help) + "\n" + std::string(key.name) + " = " +
               std::visit(Printer{copy}, key.place) + "\n";
    }
    return out;
}

}  // namespace gantry::supervisor
