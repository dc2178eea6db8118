// Names shared by the decoder and the handlers of atomic operations.
#pragma once

#include "host-daemon/softgpu/engine/inst.h"

namespace gantry::softgpu::exec {

enum class AtomicOp : std::uint8_t {
    kAdd,
    kMin,
    kMax,
    kAnd,
    kOr,
    kXor,
    kExch,
    kCas,
    kInc,
    kDec,
};
enum class AtomicKind : std::uint8_t {
    kUnsigned,
    kSigned,
    kF32,
    kF64,
    kF16,
    kBf16,
    kF16x2,
    kBf16x2,
};

/// For cells of 16, 32, 64 or 128 bits; aux: AtomicOp | AtomicKind << 8. See atomic.cc.
Handler atomic(unsigned bits);
/// add.f32 where access is kFlat.
Handler flat_sum();

}  // namespace gantry::softgpu::exec
