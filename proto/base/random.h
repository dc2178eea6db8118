// 128 random bits of the kernel's: for seeds, tokens and ids that nobody may guess.
//
// It does not fail: getrandom gives so few bytes whole, and every kernel that Gantry runs on has
// it.
#pragma once

#include <sys/random.h>

#include <array>
#include <cstdint>

#include "proto/base/assert.h"

namespace gantry {

inline std::array<std::uint64_t, 2> random_bits() {
    std::array<std::uint64_t, 2> bits{};
    const ssize_t got = ::getrandom(bits.data(), sizeof bits, 0);
    GANTRY_ASSERT(got == sizeof bits, "getrandom gave %zd bytes", got);
    return bits;
}

}  // namespace gantry
