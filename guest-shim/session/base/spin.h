// Looking again and again at what another thread is about to change, for a while.
#pragma once

#include <cstdint>

#include "proto/wire/wait.h"

namespace gantry::session {

/// True as soon as `is_over()`; false once it was not for `most_ns`. The clock is read after each
/// `looks` at it.
template <typename IsOver>
bool look_until(IsOver is_over, std::uint64_t most_ns, unsigned looks) noexcept {
    const std::uint64_t until = wire::monotonic_ns() + most_ns;
    do {
        for (unsigned look = 0; look < looks; ++look) {
            if (is_over()) {
                return true;
            }
            wire::cpu_relax();
        }
    } while (wire::monotonic_ns() < until);
    return false;
}

}  // namespace gantry::session
