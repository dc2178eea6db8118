// Conversions between f16 / bf16 and float, branch-free so that loops over lanes vectorise.
// All of them need the FP unit in nearest mode without flushing (fp_mode 0).
#pragma once

#include "host-daemon/softgpu/engine/isa/lanes.h"

namespace gantry::softgpu::GANTRY_ISA_NAMESPACE {

GANTRY_INLINE float to_float(half_t value) {
    const u32 magnitude = value.bits & 0x7fffU;
    const u32 sign = static_cast<u32>(value.bits & 0x8000U) << 16;
    const u32 shifted = magnitude << 13;
    const u32 normal = shifted + (112U << 23) + (magnitude >= 0x7c00U ? 112U << 23 : 0U);
    const u32 denormal = bits_as<u32>(static_cast<float>(static_cast<s32>(magnitude)) * 0x1p-24F);
    return bits_as<float>((magnitude < 0x400U ? denormal : normal) | sign);
}

GANTRY_INLINE float to_float(bf16_t value) {
    return bits_as<float>(static_cast<u32>(value.bits) << 16);
}

GANTRY_INLINE half_t to_half(float value) {
    const u32 bits = bits_as<u32>(value);
    const u32 magnitude = bits & 0x7fffffffU;
    const u32 sign = (bits >> 16) & 0x8000U;
    // Adding 0.5 leaves the half's denormal bits, correctly rounded, at the bottom.
    const u32 denormal = bits_as<u32>(bits_as<float>(magnitude) + 0.5F) - 0x3f000000U;
    const u32 normal = (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
    u32 result = magnitude < 0x38800000U ? denormal : normal;
    result = magnitude >= 0x477ff000U ? 0x7c00U : result;
    result |= sign;
    return {static_cast<u16>(magnitude > 0x7f800000U ? 0x7fffU : result)};
}

GANTRY_INLINE bf16_t to_bf16(float value) {
    const u32 bits = bits_as<u32>(value);
    const u32 rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    return {static_cast<u16>((bits & 0x7fffffffU) > 0x7f800000U ? 0x7fffU : rounded)};
}

/// Double to float by rounding to odd, so that a second rounding gives the right result.
GANTRY_INLINE float to_float_odd(double value) {
    const float nearest = static_cast<float>(value);
    const u32 bits = bits_as<u32>(nearest);
    const double back = static_cast<double>(nearest);
    const double magnitude = __builtin_fabs(value);
    const u32 odd = __builtin_fabs(back) < magnitude ? bits + 1 : bits - 1;
    const bool inexact = back != value && value == value && (bits & 0x7fffffffU) != 0x7f800000U;
    return bits_as<float>(inexact && (bits & 1U) == 0 ? odd : bits);
}

template <typename H>
GANTRY_INLINE H narrow(float value) {
    if constexpr (std::is_same_v<H, half_t>) {
        return to_half(value);
    } else {
        return to_bf16(value);
    }
}

}  // namespace gantry::softgpu::GANTRY_ISA_NAMESPACE
