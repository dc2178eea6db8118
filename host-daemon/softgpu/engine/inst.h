// The decoded form of one PTX instruction, and the handler that executes it.
//
// A warp's registers lie in one "file" of bytes: every register, constant and special register
// has a slot there, 32 lanes side by side (structure of arrays). Slots: predicate = one u32 mask;
// 8, 16 and 32-bit = 32 x u32; 64-bit = 32 x u64; 128-bit = 32 low halves, then 32 high halves.
// Narrow values use the low bits of their u32; readers truncate. An instruction names its
// operands by byte offset, so constants cost nothing at run time.
//
// A handler returns the next instruction, or kStop after leaving word in the warp (see warp.h).
#pragma once

#include <cstdint>

namespace gantry::softgpu {

struct Warp;
struct Inst;
using Handler = const Inst* (*)(Warp& warp, const Inst* inst);

/// Higher than any instruction's address: ends the inner loop with the same compare that
/// notices a reconvergence point.
inline const Inst* stop_instruction() { return reinterpret_cast<const Inst*>(~std::uintptr_t{0}); }

struct Inst {
    Handler fn = nullptr;
    std::uint32_t dst = 0;
    std::uint32_t a = 0;
    std::uint32_t b = 0;
    std::uint32_t c = 0;
    union {
        std::int64_t imm = 0;
        const Inst* target;
        const void* table;
    };
    std::uint32_t d = 0;
    std::uint32_t guard = 0;   ///< Predicate slot, for handlers that look at one.
    Handler inner = nullptr;   ///< What a guard wraps.
    std::uint32_t line = 0;    ///< In the PTX text.
    std::uint16_t aux = 0;     ///< Small immediate of the family (compare, mode, count).
    std::uint8_t fp_mode = 0;  ///< FpMode.
    std::uint8_t flags = 0;    ///< Family-specific.
    std::uint32_t e = 0;       ///< Fifth operand.
    std::uint32_t column = 0;  ///< In the PTX text.
};
static_assert(sizeof(Inst) == 64);

/// Rounding (bits 0-1, as in MXCSR) and flush-to-zero (bit 2) for the hardware's FP unit.
enum FpMode : std::uint8_t {
    kFpNearest = 0,
    kFpDown = 1,
    kFpUp = 2,
    kFpZero = 3,
    kFpFlush = 4,
};

/// Element types that arithmetic tables are indexed by.
enum class Elem : std::uint8_t {
    kU8,
    kS8,
    kU16,
    kS16,
    kU32,
    kS32,
    kU64,
    kS64,
    kF16,
    kBf16,
    kF16x2,
    kBf16x2,
    kF32,
    kF64,
    kCount,
};
inline constexpr int kElemCount = static_cast<int>(Elem::kCount);

enum class Binary : std::uint8_t {
    kAdd,
    kSub,
    kMulLo,
    kMulHi,
    kMulWide,
    kDiv,
    kRem,
    kMin,
    kMax,
    kAnd,
    kOr,
    kXor,
    kShl,
    kShr,
    kAddSat,
    kSubSat,
    kMul24Lo,
    kMul24Hi,
    kCopysign,
    kMinNan,
    kMaxNan,
    kMinXorsignAbs,
    kMaxXorsignAbs,
    kMinNanXorsignAbs,
    kMaxNanXorsignAbs,
    kMulSat,
    kDivFull,
    kDivApprox,
    kCount,
};
enum class Unary : std::uint8_t {
    kMov,
    kAbs,
    kNeg,
    kNot,
    kCnot,
    kPopc,
    kClz,
    kBrev,
    kBfind,
    kBfindShift,
    kRcp,
    kSqrt,
    kRsqrt,
    kEx2,
    kLg2,
    kSin,
    kCos,
    kTanh,
    kSqrtApprox,
    kRcpApprox,
    kRcpApproxFtz64,
    kRsqrtApproxFtz64,
    kSatF,
    kCount,
};
enum class Ternary : std::uint8_t {
    kMadLo,
    kMadHi,
    kMadWide,
    kMadHiSat,
    kSad,
    kFma,
    kFmaSat,
    kFmaRelu,
    kBfe,
    kShfLeftClamp,
    kShfLeftWrap,
    kShfRightClamp,
    kShfRightWrap,
    kMad24Lo,
    kMad24Hi,
    kMad24HiSat,
    kLop3,
    kPrmt,
    kSlctS32,
    kSlctF32,
    kDp4aUU,
    kDp4aUS,
    kDp4aSU,
    kDp4aSS,
    kFns,
    kMin3,
    kMax3,
    kMin3Nan,
    kMax3Nan,
    kCount,
};
enum class Compare : std::uint8_t {
    kEq,
    kNe,
    kLt,
    kLe,
    kGt,
    kGe,
    kEqu,
    kNeu,
    kLtu,
    kLeu,
    kGtu,
    kGeu,
    kNum,
    kNan,
    kCount,
};
enum class PredCombine : std::uint8_t { kNone, kAnd, kOr, kXor };

/// Where an access goes and how its address is held.
enum class Access : std::uint8_t {
    kFlat,
    kShared32,
    kShared64,
    kLocal32,
    kLocal64,
    kFrame,
    kCount,
};
/// What is in memory. kB128: one element of 16 bytes.
enum class Cell : std::uint8_t { kU8, kS8, kU16, kS16, kB32, kB64, kB128, kCount };

template <typename E>
constexpr int index_of(E value) {
    return static_cast<int>(value);
}
template <typename E>
inline constexpr int kCountOf = static_cast<int>(E::kCount);

/// The handlers that are built once per instruction-set level of the CPU (see isa/).
struct HandlerTable {
    Handler binary[kCountOf<Binary>][kElemCount] = {};
    Handler unary[kCountOf<Unary>][kElemCount] = {};
    Handler ternary[kCountOf<Ternary>][kElemCount] = {};
    /// The .ftz forms of f32 operations that the FP unit does not flush by itself; most are empty.
    Handler binary_flush[kCountOf<Binary>] = {};
    Handler unary_flush[kCountOf<Unary>] = {};
    Handler ternary_flush[kCountOf<Ternary>] = {};
    Handler setp[kCountOf<Compare>][kElemCount] = {};  ///< One result, no combining.
    Handler setp_flush[kCountOf<Compare>] = {};        ///< The .ftz forms of f16.
    Handler set[kCountOf<Compare>][kElemCount] = {};   ///< To u32 all-ones; see set_f32.
    Handler selp32 = nullptr, selp64 = nullptr;
    Handler convert[kElemCount][kElemCount] = {};  ///< [to][from], no rounding to integer
    Handler convert_saturate[kElemCount][kElemCount] = {};
    Handler load[kCountOf<Access>][kCountOf<Cell>][3] = {};  ///< [..][..][log2 of count]
    Handler store[kCountOf<Access>][kCountOf<Cell>][3] = {};
    Handler load_ordered[kCountOf<Cell>][3] = {};  ///< Flat, for others to wait for.
    Handler store_ordered[kCountOf<Cell>][3] = {};
    Handler load_param[kCountOf<Cell>][3] = {};  ///< Uniform, from the parameter buffer.
    Handler guarded[2] = {};                     ///< [negated]
    Handler bfi32 = nullptr, bfi64 = nullptr;
    Handler pack[6] = {}, unpack[6] = {};       ///< See isa/move.cc.
    Handler round_integer[4][kElemCount] = {};  ///< cvt.r?i float to float
    Handler multiply_matrices = nullptr;        ///< See matrix.h.
};

/// Chosen once per process by the CPU's abilities (GANTRY_SOFT_ISA=v2|v3|v4 forces one).
[[nodiscard]] const HandlerTable& handlers();

}  // namespace gantry::softgpu
