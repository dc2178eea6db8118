// Exact f32 and f64 arithmetic. Rounding and flushing are the FP unit's (MXCSR, set by the
// handler's mode); NaN results of f32 become the canonical one, as on hardware; f64 keeps what
// x86 gives (payload of the first NaN, quieted), which is what hardware was seen to do.
#include "host-daemon/softgpu/engine/isa/fill.h"
#include "host-daemon/softgpu/engine/isa/forms.h"

namespace gantry::softgpu::GANTRY_ISA_NAMESPACE {
namespace {

GANTRY_INLINE float canonical(float value) {
    return value != value ? bits_as<float>(u32{0x7fffffff}) : value;
}
GANTRY_INLINE double canonical(double value) { return value; }

/// The result of a commutative operation, whose operands the compiler may change over: of two NaNs
/// the first one's payload is kept.
GANTRY_INLINE float first_nan(float, float result) { return canonical(result); }
GANTRY_INLINE double first_nan(double a, double result) {
    return a != a ? bits_as<double>(bits_as<u64>(a) | (u64{1} << 51)) : result;
}

GANTRY_INLINE float saturate(float value) {
    // NaN becomes +0, as PTX says.
    value = value > 0.0F ? value : 0.0F;
    return value < 1.0F ? value : 1.0F;
}
GANTRY_INLINE double saturate(double value) {
    value = value > 0.0 ? value : 0.0;
    return value < 1.0 ? value : 1.0;
}

template <typename T>
struct BitsOf;
template <>
struct BitsOf<float> {
    using type = u32;
    static constexpr u32 kSign = 0x80000000U;
};
template <>
struct BitsOf<double> {
    using type = u64;
    static constexpr u64 kSign = u64{1} << 63;
};

template <typename T>
GANTRY_INLINE typename BitsOf<T>::type raw(T value) {
    return bits_as<typename BitsOf<T>::type>(value);
}

GANTRY_INLINE float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
GANTRY_INLINE double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }

struct Add {
    template <typename T>
    GANTRY_INLINE static T apply(T a, T b) {
        return first_nan(a, a + b);
    }
};
struct Sub {
    template <typename T>
    GANTRY_INLINE static T apply(T a, T b) {
        return canonical(a - b);
    }
};
struct Mul {
    template <typename T>
    GANTRY_INLINE static T apply(T a, T b) {
        return first_nan(a, a * b);
    }
};
struct Div {
    template <typename T>
    GANTRY_INLINE static T apply(T a, T b) {
        return canonical(a / b);
    }
};
struct AddSat {
    GANTRY_INLINE static float apply(float a, float b) { return saturate(a + b); }
};
struct SubSat {
    GANTRY_INLINE static float apply(float a, float b) { return saturate(a - b); }
};
struct MulSat {
    GANTRY_INLINE static float apply(float a, float b) { return saturate(a * b); }
};
struct Fma {
    template <typename T>
    GANTRY_INLINE static T apply(T a, T b, T c) {
        return canonical(fused(a, b, c));
    }
};
struct FmaSat {
    GANTRY_INLINE static float apply(float a, float b, float c) { return saturate(fused(a, b, c)); }
};

/// Operations that move bits are not flushed by the FP unit: their .ftz forms do it themselves.
template <typename Op>
struct Flushed {
    GANTRY_INLINE static float flushed(float a) {
        const u32 bits = raw(a);
        return bits_as<float>((bits & 0x7f800000U) == 0 ? bits & 0x80000000U : bits);
    }
    template <typename... T>
    GANTRY_INLINE static float apply(T... operands) {
        return Op::apply(flushed(operands)...);
    }
};

template <typename T>
GANTRY_INLINE T smaller(T a, T b) {
    // -0 < +0: on equal values the one with more sign bits wins.
    const T both = bits_as<T>(static_cast<typename BitsOf<T>::type>(raw(a) | raw(b)));
    return a < b ? a : b < a ? b : both;
}
template <typename T>
GANTRY_INLINE T larger(T a, T b) {
    const T both = bits_as<T>(static_cast<typename BitsOf<T>::type>(raw(a) & raw(b)));
    return a > b ? a : b > a ? b : both;
}
template <typename T>
GANTRY_INLINE T quiet_nan(T first) {
    if constexpr (sizeof(T) == 4) {
        return bits_as<float>(u32{0x7fffffff});
    } else {
        return bits_as<double>(raw(first) | (u64{1} << 51));
    }
}

template <bool Larger, bool KeepNan, bool XorSign>
struct Extreme {
    template <typename T>
    GANTRY_INLINE static T apply(T a0, T b0) {
        const auto sign = (raw(a0) ^ raw(b0)) & BitsOf<T>::kSign;
        T a = a0;
        T b = b0;
        if constexpr (XorSign) {
            a = bits_as<T>(raw(a) & ~BitsOf<T>::kSign);
            b = bits_as<T>(raw(b) & ~BitsOf<T>::kSign);
        }
        T result = Larger ? larger(a, b) : smaller(a, b);
        const bool a_nan = a0 != a0;
        const bool b_nan = b0 != b0;
        if constexpr (!KeepNan) {
            result = a_nan ? b : b_nan ? a : result;
        }
        if constexpr (XorSign) {
            result = bits_as<T>(raw(result) | sign);  // A NaN's sign counts, too.
        }
        if constexpr (KeepNan) {
            return a_nan || b_nan ? quiet_nan(a_nan ? a0 : b0) : result;
        } else {
            return a_nan && b_nan ? quiet_nan(a0) : result;
        }
    }
};

/// Only the sign changes, but a NaN of f32 becomes the canonical one, as on NVIDIA's GPUs.
template <typename T>
GANTRY_INLINE T with_sign(T a, typename BitsOf<T>::type result) {
    return sizeof(T) == 4 && a != a ? quiet_nan(a) : bits_as<T>(result);
}
struct Abs {
    template <typename T>
    GANTRY_INLINE static T apply(T a) {
        return with_sign(a, raw(a) & ~BitsOf<T>::kSign);
    }
};
struct Neg {
    template <typename T>
    GANTRY_INLINE static T apply(T a) {
        return with_sign(a, raw(a) ^ BitsOf<T>::kSign);
    }
};
struct Sqrt {
    template <typename T>
    GANTRY_INLINE static T apply(T a) {
        if constexpr (sizeof(T) == 4) {
            return canonical(__builtin_sqrtf(a));
        } else {
            return __builtin_sqrt(a);
        }
    }
};
struct Rcp {
    template <typename T>
    GANTRY_INLINE static T apply(T a) {
        return canonical(T(1) / a);
    }
};
/// PTX: the sign comes from the first operand, the value from the second.
struct Copysign {
    template <typename T>
    GANTRY_INLINE static T apply(T a, T b) {
        return bits_as<T>((raw(a) & BitsOf<T>::kSign) | (raw(b) & ~BitsOf<T>::kSign));
    }
};
struct SatF {
    template <typename T>
    GANTRY_INLINE static T apply(T a) {
        return saturate(a);
    }
};

template <bool Larger, bool KeepNan>
struct Extreme3 {
    GANTRY_INLINE static float apply(float a, float b, float c) {
        using Two = Extreme<Larger, KeepNan, false>;
        return Two::apply(Two::apply(a, b), c);
    }
};

template <typename Op>
void both(HandlerTable& table, Binary op) {
    table.binary[index_of(op)][index_of(Elem::kF32)] = &binary<Op, float>;
    table.binary[index_of(op)][index_of(Elem::kF64)] = &binary<Op, double>;
}
template <typename Op>
void single(HandlerTable& table, Binary op) {
    table.binary[index_of(op)][index_of(Elem::kF32)] = &binary<Op, float>;
}
template <bool Larger, bool KeepNan, bool XorSign>
void extreme(HandlerTable& table, Binary op) {
    using Op = Extreme<Larger, KeepNan, XorSign>;
    single<Op>(table, op);
    table.binary_flush[index_of(op)] = &binary<Flushed<Op>, float>;
}
template <bool Larger, bool KeepNan>
void extreme3(HandlerTable& table, Ternary op) {
    using Op = Extreme3<Larger, KeepNan>;
    table.ternary[index_of(op)][index_of(Elem::kF32)] = &ternary<Op, float>;
    table.ternary_flush[index_of(op)] = &ternary<Flushed<Op>, float>;
}
template <typename Op>
void both(HandlerTable& table, Unary op) {
    table.unary[index_of(op)][index_of(Elem::kF32)] = &unary<Op, float>;
    table.unary[index_of(op)][index_of(Elem::kF64)] = &unary<Op, double>;
}

}  // namespace

