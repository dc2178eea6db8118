// bar, barrier and fences. inst->a: id, b: thread count (0: all), aux: 0 sync, 1 arrive,
// 2 to 4 red.popc/and/or with the predicate at c; 5 and 6: cluster arrive and wait, which for
// clusters of one block need no partner.
#include <atomic>

#include "host-daemon/softgpu/engine/exec/handlers.h"
#include "host-daemon/softgpu/engine/run/scheduler.h"
#include "host-daemon/softgpu/engine/warp.h"

namespace gantry::softgpu {

void write_barrier_result(Warp& warp, const Inst* inst, std::uint32_t lanes,
                          const Barrier& barrier) {
    if (inst->aux == 2) {
        std::uint32_t* out = warp.slot<std::uint32_t>(inst->dst);
        for (std::uint32_t left = lanes; left != 0; left &= left - 1) {
            out[__builtin_ctz(left)] = barrier.popc;
        }
        return;
    }
    std::uint32_t& p = warp.predicate(inst->dst);
    const bool result = inst->aux == 3 ? barrier.all : barrier.any;
    p = (p & ~lanes) | (result ? lanes : 0U);
}

namespace exec {
namespace {

/// Lanes that name the same barrier and count as the first one left.
std::uint32_t same_barrier(Warp& warp, const Inst* inst, std::uint32_t left) {
    const std::uint32_t* id = warp.slot<std::uint32_t>(inst->a);
    const std::uint32_t* count = warp.slot<std::uint32_t>(inst->b);
    const auto first = static_cast<std::uint32_t>(__builtin_ctz(left));
    std::uint32_t same = 0;
    for (std::uint32_t rest = left; rest != 0; rest &= rest - 1) {
        const auto lane = static_cast<std::uint32_t>(__builtin_ctz(rest));
        same |= id[lane] == id[first] && count[lane] == count[first] ? 1U << lane : 0U;
    }
    return same;
}

const Inst* do_barrier(Warp& warp, const Inst* inst) {
    if (inst->aux >= 5) {
        return inst + 1;
    }
    const bool wait = inst->aux != 1;
    const std::uint32_t mask = warp.mask;
    std::uint32_t left = mask;
    while (left != 0) {
        const auto first = static_cast<std::uint32_t>(__builtin_ctz(left));
        const std::uint32_t lanes = same_barrier(warp, inst, left);
        left &= ~lanes;
        const std::uint32_t id = warp.slot<std::uint32_t>(inst->a)[first];
        const std::uint32_t count = warp.slot<std::uint32_t>(inst->b)[first];
        if (id >= kBarriers) {
            raise_fault(warp, inst, LaunchError::kIllegalInstruction, first, id,
                        "barrier number above 15");
        }
        if (inst->aux >= 2) {
            Barrier& barrier = warp.block->barriers[id];
            const std::uint32_t p = warp.predicate(inst->c) ^ (inst->flags != 0 ? kAllLanes : 0U);
            barrier.popc += static_cast<std::uint32_t>(__builtin_popcount(p & lanes));
            barrier.all = barrier.all && (p & lanes) == lanes;
            barrier.any = barrier.any || (p & lanes) != 0;
        }
        (void)arrive_at_barrier(warp, inst, id, count, lanes, wait);
    }
    if (!wait) {
        return inst + 1;
    }
    return stop_instruction();
}

const Inst* do_fence(Warp&, const Inst* inst) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return inst + 1;
}

}  // namespace

Handler barrier() { return &do_barrier; }
Handler fence() { return &do_fence; }

}  // namespace exec
}  // namespace gantry::softgpu
