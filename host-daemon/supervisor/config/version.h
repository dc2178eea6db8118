// This build's version, as peers, workers and operators are told.
#pragma once

#include <cstdint>

namespace gantry::supervisor {

inline constexpr char kGantryVersion[] = GANTRY_VERSION;

}  // namespace gantry::supervisor
