// Integer arithmetic, logic and shifts by tables: operation x type.
#include <limits>
#include <type_traits>

#include "host-daemon/softgpu/engine/isa/fill.h"
#include "host-daemon/softgpu/engine/isa/forms.h"

namespace gantry::softgpu::GANTRY_ISA_NAMESPACE {
namespace {

template <typename T>
using Unsigned = std::make_unsigned_t<T>;

/// The type with twice the bits.
template <typename T>
struct Twice;
template <>
struct Twice<u16> {
    using type = u32;
};
template <>
struct Twice<s16> {
    using type = s32;
};
template <>
struct Twice<u32> {
    using type = u64;
};
template <>
struct Twice<s32> {
    using type = s64;
};
template <>
struct Twice<u64> {
    using type = unsigned __int128;
};
template <>
struct Twice<s64> {
    using type = __int128;
};
template <typename T>
using Wide = typename Twice<T>::type;

template <typename T>
GANTRY_INLINE T wrap_mul(T a, T b) {
    if constexpr (sizeof(T) < 4) {
        return static_cast<T>(static_cast<u32>(a) * static_cast<u32>(b));
    } else {
        return static_cast<T>(static_cast<Unsigned<T>>(a) * static_cast<Unsigned<T>>(b));
    }
}

template <typename T>
GANTRY_INLINE T mul_hi(T a, T b) {
    return static_cast<T>((static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b)) >> (8 * sizeof(T)));
}

GANTRY_INLINE s32 saturate32(s64 value) {
    return value > INT32_MAX ? INT32_MAX : value < INT32_MIN ? INT32_MIN : static_cast<s32>(value);
}

struct Add {
    template <typename T>
    GANTRY_INLINE static T apply(T a, T b) {
        return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
    }
};
struct Sub {
    template <typename T>
    GANTRY_INLINE static T apply(T a, T b) {
        return static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b));
    }
};
struct MulLo {
    template <typename T>
    GANTRY_INLINE static T apply(T a, T b) {
        return wrap_mul(a, b);
    }
};
struct MulHi {
    template <typename T>
    GANTRY_INLINE static T apply(T a, T b) {
        return mul_hi(a, b);
    }
};
struct MulWide {
    template <typename T>
    GANTRY_INLINE static Wide<T> apply(T a, T b) {
        return static_cast<Wide<T>>(static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b));
    }
};
// Division by zero gives all ones, the remainder then is the dividend (seen on hardware);
// the one overflow, MIN / -1, wraps.
struct Div {
    template <typename T>
    GANTRY_INLINE static T apply(T a, T b) {
        if (b == 0) {
            return static_cast<T>(~Unsigned<T>{0});
        }
        if constexpr (std::is_signed_v<T>) {
            if (b == T(-1)) {
                return Sub::apply(T(0), a);
            }
        }
        return static_cast<T>(a / b);
    }
};
struct Rem {
    template <typename T>
    GANTRY_INLINE static T apply(T a, T b) {
        if (b == 0) {
            return static_cast<T>(-1);  // As NVIDIA's GPUs do.
        }
        if constexpr (std::is_signed_v<T>) {
            if (b == T(-1)) {
                return T(0);
            }
        }
        return static_cast<T>(a % b);
    }
};
struct Min {
    template <typename T>
    GANTRY_INLINE static T apply(T a, T b) {
        return a < b ? a : b;
    }
};
struct Max {
    template <typename T>
    GANTRY_INLINE static T apply(T a, T b) {
        return a > b ? a : b;
    }
};
struct And {
    template <typename T>
    GANTRY_INLINE static T apply(T a, T b) {
        return static_cast<T>(a & b);
    }
};
struct Or {
    template <typename T>
    GANTRY_INLINE static T apply(T a, T b) {
        return static_cast<T>(a | b);
    }
};
struct Xor {
    template <typename T>
    GANTRY_INLINE static T apply(T a, T b) {
        return static_cast<T>(a ^ b);
    }
};
struct Shl {
    template <typename T>
    GANTRY_INLINE static T apply(T a, u32 b) {
        constexpr u32 kBits = 8 * sizeof(T);
        return b >= kBits ? T(0) : static_cast<T>(static_cast<Unsigned<T>>(a) << (b & (kBits - 1)));
    }
};
struct Shr {
    template <typename T>
    GANTRY_INLINE static T apply(T a, u32 b) {
        constexpr u32 kBits = 8 * sizeof(T);
        if constexpr (std::is_signed_v<T>) {
            return static_cast<T>(a >> (b >= kBits ? kBits - 1 : b));
        } else {
            return b >= kBits ? T(0) : static_cast<T>(a >> (b & (kBits - 1)));
        }
    }
};
struct AddSat {
    GANTRY_INLINE static s32 apply(s32 a, s32 b) { return saturate32(s64{a} + b); }
};
struct SubSat {
    GANTRY_INLINE static s32 apply(s32 a, s32 b) { return saturate32(s64{a} - b); }
};

