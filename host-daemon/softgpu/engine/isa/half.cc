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

/// .ftz of f16 flushes what is too small when rounded to 11 bits, however small they are.
template <typename F>
GANTRY_INLINE F without_tiny(F exact, bool ftz) {
    return ftz && exact > F(-0x1.ffep-15) && exact < F(0x1.ffep-15) ? exact * F(0) : exact;
}

struct Add {
    GANTRY_INLINE static float apply(float a, float b) { return a + b; }
};
struct Sub {
    GANTRY_INLINE static float apply(float a, float b) { return a - b; }
};
struct Mul {
    GANTRY_INLINE static float apply(float a, float b) { return a * b; }
};

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
        const float exact = Op::apply(to_float(flush(a, ftz)), to_float(flush(b, ftz)));
        return finish(narrow<H>(without_tiny(exact, ftz)), flags);
    }
};

/// min and max in all their forms. The form is uniform, so it costs a few selects and saves a loop
/// for each.
struct ExtremeForm {
    bool larger, keep_nan, xor_sign;
};

template <typename H>
GANTRY_INLINE H extreme(H a0, H b0, ExtremeForm form, bool ftz) {
    H a = flush(a0, ftz);
    H b = flush(b0, ftz);
    const u16 sign = static_cast<u16>(form.xor_sign ? (a.bits ^ b.bits) & 0x8000U : 0U);
    const u16 kept = form.xor_sign ? u16{0x7fff} : u16{0xffff};
    a.bits &= kept;
    b.bits &= kept;
    // As sign-magnitude integers, so that -0 < +0.
    const s32 x = (a.bits & 0x8000U) != 0 ? -1 - (a.bits & 0x7fff) : a.bits;
    const s32 y = (b.bits & 0x8000U) != 0 ? -1 - (b.bits & 0x7fff) : b.bits;
    const bool a_nan = is_nan(a0), b_nan = is_nan(b0);
    bool first = form.larger ? x > y : x < y;
    first = form.keep_nan ? first : !a_nan && (b_nan || first);
    const u16 result = static_cast<u16>((first ? a.bits : b.bits) | sign);
    return {(form.keep_nan ? a_nan || b_nan : a_nan && b_nan) ? u16{0x7fff} : result};
}

template <typename H, bool Pair>
[[gnu::noinline]] void extreme_lanes(Warp& warp, const Inst* inst, ExtremeForm form) {
    const u32* a = warp.slot<u32>(inst->a);
    const u32* b = warp.slot<u32>(inst->b);
    const bool ftz = (inst->flags & 1U) != 0;
    for_lanes(warp, warp.slot<u32>(inst->dst), [=](int lane) {
        const u32 low =
            to_slot<H>(extreme(from_slot<H>(a[lane]), from_slot<H>(b[lane]), form, ftz));
        if constexpr (!Pair) {
            return low;
        } else {
            return low | (to_slot<H>(extreme(from_slot<H>(a[lane] >> 16),
                                             from_slot<H>(b[lane] >> 16), form, ftz))
                          << 16);
        }
    });
}

template <bool Larger, bool KeepNan, bool XorSign, typename H, bool Pair>
const Inst* extreme_half(Warp& warp, const Inst* inst) {
    extreme_lanes<H, Pair>(warp, inst, {Larger, KeepNan, XorSign});
    return inst + 1;
}

/// a + b rounded to odd. What the nearest sum is off by is exact (Knuth's TwoSum).
GANTRY_INLINE double sum_odd(double a, double b) {
    const double sum = a + b;
    const double rest = sum - a;
    const double off = (a - (sum - rest)) + (b - rest);
    const u64 bits = bits_as<u64>(sum);
    const u64 odd = (off > 0.0) == (sum > 0.0) ? bits + 1 : bits - 1;
    const bool inexact = off > 0.0 || off < 0.0;  // of infinities it is NaN
    return bits_as<double>(inexact && (bits & 1U) == 0 ? odd : bits);
}

/// The exponents of bf16 reach so far that the double may lose bits of the sum too.
template <typename H>
struct Fma {
    GANTRY_INLINE static H apply(H a, H b, H c, u32 flags) {
        const bool ftz = (flags & 1U) != 0;
        const double product = static_cast<double>(to_float(flush(a, ftz))) *
                               static_cast<double>(to_float(flush(b, ftz)));
        const double addend = static_cast<double>(to_float(flush(c, ftz)));
        const double sum = std::is_same_v<H, bf16_t> ? sum_odd(product, addend) : product + addend;
        return finish(narrow<H>(to_float_odd(without_tiny(sum, ftz))), flags);
    }
};

/// Runs `one(shift, flags)` on each half of a lane's operands. The usual case, no flags, has its
/// own loop.
template <typename H, bool Pair, typename One>
GANTRY_INLINE void half_lanes(Warp& warp, const Inst* inst, One one) {
    warp.thread->set_fp_mode(kFpNearest);
    const auto run = [&](u32 flags) __attribute__((always_inline)) {
        for_lanes(warp, warp.slot<u32>(inst->dst), [=](int lane) {
            const u32 low = to_slot<H>(one(lane, 0, flags));
            return Pair ? low | (to_slot<H>(one(lane, 16, flags)) << 16) : low;
        });
    };
    if (inst->flags == 0) [[likely]] {
        run(0);
    } else {
        run(inst->flags);
    }
}

