// The rules that real programs were seen to rely on:
// - Within a warp the lowest instruction runs first, and fragments that meet become one; so
//   lanes reconverge as early as they can. After kPatience instructions with others ready,
//   another fragment gets kTurn (a lock holder and its spinners may share a warp).
// - Warps take turns every kSlice instructions.
// - A fragment waiting at a barrier or for warp-mates does not hold up its warp.
// - Lanes waiting for named warp-mates go on without them once nobody of the warp can run.
#include "host-daemon/softgpu/engine/run/scheduler.h"

#include <algorithm>

#include "host-daemon/softgpu/engine/run/launch_state.h"

namespace gantry::softgpu {
namespace {

constexpr std::uint32_t kSlice = 64;        // warps race on memory as if side by side
constexpr std::uint32_t kLoneSlice = 2048;  // a block of one warp has nobody to take turns with
constexpr std::uint32_t kPatience = 4000;
constexpr std::uint32_t kTurn = 2000;
constexpr std::uint32_t kPollLimit = 256;  // polling loads before other blocks get a turn

struct Pick {
    const Inst* ip = nullptr;  ///< nullptr: nothing can run.
    const Inst* limit = stop_instruction();
    std::uint32_t chunk = ~0U;
    bool contended = false;  ///< Other fragments of the warp are ready.
};

void remove_fragment(Warp& warp, std::uint32_t index) {
    warp.fragments[index] = warp.fragments[--warp.fragment_count];
}

bool mergeable(const Fragment& fragment) { return fragment.state != FragmentState::kBarrier; }

void merge_fragments(Warp& warp) {
    for (std::uint32_t i = 0; i < warp.fragment_count; ++i) {
        for (std::uint32_t j = i + 1; j < warp.fragment_count;) {
            Fragment& one = warp.fragments[i];
            const Fragment& other = warp.fragments[j];
            if (one.ip == other.ip && mergeable(one) && mergeable(other)) {
                one.mask |= other.mask;
                one.state = FragmentState::kRunnable;
                remove_fragment(warp, j);
            } else {
                ++j;
            }
        }
    }
}

/// Index of the fragment to run, by the lowest-first rule or the fairness rule; ~0 if none.
std::uint32_t choose(Warp& warp, std::uint32_t& ready) {
    std::uint32_t lowest = ~0U;
    ready = 0;
    for (std::uint32_t i = 0; i < warp.fragment_count; ++i) {
        if (warp.fragments[i].state != FragmentState::kRunnable) {
            continue;
        }
        ++ready;
        if (lowest == ~0U || warp.fragments[i].ip < warp.fragments[lowest].ip) {
            lowest = i;
        }
    }
    if (ready < 2) {
        warp.divergent_run = 0;
        warp.fair_run = 0;
        return lowest;
    }
    if (warp.fair_run == 0 && warp.divergent_run >= kPatience) {
        warp.divergent_run = 0;
        warp.fair_run = kTurn;
        // The next ready one after the last that was preferred, so that all get their turn.
        const Inst* best = nullptr;
        const Inst* first = nullptr;
        for (std::uint32_t i = 0; i < warp.fragment_count; ++i) {
            const Fragment& fragment = warp.fragments[i];
            if (fragment.state != FragmentState::kRunnable || i == lowest) {
                continue;
            }
            if (first == nullptr || fragment.ip < first) {
                first = fragment.ip;
            }
            if (fragment.ip > warp.fair_ip && (best == nullptr || fragment.ip < best)) {
                best = fragment.ip;
            }
        }
        warp.fair_ip = best != nullptr ? best : first;
        warp.fair_lanes = 0;
    }
    if (warp.fair_run != 0) {
        for (std::uint32_t i = 0; i < warp.fragment_count; ++i) {
            const Fragment& fragment = warp.fragments[i];
            const bool chosen = warp.fair_lanes == 0 ? fragment.ip == warp.fair_ip
                                                     : (fragment.mask & warp.fair_lanes) != 0;
            if (fragment.state == FragmentState::kRunnable && chosen) {
                warp.fair_lanes = fragment.mask;
                return i;
            }
        }
        warp.fair_run = 0;  // its lanes wait or have left
    }
    return lowest;
}

Pick pick_divergent(Warp& warp) {
    merge_fragments(warp);
    Pick pick;
    std::uint32_t ready = 0;
    std::uint32_t index = choose(warp, ready);
    if (index == ~0U) {
        for (std::uint32_t i = 0; i < warp.fragment_count; ++i) {
            if (warp.fragments[i].state == FragmentState::kWarpSync &&
                (index == ~0U || warp.fragments[i].ip < warp.fragments[index].ip)) {
                index = i;
            }
        }
        if (index == ~0U) {
            return pick;
        }
        warp.force_sync = true;
    }
    pick.ip = warp.fragments[index].ip;
    pick.contended = ready > 1;
    warp.set_mask(warp.fragments[index].mask);
    remove_fragment(warp, index);
    if (warp.fair_run != 0) {
        pick.chunk = warp.fair_run;
        return pick;
    }
    for (std::uint32_t i = 0; i < warp.fragment_count; ++i) {
        const Fragment& fragment = warp.fragments[i];
        if (mergeable(fragment) && fragment.ip > pick.ip && fragment.ip < pick.limit) {
            pick.limit = fragment.ip;
        }
    }
    return pick;
}

Pick pick_fragment(Warp& warp) {
    if (warp.fragment_count == 1 && warp.fragments[0].state == FragmentState::kRunnable)
        [[likely]] {
        Pick pick;
        pick.ip = warp.fragments[0].ip;
        warp.set_mask(warp.fragments[0].mask);
        warp.fragment_count = 0;
        return pick;
    }
    if (warp.fragment_count == 0) {
        return {};
    }
    return pick_divergent(warp);
}

std::uint32_t run_warp(Warp& warp, std::uint32_t budget) {
    std::uint32_t left = budget;
    while (left > 0) {
        const Pick pick = pick_fragment(warp);
        if (pick.ip == nullptr) {
            break;
        }
        const auto lanes = static_cast<std::uint32_t>(__builtin_popcount(warp.mask));
        const std::uint32_t chunk = std::min(left, pick.chunk);
        std::uint32_t count = chunk;
        const Inst* ip = pick.ip;
        const Inst* const limit = pick.limit;
        do {
            ip = ip->fn(warp, ip);
            --count;
        } while (ip < limit && count != 0);
        const std::uint32_t done = chunk - count;
        if (ip != stop_instruction()) {
            warp.push(ip, warp.mask);
        }
        left -= done;
        warp.thread_instructions += std::uint64_t{done} * lanes;
        if (warp.fair_run != 0) {
            warp.fair_run -= std::min(done, warp.fair_run);
        } else if (pick.contended) {
            warp.divergent_run += done;
        }
        if (warp.thread->yield) {
            break;
        }
    }
    warp.warp_instructions += budget - left;
    return budget - left;
}

void release_barrier(Block& block, std::uint32_t id) {
    Barrier& barrier = block.barriers[id];
    for (Warp& warp : block.warps) {
        for (std::uint32_t i = 0; i < warp.fragment_count; ++i) {
            Fragment& fragment = warp.fragments[i];
            if (fragment.state != FragmentState::kBarrier || fragment.barrier != id) {
                continue;
            }
            fragment.state = FragmentState::kRunnable;
            if (fragment.reduction != nullptr) {
                write_barrier_result(warp, fragment.reduction, fragment.mask, barrier);
                fragment.reduction = nullptr;
            }
        }
    }
    barrier = Barrier{};
}

/// Threads that have arrived, with those that cannot come any more.
bool barrier_complete(const Block& block, const Barrier& barrier) {
    if (barrier.expected == 0) {
        return barrier.arrived + block.exited >= block.threads;
    }
    // A counted barrier counts whole warps: lanes that have left, or never were, come along.
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < block.warps.size(); ++i) {
        const std::uint32_t lanes = barrier.warp_lanes[i];
        if (lanes != 0) {
            sum += (lanes | block.warps[i].dead) == kAllLanes
                       ? 32U
                       : static_cast<std::uint32_t>(__builtin_popcount(lanes));
        }
    }
    return sum >= barrier.expected;
}

}  // namespace

