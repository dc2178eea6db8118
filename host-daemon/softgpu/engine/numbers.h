// Scalar conversions of small float formats, for the decoder and for rare instructions.
#pragma once

#include <cstdint>

namespace gantry::softgpu {

[[nodiscard]] float float_from_half(std::uint16_t bits);
[[nodiscard]] std::uint16_t half_from_double(double value);  ///< Nearest even.
[[nodiscard]] std::uint16_t bf16_from_double(double value);
/// A small float with `exponent_bits` and `mantissa_bits`; see numbers.cc for NaN and overflow.
struct SmallFormat {
    int exponent_bits;
    int mantissa_bits;
    int bias;
    bool has_infinity;
    bool has_nan;
};
inline constexpr SmallFormat kHalf{5, 10, 15, true, true};
inline constexpr SmallFormat kBfloat{8, 7, 127, true, true};
inline constexpr SmallFormat kE4m3{4, 3, 7, false, true};
inline constexpr SmallFormat kE5m2{5, 2, 15, true, true};
inline constexpr SmallFormat kE2m3{2, 3, 1, false, false};
inline constexpr SmallFormat kE3m2{3, 2, 3, false, false};
inline constexpr SmallFormat kE2m1{2, 1, 1, false, false};

inline constexpr SmallFormat kTf32{8, 10, 127, true, true};

enum class SmallRounding : std::uint8_t { kNearestEven, kZero, kNearestAway };

/// Finite overflow gives the largest finite value if `saturate_finite`
/// or the format has no infinity, else infinity.
[[nodiscard]] std::uint32_t small_from_double(double value, const SmallFormat& format,
                                              bool saturate_finite,
                                              SmallRounding rounding = SmallRounding::kNearestEven);
[[nodiscard]] double double_from_small(std::uint32_t bits, const SmallFormat& format);

}  // namespace gantry::softgpu