template <typename Op, typename H, bool Pair>
const Inst* binary_half(Warp& warp, const Inst* inst) {
    const u32* a = warp.slot<u32>(inst->a);
    const u32* b = warp.slot<u32>(inst->b);
    half_lanes<H, Pair>(warp, inst, [=](int lane, int shift, u32 flags) {
        return Op::apply(from_slot<H>(a[lane] >> shift), from_slot<H>(b[lane] >> shift), flags);
    });
    return inst + 1;
}

template <typename Op, typename H, bool Pair>
const Inst* ternary_half(Warp& warp, const Inst* inst) {
    const u32* a = warp.slot<u32>(inst->a);
    const u32* b = warp.slot<u32>(inst->b);
    const u32* c = warp.slot<u32>(inst->c);
    half_lanes<H, Pair>(warp, inst, [=](int lane, int shift, u32 flags) {
        return Op::apply(from_slot<H>(a[lane] >> shift), from_slot<H>(b[lane] >> shift),
                         from_slot<H>(c[lane] >> shift), flags);
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
            return is_nan(value)
                       ? 0x7fffU
                       : static_cast<u32>(Negate ? value.bits ^ 0x8000U : value.bits & 0x7fffU);
        };
        return Pair ? one(a[lane]) | (one(a[lane] >> 16) << 16) : one(a[lane]);
    });
    return inst + 1;
}

template <typename H, bool Pair>
const Inst* saturate_half(Warp& warp, const Inst* inst) {
    const u32* a = warp.slot<u32>(inst->a);
    for_lanes(warp, warp.slot<u32>(inst->dst), [=](int lane) {
        const u32 low = to_slot<H>(saturated(from_slot<H>(a[lane])));
        return Pair ? low | (to_slot<H>(saturated(from_slot<H>(a[lane] >> 16))) << 16) : low;
    });
    return inst + 1;
}

template <template <typename> class Op>
void put(HandlerTable& table, Binary op) {
    Handler* row = table.binary[index_of(op)];
    row[index_of(Elem::kF16)] = &binary_half<Op<half_t>, half_t, false>;
    row[index_of(Elem::kBf16)] = &binary_half<Op<bf16_t>, bf16_t, false>;
    row[index_of(Elem::kF16x2)] = &binary_half<Op<half_t>, half_t, true>;
    row[index_of(Elem::kBf16x2)] = &binary_half<Op<bf16_t>, bf16_t, true>;
}

template <typename H>
using AddOf = Arith<Add, H>;
template <typename H>
using SubOf = Arith<Sub, H>;
template <typename H>
using MulOf = Arith<Mul, H>;
template <bool Larger, bool KeepNan, bool XorSign>
void put_extreme(HandlerTable& table, Binary op) {
    Handler* row = table.binary[index_of(op)];
    row[index_of(Elem::kF16)] = &extreme_half<Larger, KeepNan, XorSign, half_t, false>;
    row[index_of(Elem::kBf16)] = &extreme_half<Larger, KeepNan, XorSign, bf16_t, false>;
    row[index_of(Elem::kF16x2)] = &extreme_half<Larger, KeepNan, XorSign, half_t, true>;
    row[index_of(Elem::kBf16x2)] = &extreme_half<Larger, KeepNan, XorSign, bf16_t, true>;
}

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
    put_extreme<false, false, false>(table, Binary::kMin);
    put_extreme<true, false, false>(table, Binary::kMax);
    put_extreme<false, true, false>(table, Binary::kMinNan);
    put_extreme<true, true, false>(table, Binary::kMaxNan);
    put_extreme<false, false, true>(table, Binary::kMinXorsignAbs);
    put_extreme<true, false, true>(table, Binary::kMaxXorsignAbs);
    put_extreme<false, true, true>(table, Binary::kMinNanXorsignAbs);
    put_extreme<true, true, true>(table, Binary::kMaxNanXorsignAbs);
    put_sign<false>(table, Unary::kAbs);
    put_sign<true>(table, Unary::kNeg);
    table.unary[index_of(Unary::kSatF)][index_of(Elem::kF16)] = &saturate_half<half_t, false>;
    Handler* fma = table.ternary[index_of(Ternary::kFma)];
    fma[index_of(Elem::kF16)] = &ternary_half<Fma<half_t>, half_t, false>;
    fma[index_of(Elem::kBf16)] = &ternary_half<Fma<bf16_t>, bf16_t, false>;
    fma[index_of(Elem::kF16x2)] = &ternary_half<Fma<half_t>, half_t, true>;
    fma[index_of(Elem::kBf16x2)] = &ternary_half<Fma<bf16_t>, bf16_t, true>;
}

}  // namespace gantry::softgpu::GANTRY_ISA_NAMESPACE