template <typename T>
GANTRY_INLINE Wide<T> product24(T a, T b) {
    if constexpr (std::is_signed_v<T>) {
        return static_cast<s64>(static_cast<s32>(static_cast<u32>(a) << 8) >> 8) *
               (static_cast<s32>(static_cast<u32>(b) << 8) >> 8);
    } else {
        return static_cast<u64>(a & 0xffffffU) * (b & 0xffffffU);
    }
}
struct Mul24Lo {
    template <typename T>
    GANTRY_INLINE static T apply(T a, T b) {
        return static_cast<T>(product24(a, b));
    }
};
struct Mul24Hi {
    template <typename T>
    GANTRY_INLINE static T apply(T a, T b) {
        return static_cast<T>(product24(a, b) >> 16);
    }
};

struct Abs {
    template <typename T>
    GANTRY_INLINE static T apply(T a) {
        return a < 0 ? Sub::apply(T(0), a) : a;
    }
};
struct Neg {
    template <typename T>
    GANTRY_INLINE static T apply(T a) {
        return Sub::apply(T(0), a);
    }
};
struct Not {
    template <typename T>
    GANTRY_INLINE static T apply(T a) {
        return static_cast<T>(~a);
    }
};
struct Cnot {
    template <typename T>
    GANTRY_INLINE static T apply(T a) {
        return a == 0 ? T(1) : T(0);
    }
};
struct Mov {
    template <typename T>
    GANTRY_INLINE static T apply(T a) {
        return a;
    }
};

struct MadLo {
    template <typename T>
    GANTRY_INLINE static T apply(T a, T b, T c) {
        return Add::apply(wrap_mul(a, b), c);
    }
};
struct MadHi {
    template <typename T>
    GANTRY_INLINE static T apply(T a, T b, T c) {
        return Add::apply(mul_hi(a, b), c);
    }
};
struct MadWide {
    template <typename T>
    GANTRY_INLINE static Wide<T> apply(T a, T b, Wide<T> c) {
        return Add::apply(MulWide::apply(a, b), c);
    }
};
struct MadHiSat {
    GANTRY_INLINE static s32 apply(s32 a, s32 b, s32 c) {
        return saturate32(s64{mul_hi(a, b)} + c);
    }
};
struct Mad24Lo {
    template <typename T>
    GANTRY_INLINE static T apply(T a, T b, T c) {
        return Add::apply(Mul24Lo::apply(a, b), c);
    }
};
struct Mad24Hi {
    template <typename T>
    GANTRY_INLINE static T apply(T a, T b, T c) {
        return Add::apply(Mul24Hi::apply(a, b), c);
    }
};
struct Mad24HiSat {
    GANTRY_INLINE static s32 apply(s32 a, s32 b, s32 c) {
        return saturate32(s64{Mul24Hi::apply(a, b)} + c);
    }
};
struct Sad {
    template <typename T>
    GANTRY_INLINE static T apply(T a, T b, T c) {
        return Add::apply(a < b ? Sub::apply(b, a) : Sub::apply(a, b), c);
    }
};

template <typename Op, typename... Types>
void put_binary(HandlerTable& table, Binary op, std::initializer_list<Elem> elems) {
    Handler made[] = {&binary<Op, Types>...};
    int at = 0;
    for (const Elem elem : elems) {
        table.binary[index_of(op)][index_of(elem)] = made[at++];
    }
}

template <typename Op, typename... Types>
void put_unary(HandlerTable& table, Unary op, std::initializer_list<Elem> elems) {
    Handler made[] = {&unary<Op, Types>...};
    int at = 0;
    for (const Elem elem : elems) {
        table.unary[index_of(op)][index_of(elem)] = made[at++];
    }
}

template <typename Op, typename... Types>
void put_ternary(HandlerTable& table, Ternary op, std::initializer_list<Elem> elems) {
    Handler made[] = {&ternary<Op, Types>...};
    int at = 0;
    for (const Elem elem : elems) {
        table.ternary[index_of(op)][index_of(elem)] = made[at++];
    }
}

template <typename Op>
void put_all(HandlerTable& table, Binary op) {
    put_binary<Op, u16, s16, u32, s32, u64, s64>(
        table, op, {Elem::kU16, Elem::kS16, Elem::kU32, Elem::kS32, Elem::kU64, Elem::kS64});
}

