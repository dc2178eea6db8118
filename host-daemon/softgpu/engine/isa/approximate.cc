// The approximate functions (.approx): computed in double by short polynomials and rounded once,
// which is inside every bound that PTX states; loops over lanes vectorise.
#include "host-daemon/softgpu/engine/isa/fill.h"
#include "host-daemon/softgpu/engine/isa/forms.h"
#include "host-daemon/softgpu/engine/isa/half.h"

namespace gantry::softgpu::GANTRY_ISA_NAMESPACE {
namespace {

GANTRY_INLINE float nan_float() { return bits_as<float>(u32{0x7fffffff}); }
GANTRY_INLINE float flush(float value, bool ftz) {
    const u32 bits = bits_as<u32>(value);
    return bits_as<float>(ftz && (bits & 0x7f800000U) == 0 ? bits & 0x80000000U : bits);
}

/// 2^x for |x| <= 2000, relative error below 1e-10.
GANTRY_INLINE double exp2_core(double x) {
    const double shifted = x + 0x1.8p52;
    const double whole = shifted - 0x1.8p52;
    const double f = x - whole;
    double p = 1.525273380405984e-05;  // ln(2)^k / k!
    p = p * f + 1.5403530393381609e-04;
    p = p * f + 1.3333558146428443e-03;
    p = p * f + 9.6181291076284772e-03;
    p = p * f + 5.5504108664821580e-02;
    p = p * f + 2.4022650695910072e-01;
    p = p * f + 6.9314718055994531e-01;
    p = p * f + 1.0;
    const u64 exponent = (bits_as<u64>(shifted) + 1023U) << 52;
    return p * bits_as<double>(exponent);
}

struct Ex2 {
    GANTRY_INLINE static float apply(float a, bool) {
        const double x = static_cast<double>(a);
        const double clamped = x > 200.0 ? 200.0 : x < -200.0 ? -200.0 : x;
        const float result = static_cast<float>(exp2_core(a == a ? clamped : 0.0));
        return a == a ? result : nan_float();
    }
};

struct Lg2 {
    GANTRY_INLINE static float apply(float a, bool) {
        const u64 bits = bits_as<u64>(static_cast<double>(a));
        // Mantissa in [sqrt(1/2), sqrt(2)).
        const u64 shifted = bits - 0x3fe6a09e667f3bcdULL;
        const s32 exponent = static_cast<s32>(static_cast<s64>(shifted) >> 52);
        const double m =
            bits_as<double>(bits - (static_cast<u64>(static_cast<s64>(exponent)) << 52));
        const double s = (m - 1.0) / (m + 1.0);
        const double q = s * s;
        double p = 1.0 / 13.0;
        p = p * q + 1.0 / 11.0;
        p = p * q + 1.0 / 9.0;
        p = p * q + 1.0 / 7.0;
        p = p * q + 1.0 / 5.0;
        p = p * q + 1.0 / 3.0;
        p = p * q + 1.0;
        const double value = p * s * 2.8853900817779268 + static_cast<double>(exponent);
        float result = static_cast<float>(value);
        result = a == 0.0F ? -__builtin_inff() : result;
        result = a == __builtin_inff() ? a : result;
        return a >= 0.0F ? result : nan_float();
    }
};

/// sin (quarter 0) or cos (quarter 1).
template <int Quarter>
struct SinCos {
    GANTRY_INLINE static float apply(float a, bool) {
        const double x = static_cast<double>(a);
        const double shifted = x * 0.63661977236758134 + 0x1.8p52;
        const double k = shifted - 0x1.8p52;
        const double r = (x - k * 1.5707963267948966) - k * 6.123233995736766e-17;
        const u64 quadrant = bits_as<u64>(shifted) + Quarter;
        const double q = r * r;
        double s = 2.7557313707070068e-06;
        s = s * q - 1.9841269841201840e-04;
        s = s * q + 8.3333333333331650e-03;
        s = s * q - 1.6666666666666666e-01;
        s = s * q * r + r;
        double c = -2.7557314297e-07;
        c = c * q + 2.4801587289476729e-05;
        c = c * q - 1.3888888888874110e-03;
        c = c * q + 4.1666666666666602e-02;
        c = c * q - 0.5;
        c = c * q + 1.0;
        const double value = (quadrant & 1U) != 0 ? c : s;
        float result = static_cast<float>((quadrant & 2U) != 0 ? -value : value);
        // Of huge arguments r is no remainder.
        result = result > 1.0F ? 1.0F : result;
        result = result < -1.0F ? -1.0F : result;
        if constexpr (Quarter == 0) {
            result = a == 0.0F ? a : result;
        }
        return __builtin_fabsf(a) < __builtin_inff() ? result : nan_float();
    }
};

struct Tanh {
    GANTRY_INLINE static float apply(float a, bool) {
        const double x = static_cast<double>(a);
        const double clamped = x > 20.0 ? 20.0 : x < -20.0 ? -20.0 : x;
        const double e = exp2_core((a == a ? clamped : 0.0) * 2.8853900817779268);
        const float result = static_cast<float>((e - 1.0) / (e + 1.0));
        const float tiny = __builtin_fabsf(a) < 0x1p-12F ? a : result;
        return a == a ? tiny : nan_float();
    }
};

struct Rsqrt {
    GANTRY_INLINE static float apply(float a, bool) {
        const float result = 1.0F / __builtin_sqrtf(a);
        return a >= 0.0F ? result : nan_float();
    }
};
struct Sqrt {
    GANTRY_INLINE static float apply(float a, bool) {
        const float result = __builtin_sqrtf(a);
        return result == result ? result : nan_float();
    }
};
struct Rcp {
    GANTRY_INLINE static float apply(float a, bool) {
        const float result = 1.0F / a;
        return result == result ? result : nan_float();
    }
};

/// inst->flags bit 0: ftz.
template <typename Op>
const Inst* approximate(Warp& warp, const Inst* inst) {
    warp.thread->set_fp_mode(kFpNearest);
    const u32* a = warp.slot<u32>(inst->a);
    const bool ftz = (inst->flags & 1U) != 0;
    for_lanes(warp, warp.slot<u32>(inst->dst), [=](int lane) {
        const float value = flush(bits_as<float>(a[lane]), ftz);
        return bits_as<u32>(flush(Op::apply(value, ftz), ftz));
    });
    return inst + 1;
}

/// .approx multiplies by a reciprocal: of the largest divisors that is zero.
template <bool Approximate>
const Inst* divide(Warp& warp, const Inst* inst) {
    warp.thread->set_fp_mode(kFpNearest);
    const u32* a = warp.slot<u32>(inst->a);
    const u32* b = warp.slot<u32>(inst->b);
    const bool ftz = (inst->flags & 1U) != 0;
    for_lanes(warp, warp.slot<u32>(inst->dst), [=](int lane) {
        const float x = flush(bits_as<float>(a[lane]), ftz);
        const float y = flush(bits_as<float>(b[lane]), ftz);
        float value = x / y;
        if constexpr (Approximate) {
            const float size = __builtin_fabsf(y);
            const bool large = size > 0x1p126F && size < __builtin_inff();
            value = large ? x * __builtin_copysignf(0.0F, y) : value;
        }
        return bits_as<u32>(flush(value == value ? value : nan_float(), ftz));
    });
    return inst + 1;
}

/// The .ftz.f64 forms give the upper half of a double; the lower is zero.
template <bool Root, bool Truncate>
const Inst* reciprocal64(Warp& warp, const Inst* inst) {
    warp.thread->set_fp_mode(kFpNearest);
    const u64* a = warp.slot<u64>(inst->a);
    for_lanes(warp, warp.slot<u64>(inst->dst), [=](int lane) {
        // Only the upper half of the operand is looked at: a NaN of lower bits is an infinity.
        u64 bits = Truncate ? a[lane] & 0xffffffff00000000ULL : a[lane];
        bits = Truncate && (bits & 0x7ff0000000000000ULL) == 0 ? bits & (u64{1} << 63) : bits;
        const double value = bits_as<double>(bits);
        u64 result = bits_as<u64>(1.0 / (Root ? __builtin_sqrt(value) : value));
        if (Truncate) {
            result &= 0xffffffff00000000ULL;
            result = (result & 0x7ff0000000000000ULL) == 0 ? result & (u64{1} << 63) : result;
        }
        return result;
    });
    return inst + 1;
}

template <typename Op, typename H, bool Pair>
const Inst* approximate_half(Warp& warp, const Inst* inst) {
    warp.thread->set_fp_mode(kFpNearest);
    const u32* a = warp.slot<u32>(inst->a);
    const bool ftz = std::is_same_v<H, bf16_t> && (inst->flags & 1U) != 0;
    for_lanes(warp, warp.slot<u32>(inst->dst), [=](int lane) {
        const auto one = [=](u32 bits) {
            const u32 result =
                to_slot<H>(narrow<H>(Op::apply(to_float(from_slot<H>(bits)), false)));
            return ftz && (result & 0x7f80U) == 0 ? result & 0x8000U : result;
        };
        return Pair ? one(a[lane]) | (one(a[lane] >> 16) << 16) : one(a[lane]);
    });
    return inst + 1;
}

template <typename Op>
void put_half(HandlerTable& table, Unary op) {
    Handler* row = table.unary[index_of(op)];
    row[index_of(Elem::kF16)] = &approximate_half<Op, half_t, false>;
    row[index_of(Elem::kBf16)] = &approximate_half<Op, bf16_t, false>;
    row[index_of(Elem::kF16x2)] = &approximate_half<Op, half_t, true>;
    row[index_of(Elem::kBf16x2)] = &approximate_half<Op, bf16_t, true>;
}

}  // namespace

void fill_approximate(HandlerTable& table) {
    const int f32 = index_of(Elem::kF32), f64 = index_of(Elem::kF64);
    Handler(*one)[kElemCount] = table.unary;
    one[index_of(Unary::kEx2)][f32] = &approximate<Ex2>;
    one[index_of(Unary::kLg2)][f32] = &approximate<Lg2>;
    one[index_of(Unary::kSin)][f32] = &approximate<SinCos<0>>;
    one[index_of(Unary::kCos)][f32] = &approximate<SinCos<1>>;
    one[index_of(Unary::kTanh)][f32] = &approximate<Tanh>;
    one[index_of(Unary::kRsqrt)][f32] = &approximate<Rsqrt>;
    one[index_of(Unary::kSqrtApprox)][f32] = &approximate<Sqrt>;
    one[index_of(Unary::kRcpApprox)][f32] = &approximate<Rcp>;
    one[index_of(Unary::kRcpApproxFtz64)][f64] = &reciprocal64<false, true>;
    one[index_of(Unary::kRsqrtApproxFtz64)][f64] = &reciprocal64<true, true>;
    one[index_of(Unary::kRsqrt)][f64] = &reciprocal64<true, false>;
    put_half<Ex2>(table, Unary::kEx2);
    put_half<Tanh>(table, Unary::kTanh);
    table.binary[index_of(Binary::kDivApprox)][f32] = &divide<true>;
    table.binary[index_of(Binary::kDivFull)][f32] = &divide<false>;
}

}  // namespace gantry::softgpu::GANTRY_ISA_NAMESPACE
