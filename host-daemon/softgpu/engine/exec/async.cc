#include "host-daemon/softgpu/engine/exec/async.h"

#include <algorithm>
#include <cstring>

#include "host-daemon/softgpu/engine/exec/addresses.h"
#include "host-daemon/softgpu/engine/warp.h"

namespace gantry::softgpu::exec {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s64 = std::int64_t;

constexpr u64 kCount = 0xfffff;
constexpr int kExpectedShift = 20;
constexpr int kBytesShift = 40;
constexpr u64 kBytesField = 0x3fffff;
constexpr s64 kBytesBias = 0x200000;
constexpr u64 kPhase = u64{1} << 63;

struct State {
    u64 pending;
    u64 expected;
    s64 bytes;
    bool phase;
};

State unpack(u64 word) {
    return {word & kCount, (word >> kExpectedShift) & kCount,
            static_cast<s64>((word >> kBytesShift) & kBytesField) - kBytesBias,
            (word & kPhase) != 0};
}

u64 pack(State state) {
    if (state.pending == 0 && state.bytes == 0) {
        state.pending = state.expected;
        state.phase = !state.phase;
    }
    return (state.pending & kCount) | ((state.expected & kCount) << kExpectedShift) |
           ((static_cast<u64>(state.bytes + kBytesBias) & kBytesField) << kBytesShift) |
           (state.phase ? kPhase : 0);
}

void complete_bytes(Warp& warp, const Inst* inst, u32 slot, u32 lane, u64 bytes) {
    // Barriers are named by 32-bit shared addresses here.
    auto* word = reinterpret_cast<u64*>(
        lane_address(warp, inst, Access::kShared32, Touch::kWrite, slot, 0, lane, 8));
    State state = unpack(*word);
    state.bytes -= static_cast<s64>(bytes);
    *word = pack(state);
}

const Inst* do_copy_async(Warp& warp, const Inst* inst) {
    const u64* from = warp.slot<u64>(inst->b);
    const u32* bytes = warp.slot<u32>(inst->c);
    warp.thread->inst = inst;
    for (u32 mask = warp.mask; mask != 0; mask &= mask - 1) {
        const auto lane = static_cast<u32>(__builtin_ctz(mask));
        const u64 to = lane_address(warp, inst, static_cast<Access>(inst->d), Touch::kWrite,
                                    inst->a, inst->imm, lane, inst->aux);
        const u64 source = from[lane] + static_cast<s64>(static_cast<std::int32_t>(inst->e));
        const u32 count = std::min<u32>(bytes[lane], inst->aux);
        if (count != 0 && (source & (inst->aux - 1U)) != 0) {
            raise_fault(warp, inst, LaunchError::kMisalignedAddress, lane, source,
                        "misaligned address");
        }
        std::uint8_t data[16] = {};
        if (count != 0) {
            const u64 from_host = flat_address(warp, inst, Touch::kRead, lane, source, count);
            std::memcpy(data, reinterpret_cast<const void*>(from_host), count);
        }
        std::memcpy(reinterpret_cast<void*>(to), data, inst->aux);
    }
    return inst + 1;
}

u64 bulk_address(Warp& warp, const Inst* inst, Touch touch, u32 slot, u32 lane, bool shared,
                 bool narrow, u32 size) {
    if (!shared) {
        const u64 address = warp.slot<u64>(slot)[lane];
        const bool looked_up = size != 0 && address % 16 == 0;  // Else it is misaligned, or unused.
        return looked_up ? flat_address(warp, inst, touch, lane, address, size) : address;
    }
    const u64 offset = narrow ? warp.slot<u32>(slot)[lane] : warp.slot<u64>(slot)[lane];
    const u64 limit = warp.block->shared_bytes;
    if (offset > limit || limit - offset < size) {
        raise_fault(warp, inst, LaunchError::kIllegalAddress, lane, offset,
                    "address outside the block's shared memory");
    }
    return reinterpret_cast<u64>(warp.block->shared) + offset;
}

const Inst* do_copy_bulk(Warp& warp, const Inst* inst) {
    const u32* bytes = warp.slot<u32>(inst->c);
    warp.thread->inst = inst;
    for (u32 mask = warp.mask; mask != 0; mask &= mask - 1) {
        const auto lane = static_cast<u32>(__builtin_ctz(mask));
        const u64 to = bulk_address(warp, inst, Touch::kWrite, inst->a, lane,
                                    (inst->flags & 1U) != 0, (inst->flags & 4U) != 0, bytes[lane]);
        const u64 from =
            bulk_address(warp, inst, Touch::kRead, inst->b, lane, (inst->flags & 2U) != 0,
                         (inst->flags & 8U) != 0, bytes[lane]);
        if (((to | from | bytes[lane]) & 15U) != 0) {
            raise_fault(warp, inst, LaunchError::kMisalignedAddress, lane, to | from,
                        "bulk copies need addresses and sizes in steps of 16");
        }
        std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes[lane]);
        if (inst->e != kAllLanes) {
            complete_bytes(warp, inst, inst->e, lane, bytes[lane]);
        }
    }
    return inst + 1;
}