template <typename Op>
void put_shift(HandlerTable& table, Binary op) {
    Handler* row = table.binary[index_of(op)];
    row[index_of(Elem::kU16)] = &shift<Op, u16>;
    row[index_of(Elem::kS16)] = &shift<Op, s16>;
    row[index_of(Elem::kU32)] = &shift<Op, u32>;
    row[index_of(Elem::kS32)] = &shift<Op, s32>;
    row[index_of(Elem::kU64)] = &shift<Op, u64>;
    row[index_of(Elem::kS64)] = &shift<Op, s64>;
}

template <typename Op>
void put_ternary_all(HandlerTable& table, Ternary op) {
    put_ternary<Op, u16, s16, u32, s32, u64, s64>(
        table, op, {Elem::kU16, Elem::kS16, Elem::kU32, Elem::kS32, Elem::kU64, Elem::kS64});
}

void fill_wide(HandlerTable& table) {
    Handler* mul = table.binary[index_of(Binary::kMulWide)];
    mul[index_of(Elem::kU16)] = &binary<MulWide, u16, u32>;
    mul[index_of(Elem::kS16)] = &binary<MulWide, s16, s32>;
    mul[index_of(Elem::kU32)] = &binary<MulWide, u32, u64>;
    mul[index_of(Elem::kS32)] = &binary<MulWide, s32, s64>;
    Handler* mad = table.ternary[index_of(Ternary::kMadWide)];
    mad[index_of(Elem::kU16)] = &ternary<MadWide, u16, u32>;
    mad[index_of(Elem::kS16)] = &ternary<MadWide, s16, s32>;
    mad[index_of(Elem::kU32)] = &ternary<MadWide, u32, u64>;
    mad[index_of(Elem::kS32)] = &ternary<MadWide, s32, s64>;
}

}  // namespace

void fill_integer(HandlerTable& table) {
    put_all<Add>(table, Binary::kAdd);
    put_all<Sub>(table, Binary::kSub);
    put_all<MulLo>(table, Binary::kMulLo);
    put_all<MulHi>(table, Binary::kMulHi);
    put_all<Div>(table, Binary::kDiv);
    put_all<Rem>(table, Binary::kRem);
    put_all<Min>(table, Binary::kMin);
    put_all<Max>(table, Binary::kMax);
    put_all<And>(table, Binary::kAnd);
    put_all<Or>(table, Binary::kOr);
    put_all<Xor>(table, Binary::kXor);
    put_shift<Shl>(table, Binary::kShl);
    put_shift<Shr>(table, Binary::kShr);
    put_binary<AddSat, s32>(table, Binary::kAddSat, {Elem::kS32});
    put_binary<SubSat, s32>(table, Binary::kSubSat, {Elem::kS32});
    put_binary<Mul24Lo, u32, s32>(table, Binary::kMul24Lo, {Elem::kU32, Elem::kS32});
    put_binary<Mul24Hi, u32, s32>(table, Binary::kMul24Hi, {Elem::kU32, Elem::kS32});
    fill_wide(table);
    put_unary<Abs, s16, s32, s64>(table, Unary::kAbs, {Elem::kS16, Elem::kS32, Elem::kS64});
    put_unary<Neg, s16, s32, s64>(table, Unary::kNeg, {Elem::kS16, Elem::kS32, Elem::kS64});
    put_unary<Not, u16, u32, u64>(table, Unary::kNot, {Elem::kU16, Elem::kU32, Elem::kU64});
    put_unary<Cnot, u16, u32, u64>(table, Unary::kCnot, {Elem::kU16, Elem::kU32, Elem::kU64});
    put_unary<Mov, u32, u32, u64>(table, Unary::kMov, {Elem::kU16, Elem::kU32, Elem::kU64});
    put_ternary_all<MadLo>(table, Ternary::kMadLo);
    put_ternary_all<MadHi>(table, Ternary::kMadHi);
    put_ternary_all<Sad>(table, Ternary::kSad);
    put_ternary<MadHiSat, s32>(table, Ternary::kMadHiSat, {Elem::kS32});
    put_ternary<Mad24Lo, u32, s32>(table, Ternary::kMad24Lo, {Elem::kU32, Elem::kS32});
    put_ternary<Mad24Hi, u32, s32>(table, Ternary::kMad24Hi, {Elem::kU32, Elem::kS32});
    put_ternary<Mad24HiSat, s32>(table, Ternary::kMad24HiSat, {Elem::kS32});
}

}  // namespace gantry::softgpu::GANTRY_ISA_NAMESPACE
