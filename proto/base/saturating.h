// Sums and products of sizes that a guest chose: too large is kEndless, and never small again.
#pragma once

#include <cstdint>

namespace gantry {

inline constexpr std::uint64_t kEndless = ~std::uint64_t{0};

[[nodiscard]] inline std::uint64_t product(std::uint64_t a, std::uint64_t b) {
    std::uint64_t out = 0;
    return __builtin_mul_overflow(a, b, &out) ? kEndless : out;
}

[[nodiscard]] inline std::uint64_t sum(std::uint64_t a, std::uint64_t b) {
    std::uint64_t out = 0;
    return __builtin_add_overflow(a, b, &out) ? kEndless : out;
}

}  // namespace gantry
