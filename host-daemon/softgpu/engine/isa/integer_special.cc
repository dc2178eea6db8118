// Bit manipulation and other integer operations with their own rules: bfe, bfi, bfind, brev,
// clz, popc, fns, funnel shifts, lop3, prmt, slct, dp4a.
#include "host-daemon/softgpu/engine/isa/fill.h"
#include "host-daemon/softgpu/engine/isa/forms.h"

namespace gantry::softgpu::GANTRY_ISA_NAMESPACE {
namespace {

struct Popc {
    GANTRY_INLINE static u32 apply(u32 a) { return static_cast<u32>(__builtin_popcount(a)); }
    GANTRY_INLINE static u32 apply(u64 a) { return static_cast<u32>(__builtin_popcountll(a)); }
};
struct Clz {
    GANTRY_INLINE static u32 apply(u32 a) {
        return a == 0 ? 32U : static_cast<u32>(__builtin_clz(a));
    }
    GANTRY_INLINE static u32 apply(u64 a) {
        return a == 0 ? 64U : static_cast<u32>(__builtin_clzll(a));
    }
};
struct Brev {
    template <typename T>
    GANTRY_INLINE static T apply(T a) {
        a = ((a >> 1) & static_cast<T>(0x5555555555555555ULL)) |
            ((a & static_cast<T>(0x5555555555555555ULL)) << 1);
        a = ((a >> 2) & static_cast<T>(0x3333333333333333ULL)) |
            ((a & static_cast<T>(0x3333333333333333ULL)) << 2);
        a = ((a >> 4) & static_cast<T>(0x0f0f0f0f0f0f0f0fULL)) |
            ((a & static_cast<T>(0x0f0f0f0f0f0f0f0fULL)) << 4);
        if constexpr (sizeof(T) == 4) {
            return __builtin_bswap32(a);
        } else {
            return __builtin_bswap64(a);
        }
    }
};

/// Position of the highest bit that differs from the sign (or is set); all ones if none.
template <bool Shift>
struct Bfind {
    template <typename T>
    GANTRY_INLINE static u32 apply(T a) {
        using U = std::make_unsigned_t<T>;
        U bits = static_cast<U>(a);
        if constexpr (std::is_signed_v<T>) {
            bits = a < 0 ? static_cast<U>(~bits) : bits;
        }
        const u32 zeros = Clz::apply(bits);
        constexpr u32 kBits = 8 * sizeof(T);
        if (zeros == kBits) {
            return kAllLanes;
        }
        return Shift ? zeros : kBits - 1 - zeros;
    }
};

template <typename T>
const Inst* bfe(Warp& warp, const Inst* inst) {
    using U = std::make_unsigned_t<T>;
    constexpr u32 kBits = 8 * sizeof(T);
    const Slot<T>* a = warp.slot<Slot<T>>(inst->a);
    const u32* b = warp.slot<u32>(inst->b);
    const u32* c = warp.slot<u32>(inst->c);
    for_lanes(warp, warp.slot<Slot<T>>(inst->dst), [=](int lane) {
        const U value = static_cast<U>(a[lane]);
        const u32 position = b[lane] & 0xffU;
        const u32 length = c[lane] & 0xffU;
        U sign = 0;
        if constexpr (std::is_signed_v<T>) {
            const u32 top = position + length - 1 > kBits - 1 ? kBits - 1 : position + length - 1;
            sign = length == 0 ? U{0} : static_cast<U>(0U - ((value >> top) & 1U));
        }
        U shifted = position >= kBits ? sign : static_cast<U>(value >> position);
        if (std::is_signed_v<T> && position < kBits && position != 0) {
            // Bits that come from above the register are copies of the sign of the field.
            shifted |= static_cast<U>(sign << (kBits - position));
        }
        if (length >= kBits) {
            return static_cast<Slot<T>>(shifted);
        }
        const U field = static_cast<U>((U{1} << length) - 1);
        return static_cast<Slot<T>>((shifted & field) | (sign & ~field));
    });
    return inst + 1;
}

template <typename U>
const Inst* bfi(Warp& warp, const Inst* inst) {
    constexpr u32 kBits = 8 * sizeof(U);
    const U* a = warp.slot<U>(inst->a);
    const U* b = warp.slot<U>(inst->b);
    const u32* c = warp.slot<u32>(inst->c);
    const u32* d = warp.slot<u32>(inst->d);
    for_lanes(warp, warp.slot<U>(inst->dst), [=](int lane) {
        const u32 position = c[lane] & 0xffU;
        const u32 length = d[lane] & 0xffU;
        const U field = length >= kBits ? ~U{0} : static_cast<U>((U{1} << length) - 1);
        const U mask = position >= kBits ? U{0} : static_cast<U>(field << position);
        const U value = position >= kBits ? U{0} : static_cast<U>(a[lane] << position);
        return static_cast<U>((b[lane] & ~mask) | (value & mask));
    });
    return inst + 1;
}

template <bool Left, bool Wrap>
struct Shf {
    GANTRY_INLINE static u32 apply(u32 low, u32 high, u32 count) {
        const u32 n = Wrap ? count & 31U : (count > 32 ? 32U : count);
        const u64 both = (u64{high} << 32) | low;
        return static_cast<u32>(Left ? (both << n) >> 32 : both >> n);
    }
};

struct SlctS32 {
    template <typename T>
    GANTRY_INLINE static T apply(T a, T b, s32 c) {
        return c >= 0 ? a : b;
    }
};
struct SlctF32 {
    template <typename T>
    GANTRY_INLINE static T apply(T a, T b, float c) {
        return c >= 0.0F ? a : b;
    }
};

template <typename A, typename B>
struct Dp4a {
    GANTRY_INLINE static u32 apply(u32 a, u32 b, u32 c) {
        u32 sum = c;
        for (int byte = 0; byte < 4; ++byte) {
            const s32 x = static_cast<A>(a >> (8 * byte));
            const s32 y = static_cast<B>(b >> (8 * byte));
            sum += static_cast<u32>(x * y);
        }
        return sum;
    }
};

const Inst* lop3(Warp& warp, const Inst* inst) {
    const u32* a = warp.slot<u32>(inst->a);
    const u32* b = warp.slot<u32>(inst->b);
    const u32* c = warp.slot<u32>(inst->c);
    const u32 table = inst->aux;
    u32 pick[8];
    for (u32 row = 0; row < 8; ++row) {
        pick[row] = 0U - ((table >> row) & 1U);
    }
    for_lanes(warp, warp.slot<u32>(inst->dst), [=](int lane) {
        const u32 x = a[lane], y = b[lane], z = c[lane];
        return (pick[0] & ~x & ~y & ~z) | (pick[1] & ~x & ~y & z) | (pick[2] & ~x & y & ~z) |
               (pick[3] & ~x & y & z) | (pick[4] & x & ~y & ~z) | (pick[5] & x & ~y & z) |
               (pick[6] & x & y & ~z) | (pick[7] & x & y & z);
    });
    return inst + 1;
}

/// aux: 0 general, 1 f4e, 2 b4e, 3 rc8, 4 ecl, 5 ecr, 6 rc16.
GANTRY_INLINE u32 prmt_selector(u32 mode, u32 c) {
    const u32 i = c & 3U;
    switch (mode) {
        case 1: return i | ((i + 1) << 4) | ((i + 2) << 8) | ((i + 3) << 12);
        case 2: return i | (((i + 7) & 7U) << 4) | (((i + 6) & 7U) << 8) | (((i + 5) & 7U) << 12);
        case 3: return i * 0x1111U;
        case 4:
            return (i > 0 ? i : 0U) | ((i > 1 ? i : 1U) << 4) | ((i > 2 ? i : 2U) << 8) |
                   (3U << 12);
        case 5: return 0U | ((i < 1 ? i : 1U) << 4) | ((i < 2 ? i : 2U) << 8) | (i << 12);
        case 6: return (i & 1U) != 0 ? 0x3232U : 0x1010U;
        default: return c;
    }
}

const Inst* prmt(Warp& warp, const Inst* inst) {
    const u32* a = warp.slot<u32>(inst->a);
    const u32* b = warp.slot<u32>(inst->b);
    const u32* c = warp.slot<u32>(inst->c);
    const u32 mode = inst->aux;
    for_lanes(warp, warp.slot<u32>(inst->dst), [=](int lane) {
        const u64 both = (u64{b[lane]} << 32) | a[lane];
        const u32 selector = prmt_selector(mode, c[lane]);
        u32 result = 0;
        for (int byte = 0; byte < 4; ++byte) {
            const u32 nibble = (selector >> (4 * byte)) & 0xfU;
            u32 value = static_cast<u32>(both >> (8 * (nibble & 7U))) & 0xffU;
            value = (nibble & 8U) != 0 && mode == 0 ? 0xffU * (value >> 7) : value;
            result |= value << (8 * byte);
        }
        return result;
    });
    return inst + 1;
}

/// Find the n-th set bit from a base, upwards or downwards.
const Inst* fns(Warp& warp, const Inst* inst) {
    const u32* mask = warp.slot<u32>(inst->a);
    const u32* base = warp.slot<u32>(inst->b);
    const u32* offset = warp.slot<u32>(inst->c);
    u32* out = warp.slot<u32>(inst->dst);
    for_active(warp.mask, [&](int lane) {
        const s32 n = static_cast<s32>(offset[lane]);
        s32 position = static_cast<s32>(base[lane]);
        const s32 step = n < 0 ? -1 : 1;
        s32 left = n < 0 ? -n : n;
        u32 found = kAllLanes;
        if (n == 0) {
            found = position >= 0 && position < 32 && ((mask[lane] >> position) & 1U) != 0
                        ? static_cast<u32>(position)
                        : kAllLanes;
        } else {
            for (; position >= 0 && position < 32; position += step) {
                if (((mask[lane] >> position) & 1U) != 0 && --left == 0) {
                    found = static_cast<u32>(position);
                    break;
                }
            }
        }
        out[lane] = found;
    });
    return inst + 1;
}

}  // namespace

void fill_integer_special(HandlerTable& table) {
    const int w32 = index_of(Elem::kU32), w64 = index_of(Elem::kU64);
    const int i32 = index_of(Elem::kS32), i64 = index_of(Elem::kS64);
    Handler(*one)[kElemCount] = table.unary;
    one[index_of(Unary::kPopc)][w32] = &unary<Popc, u32, u32>;
    one[index_of(Unary::kPopc)][w64] = &unary<Popc, u64, u32>;
    one[index_of(Unary::kClz)][w32] = &unary<Clz, u32, u32>;
    one[index_of(Unary::kClz)][w64] = &unary<Clz, u64, u32>;
    one[index_of(Unary::kBrev)][w32] = &unary<Brev, u32>;
    one[index_of(Unary::kBrev)][w64] = &unary<Brev, u64>;
    one[index_of(Unary::kBfind)][w32] = &unary<Bfind<false>, u32, u32>;
    one[index_of(Unary::kBfind)][w64] = &unary<Bfind<false>, u64, u32>;
    one[index_of(Unary::kBfind)][i32] = &unary<Bfind<false>, s32, u32>;
    one[index_of(Unary::kBfind)][i64] = &unary<Bfind<false>, s64, u32>;
    one[index_of(Unary::kBfindShift)][w32] = &unary<Bfind<true>, u32, u32>;
    one[index_of(Unary::kBfindShift)][w64] = &unary<Bfind<true>, u64, u32>;
    one[index_of(Unary::kBfindShift)][i32] = &unary<Bfind<true>, s32, u32>;
    one[index_of(Unary::kBfindShift)][i64] = &unary<Bfind<true>, s64, u32>;
    Handler(*three)[kElemCount] = table.ternary;
    three[index_of(Ternary::kBfe)][w32] = &bfe<u32>;
    three[index_of(Ternary::kBfe)][w64] = &bfe<u64>;
    three[index_of(Ternary::kBfe)][i32] = &bfe<s32>;
    three[index_of(Ternary::kBfe)][i64] = &bfe<s64>;
    table.bfi32 = &bfi<u32>;
    table.bfi64 = &bfi<u64>;
    three[index_of(Ternary::kShfLeftClamp)][w32] = &ternary<Shf<true, false>, u32>;
    three[index_of(Ternary::kShfLeftWrap)][w32] = &ternary<Shf<true, true>, u32>;
    three[index_of(Ternary::kShfRightClamp)][w32] = &ternary<Shf<false, false>, u32>;
    three[index_of(Ternary::kShfRightWrap)][w32] = &ternary<Shf<false, true>, u32>;
    three[index_of(Ternary::kLop3)][w32] = &lop3;
    three[index_of(Ternary::kPrmt)][w32] = &prmt;
    three[index_of(Ternary::kFns)][w32] = &fns;
    three[index_of(Ternary::kSlctS32)][index_of(Elem::kU16)] = &ternary<SlctS32, u32, s32, u32>;
    three[index_of(Ternary::kSlctS32)][w32] = &ternary<SlctS32, u32, s32, u32>;
    three[index_of(Ternary::kSlctS32)][w64] = &ternary<SlctS32, u64, s32, u64>;
    three[index_of(Ternary::kSlctF32)][index_of(Elem::kU16)] = &ternary<SlctF32, u32, float, u32>;
    three[index_of(Ternary::kSlctF32)][w32] = &ternary<SlctF32, u32, float, u32>;
    three[index_of(Ternary::kSlctF32)][w64] = &ternary<SlctF32, u64, float, u64>;
    three[index_of(Ternary::kDp4aUU)][w32] = &ternary<Dp4a<u8, u8>, u32>;
    three[index_of(Ternary::kDp4aUS)][w32] = &ternary<Dp4a<u8, s8>, u32>;
    three[index_of(Ternary::kDp4aSU)][w32] = &ternary<Dp4a<s8, u8>, u32>;
    three[index_of(Ternary::kDp4aSS)][w32] = &ternary<Dp4a<s8, s8>, u32>;
}

}  // namespace gantry::softgpu::GANTRY_ISA_NAMESPACE
