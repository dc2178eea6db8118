// Video instructions: small integer operations on bytes, halves or words of a register.
#pragma once

#include "host-daemon/softgpu/engine/inst.h"

namespace gantry::softgpu::exec {

enum class VideoOp : std::uint8_t {
    kAdd,
    kSub,
    kAbsDiff,
    kAverage,
    kMin,
    kMax,
    kSet,
    kShl,
    kShr,
};

/// aux: VideoOp | log2(parts) << 4 (1, 2 or 4 parts) | Compare << 8.
/// flags: 1 a signed, 2 b signed, 4 saturate, 8 result signed, 16 wrap (shifts), 32 SIMD: negative
/// parts become 0.
/// d: second operation on c: 0 none, 1 add (SIMD: sum of the parts), 2 min, 3 max.
/// e: parts selected of a and b for scalar forms: 0 whole, 1-4 byte, 5-6 half; b's in bits 4-7.
Handler video();

}  // namespace gantry::softgpu::exec
