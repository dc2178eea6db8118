// Arithmetic on f16, bf16 and their pairs. +, - and * of two halves are exact enough in float
// (24 bits hold more than twice 11) for one rounding; fma goes through double, rounded to odd.
#include "host-daemon/softgpu/engine/isa/half.h"

#include "host-daemon/softgpu/engine/isa/fill.h"
#include "host-daemon/softgpu/engine/isa/forms.h"

namespace gantry::softgpu::GANTRY_ISA_NAMESPACE {
namespace {

template <typename H>
GANTRY_INLINE bool is_nan(H value) {
    const u32 magnitude = value.bits & 0x7fffU;
    return magnitude > (std::is_same_v<H, half_t> ? 0x7c00U : 0x7f80U);
}

/// .ftz of f16: denormal inputs and results become signed zeros.
template <typename H>
GANTRY_INLINE H flush(H value, bool ftz) {
    const u32 smallest = std::is_same_v<H, half_t> ? 0x400U : 0x80U;
    const bool tiny = (value.bits & 0x7fffU) < smallest;
    return {static_cast<u16>(ftz && tiny ? value.bits & 0x8000U : value.bits)};
}

struct Add { GANTRY_INLINE static float apply(float a, float b) { return a + b; } };
struct Sub { GANTRY_INLINE static float apply(float a, float b) { return a - b; } };
struct Mul { GANTRY_INLINE static float apply(float a, float b) { return a * b; } };

template <typename H>
GANTRY_INLINE H saturated(H value) {
    const float v = to_float(value);
    return v > 0.0F ? (v < 1.0F ? value : narrow<H>(1.0F)) : H{0};
}

/// inst->flags: bit 0 ftz, bit 1 sat, bit 2 relu.
template <typename H>
GANTRY_INLINE H finish(H value, u32 flags) {
    value = flush(value, (flags & 1U) != 0);
    if ((flags & 2U) != 0) {
        value = saturated(value);
    }
    if ((flags & 4U) != 0) {
        value = is_nan(value) ? H{0x7fff} : (value.bits & 0x8000U) != 0 ? H{0} : value;
    }
    return value;
}

template <typename Op, typename H>
struct Arith {
    GANTRY_INLINE static H apply(H a, H b, u32 flags) {
        const bool ftz = (flags & 1U) != 0;
        return finish(narrow<H>(Op::apply(to_float(flush(a, ftz)), to_float(flush(b, ftz)))),
                      flags);
    }
};

template <bool Larger, bool KeepNan, bool XorSign, typename H>
struct Extreme {
    GANTRY_INLINE static H apply(H a0, H b0, u32 flags) {
        H a = flush(a0, (flags & 1U) != 0);
        H b = flush(b0, (flags & 1U) != 0);
        const u16 sign = static_cast<u16>((a.bits ^ b.bits) & 0x8000U);
        if constexpr (XorSign) {
            a.bits &= 0x7fffU;
            b.bits &= 0x7fffU;
        }
        // As sign-magnitude integers, so that -0 < +0.
        const s32 x = (a.bits & 0x8000U) != 0 ? -1 - (a.bits & 0x7fff) : a.bits;
        const s32 y = (b.bits & 0x8000U) != 0 ? -1 - (b.bits & 0x7fff) : b.bits;
        H result = (Larger ? x > y : x < y) ? a : b;
        const bool a_nan = is_nan(a0), b_nan = is_nan(b0);
        if constexpr (!KeepNan) {
            result = a_nan ? b : b_nan ? a : result;
        }
        if constexpr (XorSign) {
            result.bits = static_cast<u16>(result.bits | sign);
        }
        return (KeepNan ? a_nan || b_nan : a_nan && b_nan) ? H{0x7fff} : result;
    }
};

template <typename H>
struct Fma {
    GANTRY_INLINE static H apply(H a, H b, H c, u32 flags) {
        const bool ftz = (flags & 1U) != 0;
        const double product = static_cast<double>(to_float(flush(a, ftz))) *
                               static_cast<double>(to_float(flush(b, ftz)));
        const double sum = product + static_cast<double>(to_float(flush(c, ftz)));
        return finish(narrow<H>(to_float_odd(sum)), flags);
    }
};

template <typename H> struct PairOf;
template <> struct PairOf<half2_t> { using type = half_t; };
template <> struct PairOf<bf162_t> { using type = bf16_t; };

template <typename Op, typename H>
const Inst* binary_half(Warp& warp, const Inst* inst) {
    warp.thread->set_fp_mode(kFpNearest);
    const u32* a = warp.slot<u32>(inst->a);
    const u32* b = warp.slot<u32>(inst->b);
    const u32 flags = inst->flags;
    for_lanes(warp, warp.slot<u32>(inst->dst), [=](int lane) {
        return to_slot<H>(Op::apply(from_slot<H>(a[lane]), from_slot<H>(b[lane]), flags));
    });
    return inst + 1;
}

template <typename Op, typename H>
const Inst* binary_pair(Warp& warp, const Inst* inst) {
    warp.thread->set_fp_mode(kFpNearest);
    const u32* a = warp.slot<u32>(inst->a);
    const u32* b = warp.slot<u32>(inst->b);
    const u32 flags = inst->flags;
    for_lanes(warp, warp.slot<u32>(inst->dst), [=](int lane) {
        const u32 low = to_slot<H>(Op::apply(from_slot<H>(a[lane]), from_slot<H>(b[lane]), flags));
        const u32 high = to_slot<H>(
            Op::apply(from_slot<H>(a[lane] >> 16), from_slot<H>(b[lane] >> 16), flags));
        return low | (high << 16);
    });
    return inst + 1;
}

template <typename Op, typename H, bool Pair>
const Inst* ternary_half(Warp& warp, const Inst* inst) {
    warp.thread->set_fp_mode(kFpNearest);
    const u32* a = warp.slot<u32>(inst->a);
    const u32* b = warp.slot<u32>(inst->b);
    const u32* c = warp.slot<u32>(inst->c);
    const u32 flags = inst->flags;
    for_lanes(warp, warp.slot<u32>(inst->dst), [=](int lane) {
        const u32 low = to_slot<H>(Op::apply(from_slot<H>(a[lane]), from_slot<H>(b[lane]),
                                             from_slot<H>(c[lane]), flags));
        if constexpr (!Pair) {
            return low;
        } else {
            const u32 high =
                to_slot<H>(Op::apply(from_slot<H>(a[lane] >> 16), from_slot<H>(b[lane] >> 16),
                                     from_slot<H>(c[lane] >> 16), flags));
            return low | (high << 16);
        }
    });
    return inst + 1;
}

template <bool Negate, typename H, bool Pair>
const Inst* sign_half(Warp& warp, const Inst* inst) {
    const u32* a = warp.slot<u32>(inst->a);
    const bool ftz = (inst->flags & 1U) != 0;
    for_lanes(warp, warp.slot<u32>(inst->dst), [=](int lane) {
        const auto one = [=](u32 bits) {
            const H value = flush(H{static_cast<u16>(bits)}, ftz);
            return static_cast<u32>(Negate ? value.bits ^ 0x8000U : value.bits & 0x7fffU);
        };
        return Pair ? one(a[lane]) | (one(a[lane] >> 16) << 16) : one(a[lane]);
    });
    return inst + 1;
}

template <template <typename> class Op>
void put(HandlerTable& table, Binary op) {
    Handler* row = table.binary[index_of(op)];
    row[index_of(Elem::kF16)] = &binary_half<Op<half_t>, half_t>;
    row[index_of(Elem::kBf16)] = &binary_half<Op<bf16_t>, bf16_t>;
    row[index_of(Elem::kF16x2)] = &binary_pair<Op<half_t>, half_t>;
    row[index_of(Elem::kBf16x2)] = &binary_pair<Op<bf16_t>, bf16_t>;
}

template <typename H> using AddOf = Arith<Add, H>;
template <typename H> using SubOf = Arith<Sub, H>;
template <typename H> using MulOf = Arith<Mul, H>;
template <typename H> using MinOf = Extreme<false, false, false, H>;
template <typename H> using MaxOf = Extreme<true, false, false, H>;
template <typename H> using MinNanOf = Extreme<false, true, false, H>;
template <typename H> using MaxNanOf = Extreme<true, true, false, H>;
template <typename H> using MinXorOf = Extreme<false, false, true, H>;
template <typename H> using MaxXorOf = Extreme<true, false, true, H>;
template <typename H> using MinNanXorOf = Extreme<false, true, true, H>;
template <typename H> using MaxNanXorOf = Extreme<true, true, true, H>;

template <bool Negate>
void put_sign(HandlerTable& table, Unary op) {
    Handler* row = table.unary[index_of(op)];
    row[index_of(Elem::kF16)] = &sign_half<Negate, half_t, false>;
    row[index_of(Elem::kBf16)] = &sign_half<Negate, bf16_t, false>;
    row[index_of(Elem::kF16x2)] = &sign_half<Negate, half_t, true>;
    row[index_of(Elem::kBf16x2)] = &sign_half<Negate, bf16_t, true>;
}

}  // namespace

void fill_half(HandlerTable& table) {
    put<AddOf>(table, Binary::kAdd);
    put<SubOf>(table, Binary::kSub);
    put<MulOf>(table, Binary::kMulLo);
    put<MinOf>(table, Binary::kMin);
    put<MaxOf>(table, Binary::kMax);
    put<MinNanOf>(table, Binary::kMinNan);
    put<MaxNanOf>(table, Binary::kMaxNan);
    put<MinXorOf>(table, Binary::kMinXorsignAbs);
    put<MaxXorOf>(table, Binary::kMaxXorsignAbs);
    put<MinNanXorOf>(table, Binary::kMinNanXorsignAbs);
    put<MaxNanXorOf>(table, Binary::kMaxNanXorsignAbs);
    put_sign<false>(table, Unary::kAbs);
    put_sign<true>(table, Unary::kNeg);
    Handler* fma = table.ternary[index_of(Ternary::kFma)];
    fma[index_of(Elem::kF16)] = &ternary_half<Fma<half_t>, half_t, false>;
    fma[index_of(Elem::kBf16)] = &ternary_half<Fma<bf16_t>, bf16_t, false>;
    fma[index_of(Elem::kF16x2)] = &ternary_half<Fma<half_t>, half_t, true>;
    fma[index_of(Elem::kBf16x2)] = &ternary_half<Fma<bf16_t>, bf16_t, true>;
}

}  // namespace gantry::softgpu::GANTRY_ISA_NAMESPACE
