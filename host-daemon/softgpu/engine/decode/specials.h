// The special registers of PTX by name.
#pragma once

#include <string_view>

#include "host-daemon/softgpu/engine/kernel_code.h"

namespace gantry::softgpu {

struct SpecialName {
    std::string_view name;
    Special what;
    int clock = -1;  ///< exec::read_clock()'s aux, for those that change while running.
};

/// nullptr if there is none of that name.
[[nodiscard]] const SpecialName* find_special(std::string_view name);

}  // namespace gantry::softgpu
