#include "host-daemon/softgpu/engine/exec/packed.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "host-daemon/softgpu/engine/numbers.h"
#include "host-daemon/softgpu/engine/warp.h"

namespace gantry::softgpu::exec {
namespace {

using u32 = std::uint32_t;

const SmallFormat& format_of(SmallKind kind) {
    switch (kind) {
        case SmallKind::kBf16: return kBfloat;
        case SmallKind::kE4m3: return kE4m3;
        case SmallKind::kE5m2: return kE5m2;
        case SmallKind::kE2m3: return kE2m3;
        case SmallKind::kE3m2: return kE3m2;
        case SmallKind::kE2m1: return kE2m1;
        case SmallKind::kTf32: return kTf32;
        default: return kHalf;
    }
}

u32 width_of(SmallKind kind) {
    switch (kind) {
        case SmallKind::kF16:
        case SmallKind::kBf16: return 16;
        case SmallKind::kTf32:
        case SmallKind::kF32: return 32;
        case SmallKind::kE2m1: return 4;
        default: return 8;
    }
}

double decode(u32 bits, SmallKind kind) {
    if (kind == SmallKind::kF32) {
        return static_cast<double>(std::bit_cast<float>(bits));
    }
    if (kind == SmallKind::kUe8m0) {
        return bits == 0xff ? std::nan("") : std::ldexp(1.0, static_cast<int>(bits) - 127);
    }
    return double_from_small(bits, format_of(kind));
}

/// A NaN is cut off, so it stays one only by its upper bits.
u32 tf32_away(u32 bits, bool finite) {
    const bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
    const u32 rounded = (nan ? bits : bits + 0x1000U) & ~0x1fffU;
    return finite && (rounded & 0x7f800000U) == 0x7f800000U ? rounded - 0x2000U : rounded;
}

u32 encode(double value, SmallKind kind, std::uint8_t flags) {
    if ((flags & kPackedRelu) != 0 && !(value > 0.0) && !std::isnan(value)) {
        value = 0.0;
    }
    const SmallRounding rounding = (flags & kPackedZero) != 0   ? SmallRounding::kZero
                                   : (flags & kPackedAway) != 0 ? SmallRounding::kNearestAway
                                                                : SmallRounding::kNearestEven;
    if (kind == SmallKind::kF32) {
        return std::bit_cast<u32>(static_cast<float>(value));
    }
    if (kind == SmallKind::kUe8m0) {
        if (std::isnan(value)) {
            return 0xff;
        }
        const double magnitude = std::fabs(value);
        if (magnitude == 0.0) {
            return 0;
        }
        int exponent = 0;
        const double fraction = std::frexp(magnitude, &exponent);  // in [0.5, 1)
        exponent -= 1;
        if (rounding != SmallRounding::kZero && fraction > 0.5) {
            ++exponent;  // the other mode of this format is upwards
        }
        return static_cast<u32>(std::clamp(exponent + 127, 0, 254));
    }
    const u32 bits =
        small_from_double(value, format_of(kind), (flags & kPackedFinite) != 0, rounding);
    return kind == SmallKind::kTf32 ? bits << 13 : bits;
}

const Inst* do_convert(Warp& warp, const Inst* inst) {
    warp.thread->set_fp_mode(kFpNearest);
    const auto to = static_cast<SmallKind>(inst->aux & 0xffU);
    const auto from = static_cast<SmallKind>(inst->aux >> 8);
    const bool pair = inst->d == 2;
    const u32* a = warp.slot<u32>(inst->a);
    const u32* b = warp.slot<u32>(inst->b);
    u32* out = warp.slot<u32>(inst->dst);
    const u32 from_bits = width_of(from);
    const u32 from_mask = from_bits == 32 ? ~0U : (1U << from_bits) - 1;
    for (u32 mask = warp.mask; mask != 0; mask &= mask - 1) {
        const int lane = __builtin_ctz(mask);
        if (to == SmallKind::kTf32 && (inst->flags & kPackedAway) != 0) {
            out[lane] = tf32_away(a[lane], (inst->flags & kPackedFinite) != 0);
            continue;
        }
        if (!pair) {
            out[lane] = encode(decode(a[lane] & from_mask, from), to, inst->flags);
            continue;
        }
        const u32 high = from == SmallKind::kF32 ? a[lane] : (a[lane] >> from_bits) & from_mask;
        const u32 low = from == SmallKind::kF32 ? b[lane] : a[lane] & from_mask;
        out[lane] = encode(decode(low, from), to, inst->flags) |
                    (encode(decode(high, from), to, inst->flags) << width_of(to));
    }
    return inst + 1;
}

const Inst* do_pack(Warp& warp, const Inst* inst) {
    static constexpr std::int32_t kLow[] = {0, -128, 0, -32768};
    static constexpr std::int32_t kHigh[] = {255, 127, 65535, 32767};
    const u32* a = warp.slot<u32>(inst->a);
    const u32* b = warp.slot<u32>(inst->b);
    u32* out = warp.slot<u32>(inst->dst);
    const u32 bits = inst->aux < 2 ? 8 : 16;
    const u32 field = (1U << bits) - 1;
    for (u32 mask = warp.mask; mask != 0; mask &= mask - 1) {
        const int lane = __builtin_ctz(mask);
        const auto clamp = [&](u32 value) {
            return static_cast<u32>(std::clamp(static_cast<std::int32_t>(value), kLow[inst->aux],
                                               kHigh[inst->aux])) &
                   field;
        };
        const u32 above = inst->c == kAllLanes ? 0U : warp.slot<u32>(inst->c)[lane];
        const u32 packed = (clamp(a[lane]) << bits) | clamp(b[lane]);
        out[lane] = bits == 16 ? packed : packed | (above << 16);
    }
    return inst + 1;
}

}  // namespace

Handler convert_small() { return &do_convert; }
Handler pack_saturated() { return &do_pack; }

}  // namespace gantry::softgpu::exec