void retire_lanes(Warp& warp, std::uint32_t lanes) {
    Block& block = *warp.block;
    warp.dead |= lanes;
    block.exited += static_cast<std::uint32_t>(__builtin_popcount(lanes));
    if (!warp.alive()) {
        --block.live_warps;
    }
    for (std::uint32_t id = 0; id < kBarriers; ++id) {
        if (block.barriers[id].arrived != 0 && barrier_complete(block, block.barriers[id])) {
            release_barrier(block, id);
        }
    }
}

bool arrive_at_barrier(Warp& warp, const Inst* inst, std::uint32_t id, std::uint32_t count,
                       std::uint32_t lanes, bool wait) {
    Block& block = *warp.block;
    Barrier& barrier = block.barriers[id];
    barrier.expected = count;
    barrier.arrived += static_cast<std::uint32_t>(__builtin_popcount(lanes));
    barrier.warp_lanes[warp.index] |= lanes;
    if (wait) {
        warp.push(inst + 1, lanes, FragmentState::kBarrier);
        Fragment& fragment = warp.fragments[warp.fragment_count - 1];
        fragment.barrier = static_cast<std::uint8_t>(id);
        fragment.reduction = inst->aux >= 2 && inst->aux <= 4 ? inst : nullptr;
    }
    if (!barrier_complete(block, barrier)) {
        return false;
    }
    release_barrier(block, id);
    return true;
}

SliceEnd run_block(Block& block, std::uint64_t budget, bool exclusive) {
    ThreadContext& thread = *block.warps.front().thread;
    thread.polls = 0;
    thread.yield = false;
    while (block.live_warps > 0) {
        std::uint64_t ran = 0;
        const std::uint32_t slice = block.live_warps == 1 ? kLoneSlice : kSlice;
        for (Warp& warp : block.warps) {
            if (warp.alive()) {
                ran += run_warp(warp, slice);
                thread.yield = false;
            }
        }
        thread.reach.pass_quiescent_point();
        if (launch_stopped(block)) {
            return SliceEnd::kStopped;
        }
        if (ran == 0 && block.live_warps > 0) {
            return SliceEnd::kDeadlock;
        }
        if (ran >= budget || (!exclusive && thread.polls > kPollLimit)) {
            return block.live_warps == 0 ? SliceEnd::kFinished : SliceEnd::kBudget;
        }
        budget -= ran;
    }
    return SliceEnd::kFinished;
}

}  // namespace gantry::softgpu
