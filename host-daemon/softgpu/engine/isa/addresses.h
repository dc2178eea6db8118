// The addresses of all lanes of an ld or st: formed, checked (alignment, window, reach) and
// classified together.
//
// What a flat access may touch costs two comparisons in the common case: all lanes' addresses lie
// in the smallest aligned block around one of them that has their differing bits, and that block
// lies in the span where the instruction was last. Otherwise every lane is looked at.
#pragma once

#include "host-daemon/softgpu/engine/exec/touch.h"
#include "host-daemon/softgpu/engine/isa/lanes.h"
#include "host-daemon/softgpu/engine/windows.h"

namespace gantry::softgpu::GANTRY_ISA_NAMESPACE {
namespace {

struct Addresses {
    alignas(64) u64 at[kLanes];
    bool contiguous;
    bool uniform;
};

template <Access A>
GANTRY_INLINE u64 offset_of(const Warp& warp, const Inst* inst, int lane) {
    if constexpr (A == Access::kFlat || A == Access::kShared64 || A == Access::kLocal64) {
        return warp.slot<u64>(inst->a)[lane] + static_cast<u64>(inst->imm);
    } else if constexpr (A == Access::kFrame) {
        return warp.frame[static_cast<std::size_t>(lane)] + static_cast<u64>(inst->imm);
    } else {
        return static_cast<u32>(warp.slot<u32>(inst->a)[lane] + static_cast<u32>(inst->imm));
    }
}

[[gnu::cold, gnu::noinline]] void report(Warp& warp, const Inst* inst, const u64* at, u64 base,
                                         u64 stride, u64 limit, u32 size) {
    for (u32 mask = warp.mask; mask != 0; mask &= mask - 1) {
        const u32 lane = static_cast<u32>(__builtin_ctz(mask));
        const u64 offset = at[lane] - base - stride * lane;
        if (offset > limit || limit - offset < size) {
            raise_fault(warp, inst, LaunchError::kIllegalAddress, lane, offset,
                        stride != 0 ? "address outside the thread's local memory"
                                    : "address outside the block's shared memory");
        }
        if ((at[lane] & (size - 1)) != 0) {
            raise_fault(warp, inst, LaunchError::kMisalignedAddress, lane, at[lane],
                        "misaligned address");
        }
    }
}

/// Whether all active lanes' accesses lie in a window of `bytes` bytes.
inline bool all_in(u32 mask, const u64* at, u64 window, u64 bytes, u32 size) {
    if (bytes < size) {
        return false;
    }
    const u64 room = bytes - size;
    u64 outside = 0;
    GANTRY_LANES
    for (int lane = 0; lane < kLanes; ++lane) {
        outside |= static_cast<u64>(at[lane] - window > room) & (u64{mask >> lane} & 1U);
    }
    return outside == 0;
}

/// Turns flat addresses into those behind them where these differ, and ends the launch for one that
/// the kernel may not touch.
[[gnu::noinline]] void resolve(Warp& warp, const Inst* inst, u32 size, Touch touch,
                               Addresses& out) {
    const u32 mask = warp.mask;
    const ReachSpan span = warp.thread->reach.of(inst, touch);
    if (span.last > span.begin &&
        all_in(mask, out.at, span.begin, span.last - span.begin + 1, size)) [[likely]] {
        return;
    }
    if (all_in(mask, out.at, kSharedWindow, warp.block->shared_bytes, size)) {
        const u64 to = reinterpret_cast<u64>(warp.block->shared) - kSharedWindow;
        for (int lane = 0; lane < kLanes; ++lane) {
            out.at[lane] += to;
        }
        return;  // They still are as contiguous or uniform as they were.
    }
    if (all_in(mask, out.at, kLocalWindow, warp.local_stride, size)) {
        const u64 to = reinterpret_cast<u64>(warp.local) - kLocalWindow;
        for (int lane = 0; lane < kLanes; ++lane) {
            out.at[lane] += to + u64{warp.local_stride} * static_cast<u64>(lane);
        }
    } else {
        for_active(mask, [&](int lane) {
            out.at[lane] =
                exec::flat_address(warp, inst, touch, static_cast<u32>(lane), out.at[lane], size);
        });
    }
    u64 uneven = 0;
    u64 unlike = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
        uneven |= out.at[lane] ^ (out.at[0] + static_cast<u64>(lane) * size);
        unlike |= out.at[lane] ^ out.at[0];
    }
    out.contiguous = uneven == 0;
    out.uniform = unlike == 0;
}

/// Forms, checks and classifies the addresses of `size`-byte accesses.
template <Access A>
GANTRY_INLINE void form_addresses_here(Warp& warp, const Inst* inst, u32 size, Touch touch,
                                       Addresses& out) {
    constexpr bool kShared = A == Access::kShared32 || A == Access::kShared64;
    constexpr bool kLocal = A == Access::kLocal32 || A == Access::kLocal64 || A == Access::kFrame;
    u64 base = 0;
    u64 stride = 0;
    u64 limit = ~u64{0};
    if constexpr (kShared) {
        base = reinterpret_cast<u64>(warp.block->shared);
        limit = warp.block->shared_bytes;
    } else if constexpr (kLocal) {
        base = reinterpret_cast<u64>(warp.local);
        stride = warp.local_stride;
        limit = stride;
    }
    const u32 mask = warp.mask;
    u64 bad = 0;
    u64 uneven = 0;
    u64 unlike = 0;
    // Lanes that are not active may hold anything.
    const u32 leader = mask == kAllLanes ? 0 : static_cast<u32>(__builtin_ctz(mask));
    const u64 first = base + stride * leader + offset_of<A>(warp, inst, static_cast<int>(leader));
    const u64 room = limit >= size ? limit - size : 0;
    const bool no_room = limit < size;
    const auto form = [&](auto masked) {
        GANTRY_LANES
        for (int lane = 0; lane < kLanes; ++lane) {
            const u64 offset = offset_of<A>(warp, inst, lane);
            const u64 address = base + stride * static_cast<u64>(lane) + offset;
            out.at[lane] = address;
            u64 wrong = address & (size - 1);
            if constexpr (kShared || kLocal) {
                wrong |= static_cast<u64>(offset > room || no_room);
            }
            if constexpr (masked.value) {
                const u64 active = u64{0} - ((mask >> lane) & 1U);
                bad |= wrong & active;
                unlike |= (address ^ first) & active;
            } else {
                bad |= wrong;
                uneven |= address ^ (first + static_cast<u64>(lane) * size);
                unlike |= address ^ first;
            }
        }
    };
    if (mask == kAllLanes) [[likely]] {
        form(std::false_type{});
    } else {
        form(std::true_type{});
    }
    out.contiguous = uneven == 0;  // Both are asked of all lanes only.
    out.uniform = unlike == 0;
    if (bad != 0) [[unlikely]] {
        report(warp, inst, out.at, base, stride, limit, size);
    }
    warp.thread->inst = inst;
    if constexpr (A == Access::kFlat) {
        warp.thread->polls += inst->flags & 1U;
        const u64 low_bits = ~u64{0} >> __builtin_clzll(unlike | (size - 1) | 1U);
        const ReachSpan& span = warp.thread->reach.of(inst, touch);
        if ((first & ~low_bits) < span.begin || (first | low_bits) > span.last) [[unlikely]] {
            resolve(warp, inst, size, touch, out);
        }
    }
}

/// Built once per way of addressing; the most frequent accesses have it inline instead.
template <Access A>
[[gnu::noinline]] void form_addresses_apart(Warp& warp, const Inst* inst, u32 size, Touch touch,
                                            Addresses& out) {
    form_addresses_here<A>(warp, inst, size, touch, out);
}

template <Access A, bool Here>
GANTRY_INLINE void form_addresses(Warp& warp, const Inst* inst, u32 size, Touch touch,
                                  Addresses& out) {
    if constexpr (Here) {
        form_addresses_here<A>(warp, inst, size, touch, out);
    } else {
        form_addresses_apart<A>(warp, inst, size, touch, out);
    }
}

}  // namespace
}  // namespace gantry::softgpu::GANTRY_ISA_NAMESPACE