const Inst* do_mbarrier(Warp& warp, const Inst* inst) {
    const auto op = static_cast<BarrierOp>(inst->aux);
    const u32* argument = warp.slot<u32>(inst->b);
    const u64* token = warp.slot<u64>(inst->b);
    u32 answers = 0;
    warp.thread->inst = inst;
    if ((inst->flags & 2U) != 0) {
        warp.thread->polls += 1;
    }
    for (u32 mask = warp.mask; mask != 0; mask &= mask - 1) {
        const auto lane = static_cast<u32>(__builtin_ctz(mask));
        if (op == BarrierOp::kPending) {
            warp.slot<u32>(inst->dst)[lane] = static_cast<u32>(token[lane] & kCount);
            continue;
        }
        auto* word = reinterpret_cast<u64*>(lane_address(
            warp, inst, static_cast<Access>(inst->d), Touch::kWrite, inst->a, inst->imm, lane, 8));
        const u64 before = *word;
        State state = unpack(before);
        switch (op) {
            case BarrierOp::kInit:
                *word = (u64{argument[lane]} & kCount) |
                        ((u64{argument[lane]} & kCount) << kExpectedShift) |
                        (static_cast<u64>(kBytesBias) << kBytesShift);
                break;
            case BarrierOp::kInvalidate: *word = 0; break;
            case BarrierOp::kArrive:
                state.pending -= std::min<u64>(argument[lane], state.pending);
                *word = pack(state);
                break;
            case BarrierOp::kArriveDrop:
                state.pending -= std::min<u64>(argument[lane], state.pending);
                state.expected -= std::min<u64>(argument[lane], state.expected);
                *word = pack(state);
                break;
            case BarrierOp::kArriveExpect:
                state.bytes += argument[lane];
                state.pending -= std::min<u64>(1, state.pending);
                *word = pack(state);
                break;
            case BarrierOp::kExpect:
                state.bytes += argument[lane];
                *word = pack(state);
                break;
            case BarrierOp::kComplete:
                state.bytes -= argument[lane];
                *word = pack(state);
                break;
            case BarrierOp::kTest:
                answers |= static_cast<u32>(state.phase != ((token[lane] & kPhase) != 0)) << lane;
                break;
            case BarrierOp::kTestParity:
                answers |= static_cast<u32>(state.phase != ((argument[lane] & 1U) != 0)) << lane;
                break;
            case BarrierOp::kPending: break;
        }
        if ((inst->flags & 1U) != 0 && op != BarrierOp::kTest && op != BarrierOp::kTestParity) {
            warp.slot<u64>(inst->dst)[lane] = before;
        }
    }
    if (op == BarrierOp::kTest || op == BarrierOp::kTestParity) {
        u32& p = warp.predicate(inst->dst);
        p = (p & ~warp.mask) | answers;
    }
    return inst + 1;
}

}  // namespace

Handler copy_async() { return &do_copy_async; }
Handler copy_bulk() { return &do_copy_bulk; }
Handler mbarrier() { return &do_mbarrier; }

}  // namespace gantry::softgpu::exec
