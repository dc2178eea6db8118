// The table of configuration keys: name, place in Config, range, explanation. Internal to
// config_reader.cc.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "host-daemon/supervisor/config/config.h"

namespace gantry::supervisor {

using StringPlace = std::string* (*)(Config&);
using BoolPlace = bool* (*)(Config&);
using IntListPlace = std::vector<std::int64_t>* (*)(Config&);
/// None of them empty.
using NameListPlace = std::vector<std::string>* (*)(Config&);
struct IntPlace {
    std::int64_t* (*place)(Config&);
    std::int64_t min;
    std::int64_t max;
};
/// A string that must be one of `choices` ("a|b|c").
struct ChoicePlace {
    StringPlace place;
    std::string_view choices;
};

/// ADDRESS:PORT with a port of at most 65535, or nothing.
struct AddressPlace {
    StringPlace place;
};

/// What may stand for an absolute path.
enum class Otherwise {
    kNothing,
    kEmpty,
    kName,  ///< Without a folder: found by who loads it.
    kEmptyOrName,
};
/// An absolute path, for what it means must not depend on where gantryd was started.
struct PathPlace {
    StringPlace place;
    Otherwise otherwise;
};

struct ConfigKey {
    std::string_view section;
    std::string_view name;
    std::variant<StringPlace, BoolPlace, IntPlace, IntListPlace, NameListPlace, ChoicePlace,
                 AddressPlace, PathPlace>
        place;
    std::string_view help;
};

std::span<const ConfigKey> config_keys();

}  // namespace gantry::supervisor
