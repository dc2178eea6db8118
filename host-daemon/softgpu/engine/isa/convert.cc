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

/// Saturating, NaN gives 0 (for 64-bit results the most negative number), as hardware does.
template <typename To, typename F>
GANTRY_INLINE To to_integer(F value) {
    constexpr To kLow = std::numeric_limits<To>::min();
    constexpr To kHigh = std::numeric_limits<To>::max();
    constexpr F kLimit = static_cast<F>(kHigh / 2 + 1) * F(2);
    const bool low = value < static_cast<F>(kLow);
    const bool high = value >= kLimit;
    const bool nan = value != value;
    const To plain = static_cast<To>(low || high || nan ? F(0) : value);
    constexpr To kNan = sizeof(To) == 8 ? static_cast<To>(u64{1} << 63) : To(0);
    return nan ? kNan : low ? kLow : high ? kHigh : plain;
}

template <typename To, typename From>
GANTRY_INLINE To clamp_integer(From value) {
    using Wide = __int128;
    if constexpr (sizeof(From) == 8 || sizeof(To) == 8) {
        const Wide v = value;
        const Wide low = std::numeric_limits<To>::min();
        const Wide high = std::numeric_limits<To>::max();
        return static_cast<To>(v < low ? low : v > high ? high : v);
    } else {
        const s64 v = value;
        const s64 low = std::numeric_limits<To>::min();
        const s64 high = std::numeric_limits<To>::max();
        return static_cast<To>(v < low ? low : v > high ? high : v);
    }
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
    const bool outward = (mode == kFpDown && above && negative) ||
                         (mode == kFpUp && below && !negative);
    nearest.bits = static_cast<u16>(nearest.bits + (outward ? 1 : 0) - (inward ? 1 : 0));
    return nearest;
}

template <typename To, typename From>
GANTRY_INLINE To convert_value(From value, u32 direction, u32 mode, bool saturate) {
    if constexpr (kHalf<From>) {
        return convert_value<To, float>(to_float(value), direction, mode, saturate);
    } else if constexpr (std::is_integral_v<From> && std::is_integral_v<To>) {
        return saturate ? clamp_integer<To>(value) : static_cast<To>(value);
    } else if constexpr (std::is_integral_v<To>) {
        return to_integer<To>(rounded(value, direction));
    } else if constexpr (kHalf<To>) {
        double wide = static_cast<double>(value);
        if (saturate) {
            wide = wide > 0.0 ? (wide < 1.0 ? wide : 1.0) : 0.0;
        }
        if (mode == kFpNearest) {
            if constexpr (std::is_same_v<From, float>) {
                return narrow<To>(static_cast<float>(wide));
            } else {
                return narrow<To>(to_float_odd(wide));
            }
        }
        return narrow_directed<To>(wide, mode);
    } else {
        To result = static_cast<To>(value);
        if constexpr (std::is_same_v<To, float>) {
            result = result != result ? bits_as<float>(u32{0x7fffffff}) : result;
        }
        if (saturate) {
            result = result > To(0) ? (result < To(1) ? result : To(1)) : To(0);
        }
        return result;
    }
}

template <typename To, typename From, bool Saturate, u32 Direction>
GANTRY_INLINE void convert_lanes(Warp& warp, const Inst* inst, u32 mode) {
    const Slot<From>* a = warp.slot<Slot<From>>(inst->a);
    for_lanes(warp, warp.slot<Slot<To>>(inst->dst), [=](int lane) {
        return to_slot<To>(
            convert_value<To, From>(from_slot<From>(a[lane]), Direction, mode, Saturate));
    });
}

template <typename To, typename From, bool Saturate>
const Inst* convert(Warp& warp, const Inst* inst) {
    // Half results are rounded in software; their mode is not the FP unit's.
    const u32 mode = inst->fp_mode & 3U;
    if constexpr (kHalf<To>) {
        warp.thread->set_fp_mode(kFpNearest);
        if (mode == kFpNearest) {
            convert_lanes<To, From, Saturate, 0>(warp, inst, kFpNearest);
        } else {
            convert_lanes<To, From, Saturate, 0>(warp, inst, mode);
        }
    } else if constexpr (std::is_integral_v<To> && !std::is_integral_v<From>) {
        warp.thread->set_fp_mode(inst->fp_mode & kFpFlush);
        switch (inst->flags & 3U) {
            case kFpDown: convert_lanes<To, From, Saturate, kFpDown>(warp, inst, 0); break;
            case kFpUp: convert_lanes<To, From, Saturate, kFpUp>(warp, inst, 0); break;
            case kFpZero: convert_lanes<To, From, Saturate, kFpZero>(warp, inst, 0); break;
            default: convert_lanes<To, From, Saturate, kFpNearest>(warp, inst, 0); break;
        }
    } else {
        if constexpr (!std::is_integral_v<To> || !std::is_integral_v<From>) {
            warp.thread->set_fp_mode(kHalf<From> ? 0U : inst->fp_mode);
        }
        convert_lanes<To, From, Saturate, 0>(warp, inst, 0);
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

template <typename T> struct ElemOf;
template <> struct ElemOf<u8> { static constexpr Elem value = Elem::kU8; };
template <> struct ElemOf<s8> { static constexpr Elem value = Elem::kS8; };
template <> struct ElemOf<u16> { static constexpr Elem value = Elem::kU16; };
template <> struct ElemOf<s16> { static constexpr Elem value = Elem::kS16; };
template <> struct ElemOf<u32> { static constexpr Elem value = Elem::kU32; };
template <> struct ElemOf<s32> { static constexpr Elem value = Elem::kS32; };
template <> struct ElemOf<u64> { static constexpr Elem value = Elem::kU64; };
template <> struct ElemOf<s64> { static constexpr Elem value = Elem::kS64; };
template <> struct ElemOf<half_t> { static constexpr Elem value = Elem::kF16; };
template <> struct ElemOf<bf16_t> { static constexpr Elem value = Elem::kBf16; };
template <> struct ElemOf<float> { static constexpr Elem value = Elem::kF32; };
template <> struct ElemOf<double> { static constexpr Elem value = Elem::kF64; };

template <typename To, typename From>
void put(HandlerTable& table) {
    const int to = index_of(ElemOf<To>::value);
    const int from = index_of(ElemOf<From>::value);
    table.convert[to][from] = &convert<To, From, false>;
    table.convert_saturate[to][from] = &convert<To, From, true>;
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
