// setp, set and selp. A compare writes one bit per lane; combining with another predicate, and
// the second result of p|q, are done by the decoder's following instruction on masks.
#include "host-daemon/softgpu/engine/isa/fill.h"
#include "host-daemon/softgpu/engine/isa/forms.h"
#include "host-daemon/softgpu/engine/isa/half.h"

namespace gantry::softgpu::GANTRY_ISA_NAMESPACE {
namespace {

/// An f16 compared with .ftz.
struct flushed_half_t {
    u16 bits;
};

}  // namespace

template <>
inline constexpr bool kUsesFp<flushed_half_t> = true;

namespace {

/// The four tests that all others are made of, by changing the operands over or the answer. For
/// floating point each is false on a NaN, so "greater, or unordered" is not "less or equal".
enum class Basic { kEqual, kLess, kLessEqual, kOrdered };

template <Basic B, typename T>
GANTRY_INLINE bool holds(T a, T b) {
    if constexpr (B == Basic::kEqual) {
        return a == b;
    }
    if constexpr (B == Basic::kLess) {
        return a < b;
    }
    if constexpr (B == Basic::kLessEqual) {
        return a <= b;
    }
    if constexpr (B == Basic::kOrdered) {
        return a == a && b == b;
    }
}

template <typename T>
GANTRY_INLINE auto comparable(Slot<T> bits) {
    if constexpr (std::is_same_v<T, half_t> || std::is_same_v<T, bf16_t>) {
        return to_float(from_slot<T>(bits));
    } else if constexpr (std::is_same_v<T, flushed_half_t>) {
        return to_float(half_t{static_cast<u16>((bits & 0x7c00U) == 0 ? 0U : bits)});
    } else {
        return from_slot<T>(bits);
    }
}

template <Basic B, typename T>
[[gnu::noinline]] u32 test(const Slot<T>* a, const Slot<T>* b) {
    u32 bits = 0;
    GANTRY_LANES
    for (int lane = 0; lane < kLanes; ++lane) {
        bits |= static_cast<u32>(holds<B>(comparable<T>(a[lane]), comparable<T>(b[lane]))) << lane;
    }
    return bits;
}

template <Compare C, typename T>
GANTRY_INLINE u32 test_lanes(Warp& warp, const Inst* inst) {
    if constexpr (kUsesFp<T>) {
        warp.thread->set_fp_mode(inst->fp_mode);
    }
    const Slot<T>* a = warp.slot<Slot<T>>(inst->a);
    const Slot<T>* b = warp.slot<Slot<T>>(inst->b);
    if constexpr (C == Compare::kEq) {
        return test<Basic::kEqual, T>(a, b);
    }
    if constexpr (C == Compare::kNeu) {
        return ~test<Basic::kEqual, T>(a, b);
    }
    if constexpr (C == Compare::kLt) {
        return test<Basic::kLess, T>(a, b);
    }
    if constexpr (C == Compare::kGeu) {
        return ~test<Basic::kLess, T>(a, b);
    }
    if constexpr (C == Compare::kGt) {
        return test<Basic::kLess, T>(b, a);
    }
    if constexpr (C == Compare::kLeu) {
        return ~test<Basic::kLess, T>(b, a);
    }
    if constexpr (!kUsesFp<T>) {
        if constexpr (C == Compare::kNe) {
            return ~test<Basic::kEqual, T>(a, b);
        }
        if constexpr (C == Compare::kLe) {
            return ~test<Basic::kLess, T>(b, a);
        }
        if constexpr (C == Compare::kGe) {
            return ~test<Basic::kLess, T>(a, b);
        }
    } else {
        if constexpr (C == Compare::kLe) {
            return test<Basic::kLessEqual, T>(a, b);
        }
        if constexpr (C == Compare::kGtu) {
            return ~test<Basic::kLessEqual, T>(a, b);
        }
        if constexpr (C == Compare::kGe) {
            return test<Basic::kLessEqual, T>(b, a);
        }
        if constexpr (C == Compare::kLtu) {
            return ~test<Basic::kLessEqual, T>(b, a);
        }
        if constexpr (C == Compare::kNum) {
            return test<Basic::kOrdered, T>(a, b);
        }
        if constexpr (C == Compare::kNan) {
            return ~test<Basic::kOrdered, T>(a, b);
        }
        if constexpr (C == Compare::kNe) {
            return ~test<Basic::kEqual, T>(a, b) & test<Basic::kOrdered, T>(a, b);
        }
        if constexpr (C == Compare::kEqu) {
            return test<Basic::kEqual, T>(a, b) | ~test<Basic::kOrdered, T>(a, b);
        }
    }
}

/// inst->aux: 0 plain; else 1 + PredCombine with the predicate at c (bit 8: c negated).
/// inst->d: slot of the second result (the complement), or ~0.
template <Compare C, typename T>
const Inst* setp(Warp& warp, const Inst* inst) {
    const u32 bits = test_lanes<C, T>(warp, inst);
    const u32 mask = warp.mask;
    u32& p = warp.predicate(inst->dst);
    p = (p & ~mask) | (bits & mask);
    return inst + 1;
}

template <Compare C, typename T>
const Inst* set(Warp& warp, const Inst* inst) {
    const u32 bits = test_lanes<C, T>(warp, inst);
    for_lanes(warp, warp.slot<u32>(inst->dst),
              [=](int lane) { return 0U - ((bits >> lane) & 1U); });
    return inst + 1;
}

template <typename S>
const Inst* selp(Warp& warp, const Inst* inst) {
    const S* a = warp.slot<S>(inst->a);
    const S* b = warp.slot<S>(inst->b);
    const u32 p = warp.predicate(inst->c) ^ (inst->flags != 0 ? kAllLanes : 0U);
    for_lanes(warp, warp.slot<S>(inst->dst),
              [=](int lane) { return ((p >> lane) & 1U) != 0 ? a[lane] : b[lane]; });
    return inst + 1;
}

template <Compare C>
void fill_row(HandlerTable& table) {
    Handler* p = table.setp[index_of(C)];
    Handler* s = table.set[index_of(C)];
    if constexpr (C <= Compare::kGe) {
        p[index_of(Elem::kU16)] = &setp<C, u16>;
        p[index_of(Elem::kS16)] = &setp<C, s16>;
        p[index_of(Elem::kU32)] = &setp<C, u32>;
        p[index_of(Elem::kS32)] = &setp<C, s32>;
        p[index_of(Elem::kU64)] = &setp<C, u64>;
        p[index_of(Elem::kS64)] = &setp<C, s64>;
        s[index_of(Elem::kU16)] = &set<C, u16>;
        s[index_of(Elem::kS16)] = &set<C, s16>;
        s[index_of(Elem::kU32)] = &set<C, u32>;
        s[index_of(Elem::kS32)] = &set<C, s32>;
        s[index_of(Elem::kU64)] = &set<C, u64>;
        s[index_of(Elem::kS64)] = &set<C, s64>;
    }
    p[index_of(Elem::kF32)] = &setp<C, float>;
    p[index_of(Elem::kF64)] = &setp<C, double>;
    p[index_of(Elem::kF16)] = &setp<C, half_t>;
    p[index_of(Elem::kBf16)] = &setp<C, bf16_t>;
    table.setp_flush[index_of(C)] = &setp<C, flushed_half_t>;
    s[index_of(Elem::kF32)] = &set<C, float>;
    s[index_of(Elem::kF64)] = &set<C, double>;
    s[index_of(Elem::kF16)] = &set<C, half_t>;
    s[index_of(Elem::kBf16)] = &set<C, bf16_t>;
}

template <int... I>
void fill_rows(HandlerTable& table, std::integer_sequence<int, I...>) {
    (fill_row<static_cast<Compare>(I)>(table), ...);
}

}  // namespace

void fill_compare(HandlerTable& table) {
    fill_rows(table, std::make_integer_sequence<int, kCountOf<Compare>>{});
    table.selp32 = &selp<u32>;
    table.selp64 = &selp<u64>;
}

}  // namespace gantry::softgpu::GANTRY_ISA_NAMESPACE
