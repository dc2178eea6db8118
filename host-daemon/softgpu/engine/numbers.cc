#include "host-daemon/softgpu/engine/numbers.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace gantry::softgpu {

double double_from_small(std::uint32_t bits, const SmallFormat& format) {
    const int mantissa_bits = format.mantissa_bits;
    const std::uint32_t mantissa = bits & ((1U << mantissa_bits) - 1);
    const std::uint32_t top = (1U << format.exponent_bits) - 1;
    const std::uint32_t exponent = (bits >> mantissa_bits) & top;
    const bool negative = ((bits >> (mantissa_bits + format.exponent_bits)) & 1U) != 0;
    double value = 0;
    if (format.has_infinity && exponent == top) {
        value = mantissa == 0 ? std::numeric_limits<double>::infinity()
                              : std::numeric_limits<double>::quiet_NaN();
    } else if (format.has_nan && !format.has_infinity && exponent == top &&
               mantissa == (1U << mantissa_bits) - 1) {
        value = std::numeric_limits<double>::quiet_NaN();
    } else if (exponent == 0) {
        value = std::ldexp(mantissa, 1 - format.bias - mantissa_bits);
    } else {
        value = std::ldexp(mantissa + (1U << mantissa_bits),
                           static_cast<int>(exponent) - format.bias - mantissa_bits);
    }
    return negative ? -value : value;
}

namespace {

double whole_steps(double steps, SmallRounding rounding) {
    switch (rounding) {
        case SmallRounding::kZero: return std::trunc(steps);
        case SmallRounding::kNearestAway: return std::round(steps);
        default: return std::nearbyint(steps);
    }
}

}  // namespace

std::uint32_t small_from_double(double value, const SmallFormat& format, bool saturate_finite,
                                SmallRounding rounding) {
    const int mantissa_bits = format.mantissa_bits;
    const std::uint32_t top = (1U << format.exponent_bits) - 1;
    const std::uint32_t ones = (1U << mantissa_bits) - 1;
    const std::uint32_t sign =
        std::signbit(value) ? 1U << (mantissa_bits + format.exponent_bits) : 0U;
    const std::uint32_t largest = format.has_infinity ? ((top - 1) << mantissa_bits) | ones
                                  : format.has_nan    ? (top << mantissa_bits) | (ones - 1)
                                                      : (top << mantissa_bits) | ones;
    if (std::isnan(value)) {
        // The canonical NaN is positive with all other bits set; formats without one saturate.
        return format.has_nan ? (top << mantissa_bits) | ones : largest;
    }
    const double magnitude = std::fabs(value);
    if (magnitude == 0.0) {
        return sign;
    }
    const int least = 1 - format.bias - mantissa_bits;  // exponent of the smallest step
    int exponent = 0;
    std::frexp(magnitude, &exponent);
    const int step = std::max(least, exponent - 1 - mantissa_bits);
    const double steps =
        std::isinf(magnitude) ? magnitude : whole_steps(std::ldexp(magnitude, -step), rounding);
    const double rounded = std::ldexp(steps, step);
    if (rounded > double_from_small(largest, format)) {
        const bool infinite = format.has_infinity && !saturate_finite &&
                              (rounding != SmallRounding::kZero || std::isinf(magnitude));
        const bool to_nan = !format.has_infinity && format.has_nan && !saturate_finite;
        return sign | (infinite ? top << mantissa_bits
                       : to_nan ? (top << mantissa_bits) | ones
                                : largest);
    }
    const auto count = static_cast<std::uint32_t>(steps);
    if (step == least) {
        return sign | count;  // denormal, or the first normal binade: the bits run on
    }
    // A carry out of the mantissa moves into the exponent by itself.
    return sign | ((static_cast<std::uint32_t>(step - least) << mantissa_bits) + count);
}

float float_from_half(std::uint16_t bits) {
    return static_cast<float>(double_from_small(bits, kHalf));
}
std::uint16_t half_from_double(double value) {
    return static_cast<std::uint16_t>(small_from_double(value, kHalf, false));
}
std::uint16_t bf16_from_double(double value) {
    return static_cast<std::uint16_t>(small_from_double(value, kBfloat, false));
}

}  // namespace gantry::softgpu
