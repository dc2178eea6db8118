// A range of blocks of a guest process's memory.
#pragma once

#include <cstdint>

#include "migration/engine/state.h"

namespace gantry::state {

using engine::MemorySpace;

/// Blocks first .. first + count - 1 of a space.
struct BlockRange {
    MemorySpace space = MemorySpace::kDevice;
    std::uint64_t first = 0;
    std::uint64_t count = 0;
};

}  // namespace gantry::state
