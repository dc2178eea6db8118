// atom and red. inst->a: address slot, imm: offset, d: Access, b: operand, c: second operand of
// cas, dst: old value (flags bit 0: wanted), aux: AtomicOp.
//
// Lanes act one after another, lowest first. Global memory is shared by OS threads, so the host's
// atomic instructions are used; a block's shared memory belongs to one thread, so plain ones do.
// Floating sums are compare-and-swap loops in the order of lanes.
#include "host-daemon/softgpu/engine/exec/atomic.h"

#include <cmath>
#include <cstring>

#include "host-daemon/softgpu/engine/exec/addresses.h"
#include "host-daemon/softgpu/engine/exec/handlers.h"
#include "host-daemon/softgpu/engine/numbers.h"
#include "host-daemon/softgpu/engine/warp.h"

namespace gantry::softgpu::exec {
namespace {

using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

template <typename T>
T as(u64 bits) {
    T value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

template <typename T>
T smaller(T a, T b) {
    return b < a ? b : a;
}
template <typename T>
T larger(T a, T b) {
    return a < b ? b : a;
}

/// Sum, minimum and maximum of half formats, rounded once.
u32 half_op(AtomicOp op, u32 a, u32 b, const SmallFormat& format) {
    const double x = double_from_small(a & 0xffffU, format);
    const double y = double_from_small(b & 0xffffU, format);
    double result = x + y;
    if (op == AtomicOp::kMin || op == AtomicOp::kMax) {
        const bool low = op == AtomicOp::kMin;
        const bool first = x == y ? std::signbit(x) == low : (x < y) == low;  // -0 < +0
        result = std::isnan(x) ? y : std::isnan(y) ? x : first ? x : y;
    }
    return small_from_double(result, format, false);
}

u32 pair_op(AtomicOp op, u32 a, u32 b, const SmallFormat& format) {
    return half_op(op, a, b, format) | (half_op(op, a >> 16, b >> 16, format) << 16);
}

/// The new value of a cell of integer type T (as stored) for an operation on `Kind`.
template <typename T>
T next_value(AtomicOp op, AtomicKind kind, T old, T value, T other) {
    using S = std::make_signed_t<T>;
    switch (op) {
        case AtomicOp::kExch: return value;
        case AtomicOp::kCas: return old == value ? other : old;
        case AtomicOp::kAnd: return old & value;
        case AtomicOp::kOr: return old | value;
        case AtomicOp::kXor: return old ^ value;
        case AtomicOp::kInc: return old >= value ? T(0) : static_cast<T>(old + 1);
        case AtomicOp::kDec: return old == 0 || old > value ? value : static_cast<T>(old - 1);
        default: break;
    }
    const bool add = op == AtomicOp::kAdd;
    const bool low = op == AtomicOp::kMin;
    switch (kind) {
        case AtomicKind::kSigned:
            if (!add) {
                const S a = static_cast<S>(old);
                const S b = static_cast<S>(value);
                return static_cast<T>(low ? smaller(a, b) : larger(a, b));
            }
            break;
        case AtomicKind::kF32: {
            const float a = as<float>(old);
            const float b = as<float>(value);
            const float result = add ? a + b : low ? std::fmin(a, b) : std::fmax(a, b);
            u32 bits = 0;
            std::memcpy(&bits, &result, 4);
            return static_cast<T>(result != result ? 0x7fffffffU : bits);
        }
        case AtomicKind::kF64:
            if constexpr (sizeof(T) == 8) {
                const double a = as<double>(old);
                const double b = as<double>(value);
                const double result = add ? a + b : low ? std::fmin(a, b) : std::fmax(a, b);
                return as<T>(as<u64>(0) | [&] {
                    u64 bits = 0;
                    std::memcpy(&bits, &result, 8);
                    return bits;
                }());
            }
            break;
        case AtomicKind::kF16:
            return static_cast<T>(
                half_op(op, static_cast<u32>(old), static_cast<u32>(value), kHalf));
        case AtomicKind::kBf16:
            return static_cast<T>(
                half_op(op, static_cast<u32>(old), static_cast<u32>(value), kBfloat));
        case AtomicKind::kF16x2:
            return static_cast<T>(
                pair_op(op, static_cast<u32>(old), static_cast<u32>(value), kHalf));
        case AtomicKind::kBf16x2:
            return static_cast<T>(
                pair_op(op, static_cast<u32>(old), static_cast<u32>(value), kBfloat));
        default: break;
    }
    return add ? static_cast<T>(old + value) : low ? smaller(old, value) : larger(old, value);
}

/// Puts next(old) in the place of old, for all threads at once; returns old.
template <typename T, typename Next>
T replace(T* cell, Next next) {
    T old = __atomic_load_n(cell, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n(cell, &old, next(old), false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST)) {
    }
    return old;
}

template <typename T>
T perform(AtomicOp op, AtomicKind kind, T* cell, T value, T other, bool locked) {
    if (!locked) {
        const T old = *cell;
        *cell = next_value(op, kind, old, value, other);
        return old;
    }
    const bool integer = kind == AtomicKind::kUnsigned || kind == AtomicKind::kSigned;
    switch (op) {
        case AtomicOp::kExch: return __atomic_exchange_n(cell, value, __ATOMIC_SEQ_CST);
        case AtomicOp::kAnd: return __atomic_fetch_and(cell, value, __ATOMIC_SEQ_CST);
        case AtomicOp::kOr: return __atomic_fetch_or(cell, value, __ATOMIC_SEQ_CST);
        case AtomicOp::kXor: return __atomic_fetch_xor(cell, value, __ATOMIC_SEQ_CST);
        case AtomicOp::kCas: {
            T expected = value;
            __atomic_compare_exchange_n(cell, &expected, other, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST);
            return expected;
        }
        case AtomicOp::kAdd:
            if (integer) {
                return __atomic_fetch_add(cell, value, __ATOMIC_SEQ_CST);
            }
            break;
        default: break;
    }
    return replace(cell, [&](T old) { return next_value(op, kind, old, value, other); });
}

/// `change(cell, lane)` for each active lane gives what was there before.
template <typename T, typename S, typename Change>
const Inst* change_cells(Warp& warp, const Inst* inst, Access access, Change change) {
    S* out = warp.slot<S>(inst->dst);
    warp.thread->inst = inst;
    warp.thread->polls += 1;
    for (u32 mask = warp.mask; mask != 0; mask &= mask - 1) {
        const auto lane = static_cast<u32>(__builtin_ctz(mask));
        const u64 at =
            lane_address(warp, inst, access, Touch::kWrite, inst->a, inst->imm, lane, sizeof(T));
        const T old = change(reinterpret_cast<T*>(at), lane);
        if ((inst->flags & 1U) != 0) {
            out[lane] = old;
        }
    }
    return inst + 1;
}

template <typename T, typename S>
const Inst* do_atomic(Warp& warp, const Inst* inst) {
    warp.thread->set_fp_mode(kFpNearest);
    const auto op = static_cast<AtomicOp>(inst->aux & 0xffU);
    const auto kind = static_cast<AtomicKind>(inst->aux >> 8);
    const auto access = static_cast<Access>(inst->d);
    const bool locked = access == Access::kFlat;
    const S* values = warp.slot<S>(inst->b);
    const S* others = warp.slot<S>(inst->c);
    return change_cells<T, S>(warp, inst, access, [&](T* cell, u32 lane) {
        return perform<T>(op, kind, cell, static_cast<T>(values[lane]),
                          static_cast<T>(others[lane]), locked);
    });
}

u32 flushed(u32 bits) { return (bits & 0x7f800000U) == 0 ? bits & 0x80000000U : bits; }

/// add.f32 through a flat address: global memory flushes denormals, shared memory does not.
const Inst* do_flat_sum(Warp& warp, const Inst* inst) {
    warp.thread->set_fp_mode(kFpNearest);
    const u32* values = warp.slot<u32>(inst->b);
    return change_cells<u32, u32>(warp, inst, Access::kFlat, [&](u32* cell, u32 lane) {
        const bool keep = in_shared(warp, reinterpret_cast<u64>(cell));
        const auto kept = [keep](u32 bits) { return keep ? bits : flushed(bits); };
        const u32 value = kept(values[lane]);
        return replace(cell, [&](u32 old) {
            return kept(next_value(AtomicOp::kAdd, AtomicKind::kF32, kept(old), value, value));
        });
    });
}

/// 128-bit exchange and compare-and-swap; slots hold low halves, then high halves.
const Inst* do_atomic128(Warp& warp, const Inst* inst) {
    const auto op = static_cast<AtomicOp>(inst->aux & 0xffU);
    const auto access = static_cast<Access>(inst->d);
    const u64* values = warp.slot<u64>(inst->b);
    const u64* others = warp.slot<u64>(inst->c);
    u64* out = warp.slot<u64>(inst->dst);
    warp.thread->inst = inst;
    warp.thread->polls += 1;
    for (u32 mask = warp.mask; mask != 0; mask &= mask - 1) {
        const auto lane = static_cast<u32>(__builtin_ctz(mask));
        const u64 address =
            lane_address(warp, inst, access, Touch::kWrite, inst->a, inst->imm, lane, 16);
        u64 low = 0;
        u64 high = 0;
        while (true) {
            // cmpxchg16b also serves as the load: an unequal compare returns what is there.
            const u64 wanted_low = op == AtomicOp::kCas ? values[lane] : low;
            const u64 wanted_high = op == AtomicOp::kCas ? values[kLanes + lane] : high;
            u64 new_low = op == AtomicOp::kCas ? others[lane] : values[lane];
            u64 new_high = op == AtomicOp::kCas ? others[kLanes + lane] : values[kLanes + lane];
            bool done = false;
            low = wanted_low;
            high = wanted_high;
            __asm__ volatile("lock cmpxchg16b %1"
                             : "=@ccz"(done), "+m"(*reinterpret_cast<volatile __int128*>(address)),
                               "+a"(low), "+d"(high)
                             : "b"(new_low), "c"(new_high)
                             : "memory");
            if (done || op == AtomicOp::kCas) {
                break;
            }
        }
        if ((inst->flags & 1U) != 0) {
            out[lane] = low;
            out[kLanes + lane] = high;
        }
    }
    return inst + 1;
}

}  // namespace

Handler atomic(unsigned bits) {
    switch (bits) {
        case 16: return &do_atomic<u16, u32>;
        case 32: return &do_atomic<u32, u32>;
        case 64: return &do_atomic<u64, u64>;
        case 128: return &do_atomic128;
        default: return nullptr;
    }
}

Handler flat_sum() { return &do_flat_sum; }

}  // namespace gantry::softgpu::exec
