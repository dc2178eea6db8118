// cvt between all plain number types. inst->flags: bits 0-1 the direction of rounding to an
// integer (as FpMode: 0 nearest even, 1 down, 2 up, 3 to zero), bit 2 relu, bit 3 ftz of the
// result where the FP unit cannot do it. inst->fp_mode: the FP unit's mode.
#include <limits>

#include "host-daemon/softgpu/engine/isa/fill.h"
#include "host-daemon/softgpu/engine/isa/forms.h"
#include "host-daemon/softgpu/engine/isa/half.h"

namespace gantry::softgpu::GANTRY_ISA_NAMESPACE {
namespace {

template <typename T>
inline constexpr bool kHalf = std::is_same_v<T, half_t> || std::is_same_v<T, bf16_t>;

template <typename F>
GANTRY_INLINE F rounded(F value, u32 direction) {
    if constexpr (sizeof(F) == 4) {
        switch (direction) {
            case kFpDown: return __builtin_floorf(value);
            case kFpUp: return __builtin_ceilf(value);
            case kFpZero: return __builtin_truncf(value);
            default: return __builtin_rintf(value);
        }
    } else {
        switch (direction) {
            case kFpDown: return __builtin_floor(value);
            case kFpUp: return __builtin_ceil(value);
            case kFpZero: return __builtin_trunc(value);
            default: return __builtin_rint(value);
        }
    }
}

/// Saturating. NaN gives 0, and the highest bit alone where either side has 64 bits, as PTX says.
template <typename To, typename F>
inline constexpr To kOfNan = static_cast<To>(sizeof(To) == 8 || sizeof(F) == 8
                                                 ? u64{1} << (8 * sizeof(To) - 1)
                                                 : u64{0});

template <typename To, typename F>
GANTRY_INLINE To to_integer(F value) {
    constexpr To kLow = std::numeric_limits<To>::min();
    constexpr To kHigh = std::numeric_limits<To>::max();
    constexpr F kLimit = static_cast<F>(kHigh / 2 + 1) * F(2);
    const bool low = value < static_cast<F>(kLow);
    const bool high = value >= kLimit;
    const bool nan = value != value;
    const To plain = static_cast<To>(low || high || nan ? F(0) : value);
    return nan ? kOfNan<To, F> : low ? kLow : high ? kHigh : plain;
}

/// A double to a half type in any rounding direction: the nearest, then one step if it lies on
/// the wrong side.
template <typename H>
GANTRY_INLINE H narrow_directed(double value, u32 mode) {
    H nearest = narrow<H>(to_float_odd(value));
    const double back = static_cast<double>(to_float(nearest));
    const bool negative = (nearest.bits & 0x8000U) != 0;
    const bool above = back > value;
    const bool below = back < value;
    const bool away = negative ? below : above;  // nearest is larger in magnitude
    const bool inward = (mode == kFpZero && away) || (mode == kFpDown && above && !negative) ||
                        (mode == kFpUp && below && negative);
    const bool outward =
        (mode == kFpDown && above && negative) || (mode == kFpUp && below && !negative);
    nearest.bits = static_cast<u16>(nearest.bits + (outward ? 1 : 0) - (inward ? 1 : 0));
    return nearest;
}

/// What lies between two steps of a conversion: 32 lanes of any type.
struct Lanes {
    alignas(64) u64 raw[kLanes];
    template <typename T>
    GANTRY_INLINE T* as() {
        return reinterpret_cast<T*>(raw);
    }
};

// The steps. There are 144 pairs of types; built of steps that stand for themselves they take a
// few dozen loops instead of a thousand. Pairs that programs use most are one step.

template <typename From>
[[gnu::noinline]] void widen_integer(const Slot<From>* in, u64* out) {
    GANTRY_LANES
    for (int lane = 0; lane < kLanes; ++lane) {
        out[lane] = static_cast<u64>(static_cast<s64>(from_slot<From>(in[lane])));
    }
}

template <typename From>
[[gnu::noinline]] void widen_to_s32(const u32* in, s32* out) {
    GANTRY_LANES
    for (int lane = 0; lane < kLanes; ++lane) {
        out[lane] = from_slot<From>(in[lane]);
    }
}

template <typename T>
[[gnu::noinline]] void clamp(T* values, T low, T high) {
    GANTRY_LANES
    for (int lane = 0; lane < kLanes; ++lane) {
        const T value = values[lane];
        values[lane] = value < low ? low : value > high ? high : value;
    }
}

template <typename To>
[[gnu::noinline]] void put_integer(Warp& warp, u32 slot, const u64* in) {
    for_lanes(warp, warp.slot<Slot<To>>(slot),
              [=](int lane) { return to_slot<To>(static_cast<To>(in[lane])); });
}

[[gnu::noinline]] void put_word(Warp& warp, u32 slot, const u32* in) {
    for_lanes(warp, warp.slot<u32>(slot), [=](int lane) { return in[lane]; });
}

template <typename F, typename I>
[[gnu::noinline]] void integer_to_float(const I* in, F* out) {
    GANTRY_LANES
    for (int lane = 0; lane < kLanes; ++lane) {
        out[lane] = static_cast<F>(in[lane]);
    }
}

template <typename H>
[[gnu::noinline]] void half_to_float(const u32* in, float* out) {
    GANTRY_LANES
    for (int lane = 0; lane < kLanes; ++lane) {
        out[lane] = to_float(from_slot<H>(in[lane]));
    }
}

[[gnu::noinline]] void float_to_double(const float* in, double* out) {
    GANTRY_LANES
    for (int lane = 0; lane < kLanes; ++lane) {
        out[lane] = static_cast<double>(in[lane]);
    }
}

[[gnu::noinline]] const float* flush_denormals(const float* in, float* out) {
    GANTRY_LANES
    for (int lane = 0; lane < kLanes; ++lane) {
        const u32 bits = bits_as<u32>(in[lane]);
        out[lane] = bits_as<float>((bits & 0x7f800000U) == 0 ? bits & 0x80000000U : bits);
    }
    return out;
}

/// The bits of a bf16 are the upper ones of the same f32. With .ftz a NaN is the canonical one.
[[gnu::noinline]] void put_bf16_as_float(Warp& warp, const Inst* inst) {
    const u32* a = warp.slot<u32>(inst->a);
    const bool flush = (inst->fp_mode & kFpFlush) != 0;
    for_lanes(warp, warp.slot<u32>(inst->dst), [=](int lane) {
        const u32 bits = a[lane] << 16;
        const u32 magnitude = bits & 0x7fffffffU;
        const u32 flushed = magnitude > 0x7f800000U   ? 0x7fffffffU
                            : magnitude < 0x00800000U ? bits & 0x80000000U
                                                      : bits;
        return flush ? flushed : bits;
    });
}

template <typename F>
GANTRY_INLINE F saturated(F value) {
    return value > F(0) ? (value < F(1) ? value : F(1)) : F(0);
}

/// To f32 or f64 from either, in the FP unit's mode; a NaN result of f32 is the canonical one.
template <typename To, typename From, bool Saturate>
[[gnu::noinline]] void put_float(Warp& warp, u32 slot, const From* in) {
    for_lanes(warp, warp.slot<Slot<To>>(slot), [=](int lane) {
        To result = static_cast<To>(in[lane]);
        if constexpr (std::is_same_v<To, float>) {
            result = result != result ? bits_as<float>(u32{0x7fffffff}) : result;
        }
        return to_slot<To>(Saturate ? saturated(result) : result);
    });
}

template <typename H>
[[gnu::noinline]] void put_half_nearest(Warp& warp, u32 slot, const float* in) {
    for_lanes(warp, warp.slot<u32>(slot),
              [=](int lane) { return to_slot<H>(narrow<H>(in[lane])); });
}

template <typename H>
[[gnu::noinline]] void put_half(Warp& warp, u32 slot, const double* in, u32 mode, bool saturate) {
    Lanes wide;
    if (saturate) {
        double* clamped = wide.as<double>();
        GANTRY_LANES
        for (int lane = 0; lane < kLanes; ++lane) {
            clamped[lane] = saturated(in[lane]);
        }
        in = clamped;
    }
    if (mode == kFpNearest) {
        for_lanes(warp, warp.slot<u32>(slot),
                  [=](int lane) { return to_slot<H>(narrow<H>(to_float_odd(in[lane]))); });
        return;
    }
    for_lanes(warp, warp.slot<u32>(slot),
              [=](int lane) { return to_slot<H>(narrow_directed<H>(in[lane], mode)); });
}

template <u32 Direction, typename F>
GANTRY_INLINE void round_lanes(const F* in, F* out) {
    GANTRY_LANES
    for (int lane = 0; lane < kLanes; ++lane) {
        out[lane] = rounded(in[lane], Direction);
    }
}

/// Values as integers in the direction of rounding; to_integer() cuts off by itself.
template <typename F>
[[gnu::noinline]] const F* round_to_whole(const F* in, F* out, u32 direction) {
    switch (direction) {
        case kFpZero: return in;
        case kFpDown: round_lanes<kFpDown>(in, out); break;
        case kFpUp: round_lanes<kFpUp>(in, out); break;
        default: round_lanes<kFpNearest>(in, out); break;
    }
    return out;
}

template <typename To, typename F>
[[gnu::noinline]] void put_whole(Warp& warp, u32 slot, const F* in) {
    for_lanes(warp, warp.slot<Slot<To>>(slot),
              [=](int lane) { return to_slot<To>(to_integer<To>(in[lane])); });
}

template <typename F>
[[gnu::noinline]] void whole_to_s32(const F* in, s32* out) {
    GANTRY_LANES
    for (int lane = 0; lane < kLanes; ++lane) {
        out[lane] = to_integer<s32>(in[lane]);
    }
}

/// What a NaN gives, put in once values are clamped to a type smaller than 32 bits.
template <typename F>
[[gnu::noinline]] void put_nan(const F* in, s32* values, s32 of_nan) {
    GANTRY_LANES
    for (int lane = 0; lane < kLanes; ++lane) {
        values[lane] = in[lane] != in[lane] ? of_nan : values[lane];
    }
}

/// 64-bit integers to double by rounding to odd, so that a second rounding gives the right result.
template <typename I>
[[gnu::noinline]] void integer_to_double_odd(const I* in, double* out) {
    GANTRY_LANES
    for (int lane = 0; lane < kLanes; ++lane) {
        constexpr I kLost = 0x7ff;
        const I value = in[lane];
        const I top = value >> 53;
        const bool fits = top == 0 || top == static_cast<I>(-std::is_signed_v<I>);
        const I odd = (value & ~kLost) | ((value & kLost) != 0 ? kLost + 1 : I{0});
        out[lane] = static_cast<double>(fits ? value : odd);
    }
}

// Whole conversions, composed of the steps.

template <typename To, typename From, bool Saturate>
GANTRY_INLINE void integer_from_integer(Warp& warp, const Inst* inst) {
    const Slot<From>* a = warp.slot<Slot<From>>(inst->a);
    if constexpr (!Saturate && sizeof(To) >= 4 && sizeof(From) >= 4) {
        for_lanes(warp, warp.slot<Slot<To>>(inst->dst),
                  [=](int lane) { return to_slot<To>(static_cast<To>(from_slot<From>(a[lane]))); });
        return;
    }
    Lanes wide;
    widen_integer<From>(a, wide.raw);
    if constexpr (Saturate) {
        constexpr u64 kHighest = std::numeric_limits<To>::max();
        if constexpr (std::is_signed_v<From>) {
            clamp<s64>(wide.as<s64>(), static_cast<s64>(std::numeric_limits<To>::min()),
                       static_cast<s64>(kHighest > INT64_MAX ? INT64_MAX : kHighest));
        } else {
            clamp<u64>(wide.raw, 0, kHighest);
        }
    }
    put_integer<To>(warp, inst->dst, wide.raw);
}

template <typename To, typename F>
GANTRY_INLINE void integer_from_float(Warp& warp, const Inst* inst, const F* a) {
    Lanes whole;
    a = round_to_whole(a, whole.as<F>(), inst->flags & 3U);
    if constexpr (sizeof(To) >= 4) {
        put_whole<To>(warp, inst->dst, a);
    } else {
        Lanes cut;
        s32* values = cut.as<s32>();
        whole_to_s32(a, values);
        clamp<s32>(values, std::numeric_limits<To>::min(), std::numeric_limits<To>::max());
        if constexpr (sizeof(F) == 8) {
            put_nan(a, values, kOfNan<To, F>);
        }
        put_word(warp, inst->dst, cut.as<u32>());
    }
}

template <typename To, typename F, bool Saturate>
GANTRY_INLINE void half_from_float(Warp& warp, const Inst* inst, const F* a, u32 mode) {
    if constexpr (std::is_same_v<F, float>) {
        if (!Saturate && mode == kFpNearest) {
            put_half_nearest<To>(warp, inst->dst, a);
            return;
        }
        Lanes wide;
        float_to_double(a, wide.as<double>());
        put_half<To>(warp, inst->dst, wide.as<double>(), mode, Saturate);
    } else {
        put_half<To>(warp, inst->dst, a, mode, Saturate);
    }
}

template <typename To, typename F, bool Saturate>
GANTRY_INLINE void any_from_float(Warp& warp, const Inst* inst, const F* a, u32 mode) {
    if constexpr (std::is_integral_v<To>) {
        integer_from_float<To>(warp, inst, a);
    } else if constexpr (kHalf<To>) {
        half_from_float<To, F, Saturate>(warp, inst, a, mode);
    } else {
        put_float<To, F, Saturate>(warp, inst->dst, a);
    }
}

template <typename To, typename From, bool Saturate>
GANTRY_INLINE void float_from_integer(Warp& warp, const Inst* inst, u32 mode) {
    using F = std::conditional_t<kHalf<To>, double, To>;
    using I = std::conditional_t<(sizeof(From) < 4), s32, From>;
    Lanes wide;
    const I* a = warp.slot<I>(inst->a);
    if constexpr (sizeof(From) < 4) {
        widen_to_s32<From>(warp.slot<u32>(inst->a), wide.as<s32>());
        a = wide.as<s32>();
    }
    if constexpr (sizeof(I) == 4 && !kHalf<To> && !Saturate) {
        put_float<To, I, false>(warp, inst->dst, a);
    } else {
        Lanes value;
        if constexpr (sizeof(I) == 8 && std::is_same_v<To, bf16_t>) {
            integer_to_double_odd<I>(a, value.as<F>());
        } else {
            integer_to_float<F, I>(a, value.as<F>());
        }
        any_from_float<To, F, Saturate>(warp, inst, value.as<F>(), mode);
    }
}

template <typename To, typename From, bool Saturate>
const Inst* convert(Warp& warp, const Inst* inst) {
    constexpr bool kToInteger = std::is_integral_v<To>, kFromInteger = std::is_integral_v<From>;
    // Half results are rounded in software; their mode is not the FP unit's.
    const u32 mode = inst->fp_mode & 3U;
    if constexpr (kHalf<To>) {
        warp.thread->set_fp_mode(kFpNearest);
    } else if constexpr (kToInteger && !kFromInteger) {
        warp.thread->set_fp_mode(inst->fp_mode & kFpFlush);
    } else if constexpr (!kToInteger || !kFromInteger) {
        warp.thread->set_fp_mode(kHalf<From> ? 0U : inst->fp_mode);
    }
    if constexpr (kToInteger && kFromInteger) {
        integer_from_integer<To, From, Saturate>(warp, inst);
    } else if constexpr (kFromInteger) {
        float_from_integer<To, From, Saturate>(warp, inst, mode);
    } else if constexpr (std::is_same_v<From, bf16_t> && std::is_same_v<To, float> && !Saturate) {
        put_bf16_as_float(warp, inst);
    } else if constexpr (kHalf<From>) {
        Lanes value;
        half_to_float<From>(warp.slot<u32>(inst->a), value.as<float>());
        any_from_float<To, float, Saturate>(warp, inst, value.as<float>(), mode);
    } else {
        const From* a = warp.slot<From>(inst->a);
        // Where no instruction of the FP unit would do it.
        Lanes flushed;
        if constexpr (std::is_same_v<From, float> &&
                      (std::is_same_v<To, bf16_t> || std::is_same_v<To, float>)) {
            if ((inst->fp_mode & kFpFlush) != 0) {
                a = flush_denormals(a, flushed.as<float>());
            }
        }
        any_from_float<To, From, Saturate>(warp, inst, a, mode);
    }
    return inst + 1;
}

template <u32 Direction, typename F>
const Inst* round_float(Warp& warp, const Inst* inst) {
    warp.thread->set_fp_mode(inst->fp_mode & kFpFlush);
    const Slot<F>* a = warp.slot<Slot<F>>(inst->a);
    for_lanes(warp, warp.slot<Slot<F>>(inst->dst), [=](int lane) {
        F value = from_slot<F>(a[lane]) * F(1);
        value = rounded(value, Direction);
        if constexpr (sizeof(F) == 4) {
            value = value != value ? bits_as<float>(u32{0x7fffffff}) : value;
        }
        return to_slot<F>(value);
    });
    return inst + 1;
}

template <u32 Direction, typename H>
const Inst* round_half(Warp& warp, const Inst* inst) {
    warp.thread->set_fp_mode(kFpNearest);
    const u32* a = warp.slot<u32>(inst->a);
    for_lanes(warp, warp.slot<u32>(inst->dst), [=](int lane) {
        return to_slot<H>(narrow<H>(rounded(to_float(from_slot<H>(a[lane])), Direction)));
    });
    return inst + 1;
}

template <typename T>
struct ElemOf;
template <>
struct ElemOf<u8> {
    static constexpr Elem value = Elem::kU8;
};
template <>
struct ElemOf<s8> {
    static constexpr Elem value = Elem::kS8;
};
template <>
struct ElemOf<u16> {
    static constexpr Elem value = Elem::kU16;
};
template <>
struct ElemOf<s16> {
    static constexpr Elem value = Elem::kS16;
};
template <>
struct ElemOf<u32> {
    static constexpr Elem value = Elem::kU32;
};
template <>
struct ElemOf<s32> {
    static constexpr Elem value = Elem::kS32;
};
template <>
struct ElemOf<u64> {
    static constexpr Elem value = Elem::kU64;
};
template <>
struct ElemOf<s64> {
    static constexpr Elem value = Elem::kS64;
};
template <>
struct ElemOf<half_t> {
    static constexpr Elem value = Elem::kF16;
};
template <>
struct ElemOf<bf16_t> {
    static constexpr Elem value = Elem::kBf16;
};
template <>
struct ElemOf<float> {
    static constexpr Elem value = Elem::kF32;
};
template <>
struct ElemOf<double> {
    static constexpr Elem value = Elem::kF64;
};

template <typename To, typename From>
void put(HandlerTable& table) {
    const int to = index_of(ElemOf<To>::value);
    const int from = index_of(ElemOf<From>::value);
    table.convert[to][from] = &convert<To, From, false>;
    // To an integer from floating point always saturates.
    constexpr bool kSame = std::is_integral_v<To> && !std::is_integral_v<From>;
    table.convert_saturate[to][from] = &convert<To, From, !kSame>;
}

template <typename To>
void put_from_all(HandlerTable& table) {
    put<To, u8>(table);
    put<To, s8>(table);
    put<To, u16>(table);
    put<To, s16>(table);
    put<To, u32>(table);
    put<To, s32>(table);
    put<To, u64>(table);
    put<To, s64>(table);
    put<To, half_t>(table);
    put<To, bf16_t>(table);
    put<To, float>(table);
    put<To, double>(table);
}

template <u32 Direction>
void put_rounding(HandlerTable& table) {
    Handler* row = table.round_integer[Direction];
    row[index_of(Elem::kF32)] = &round_float<Direction, float>;
    row[index_of(Elem::kF64)] = &round_float<Direction, double>;
    row[index_of(Elem::kF16)] = &round_half<Direction, half_t>;
    row[index_of(Elem::kBf16)] = &round_half<Direction, bf16_t>;
}

}  // namespace

void fill_convert(HandlerTable& table) {
    put_from_all<u8>(table);
    put_from_all<s8>(table);
    put_from_all<u16>(table);
    put_from_all<s16>(table);
    put_from_all<u32>(table);
    put_from_all<s32>(table);
    put_from_all<u64>(table);
    put_from_all<s64>(table);
    put_from_all<half_t>(table);
    put_from_all<bf16_t>(table);
    put_from_all<float>(table);
    put_from_all<double>(table);
    put_rounding<kFpNearest>(table);
    put_rounding<kFpDown>(table);
    put_rounding<kFpUp>(table);
    put_rounding<kFpZero>(table);
}

}  // namespace gantry::softgpu::GANTRY_ISA_NAMESPACE