void fill_float(HandlerTable& table) {
    both<Add>(table, Binary::kAdd);
    both<Sub>(table, Binary::kSub);
    both<Mul>(table, Binary::kMulLo);
    both<Div>(table, Binary::kDiv);
    both<Copysign>(table, Binary::kCopysign);
    extreme<false, false, false>(table, Binary::kMin);
    extreme<true, false, false>(table, Binary::kMax);
    extreme<false, true, false>(table, Binary::kMinNan);
    extreme<true, true, false>(table, Binary::kMaxNan);
    extreme<false, false, true>(table, Binary::kMinXorsignAbs);
    extreme<true, false, true>(table, Binary::kMaxXorsignAbs);
    extreme<false, true, true>(table, Binary::kMinNanXorsignAbs);
    extreme<true, true, true>(table, Binary::kMaxNanXorsignAbs);
    table.binary[index_of(Binary::kMin)][index_of(Elem::kF64)] =
        &binary<Extreme<false, false, false>, double>;
    table.binary[index_of(Binary::kMax)][index_of(Elem::kF64)] =
        &binary<Extreme<true, false, false>, double>;
    single<AddSat>(table, Binary::kAddSat);
    single<SubSat>(table, Binary::kSubSat);
    single<MulSat>(table, Binary::kMulSat);
    both<Abs>(table, Unary::kAbs);
    both<Neg>(table, Unary::kNeg);
    table.unary_flush[index_of(Unary::kAbs)] = &unary<Flushed<Abs>, float>;
    table.unary_flush[index_of(Unary::kNeg)] = &unary<Flushed<Neg>, float>;
    both<Sqrt>(table, Unary::kSqrt);
    both<Rcp>(table, Unary::kRcp);
    both<SatF>(table, Unary::kSatF);
    table.ternary[index_of(Ternary::kFma)][index_of(Elem::kF32)] = &ternary<Fma, float>;
    table.ternary[index_of(Ternary::kFma)][index_of(Elem::kF64)] = &ternary<Fma, double>;
    table.ternary[index_of(Ternary::kFmaSat)][index_of(Elem::kF32)] = &ternary<FmaSat, float>;
    extreme3<false, false>(table, Ternary::kMin3);
    extreme3<true, false>(table, Ternary::kMax3);
    extreme3<false, true>(table, Ternary::kMin3Nan);
    extreme3<true, true>(table, Ternary::kMax3Nan);
}

}  // namespace gantry::softgpu::GANTRY_ISA_NAMESPACE
