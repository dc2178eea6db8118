// The addresses of all lanes of an ld or st: formed, checked (alignment, window) and classified
// together.
#pragma once

#include "host-daemon/softgpu/engine/isa/lanes.h"

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

/// Forms, checks and classifies the addresses of `size`-byte accesses.
template <Access A>
GANTRY_INLINE void form_addresses_here(Warp& warp, const Inst* inst, u32 size, Addresses& out) {
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
    const u64 first = base + offset_of<A>(warp, inst, 0);
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
                bad |= ((mask >> lane) & 1U) != 0 ? wrong : 0;
            } else {
                bad |= wrong;
            }
            uneven |= address ^ (first + static_cast<u64>(lane) * size);
            unlike |= address ^ first;
        }
    };
    if (mask == kAllLanes) [[likely]] {
        form(std::false_type{});
    } else {
        form(std::true_type{});
    }
    out.contiguous = uneven == 0;
    out.uniform = unlike == 0;
    if (bad != 0) [[unlikely]] {
        report(warp, inst, out.at, base, stride, limit, size);
    }
    warp.thread->inst = inst;
    if constexpr (A == Access::kFlat) {
        warp.thread->polls += inst->flags & 1U;
    }
}

/// Built once per way of addressing; the most frequent accesses have it inline instead.
template <Access A>
[[gnu::noinline]] void form_addresses_apart(Warp& warp, const Inst* inst, u32 size,
                                            Addresses& out) {
    form_addresses_here<A>(warp, inst, size, out);
}

template <Access A, bool Here>
GANTRY_INLINE void form_addresses(Warp& warp, const Inst* inst, u32 size, Addresses& out) {
    if constexpr (Here) {
        form_addresses_here<A>(warp, inst, size, out);
    } else {
        form_addresses_apart<A>(warp, inst, size, out);
    }
}

}  // namespace
}  // namespace gantry::softgpu::GANTRY_ISA_NAMESPACE
