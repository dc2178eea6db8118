// Names shared by the decoder and the handlers of conversions between small float formats.
#pragma once

#include "host-daemon/softgpu/engine/inst.h"

namespace gantry::softgpu::exec {

enum class SmallKind : std::uint8_t {
    kF16,
    kBf16,
    kE4m3,
    kE5m2,
    kE2m3,
    kE3m2,
    kE2m1,
    kTf32,
    kF32,
    kUe8m0,
};

inline constexpr std::uint8_t kPackedRelu = 1;
inline constexpr std::uint8_t kPackedFinite = 2;  ///< Overflow gives the largest finite value.
inline constexpr std::uint8_t kPackedZero = 4;    ///< Round to zero.
inline constexpr std::uint8_t kPackedAway = 8;    ///< Round to nearest, ties away.

/// aux: to | from << 8 (SmallKind); d: 1 scalar, 2 pair. From f32 pairs: a is the upper half, b
/// the lower; other pairs are packed in a.
Handler convert_small();
/// cvt.pack: a upper, b lower, c what moves up (or ~0 slot: 16-bit form); aux: 0 u8 1 s8 2 u16
/// 3 s16; the inputs are signed 32-bit.
Handler pack_saturated();

}  // namespace gantry::softgpu::exec
