// Instructions across lanes. With .sync they wait until the named lanes that can still come are
// here; each lane may name its own members. Reading a lane that takes no part gives 0.
#include <cmath>
#include <cstring>

#include "host-daemon/softgpu/engine/exec/handlers.h"
#include "host-daemon/softgpu/engine/warp.h"

namespace gantry::softgpu::exec {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

template <typename Body>
void for_active(u32 mask, Body body) {
    for (; mask != 0; mask &= mask - 1) {
        body(static_cast<u32>(__builtin_ctz(mask)));
    }
}

/// True when the fragment may go on; else it has been parked.
bool gather(Warp& warp, const Inst* inst) {
    const u32* members = warp.slot<u32>(inst->d);
    u32 wanted = 0;
    for_active(warp.mask, [&](u32 lane) { wanted |= members[lane]; });
    if ((wanted & ~(warp.dead | warp.mask)) != 0 && !warp.force_sync) {
        warp.push(inst, warp.mask, FragmentState::kWarpSync);
        return false;
    }
    warp.force_sync = false;
    return true;
}

const Inst* do_warp_sync(Warp& warp, const Inst* inst) {
    return gather(warp, inst) ? inst + 1 : stop_instruction();
}

template <int Mode>
const Inst* do_shuffle(Warp& warp, const Inst* inst) {
    if (!gather(warp, inst)) {
        return stop_instruction();
    }
    alignas(64) u32 values[kLanes];
    std::memcpy(values, warp.slot<u32>(inst->a), sizeof values);
    const u32* offsets = warp.slot<u32>(inst->b);
    const u32* clamps = warp.slot<u32>(inst->c);
    u32* out = warp.slot<u32>(inst->dst);
    const u32 active = warp.mask;
    u32 inside = 0;
    alignas(64) u32 results[kLanes];
    for (int i = 0; i < kLanes; ++i) {
        const int segment = static_cast<int>((clamps[i] >> 8) & 31U);
        const int clamp = static_cast<int>(clamps[i] & 31U);
        const int b = static_cast<int>(offsets[i] & 31U);
        const int highest = (i & segment) | (clamp & ~segment);
        int from = 0;
        bool valid = false;
        if constexpr (Mode == 0) {
            from = i - b;
            valid = from >= highest;
        } else if constexpr (Mode == 1) {
            from = i + b;
            valid = from <= highest;
        } else if constexpr (Mode == 2) {
            from = i ^ b;
            valid = from <= highest;
        } else {
            from = (i & segment) | (b & ~segment);
            valid = from <= highest;
        }
        from = valid ? from : i;
        inside |= static_cast<u32>(valid) << i;
        results[i] = ((active >> (from & 31)) & 1U) != 0 ? values[from & 31] : 0U;
    }
    if (warp.full) {
        std::memcpy(out, results, sizeof results);
    } else {
        for_active(active, [&](u32 lane) { out[lane] = results[lane]; });
    }
    if (inst->e != kAllLanes) {
        u32& p = warp.predicate(inst->e);
        p = (p & ~active) | (inside & active);
    }
    return inst + 1;
}

template <int Mode>
const Inst* do_vote(Warp& warp, const Inst* inst) {
    const bool sync = (inst->flags & 2U) != 0;
    if (sync && !gather(warp, inst)) {
        return stop_instruction();
    }
    const u32 active = warp.mask;
    const u32 votes = warp.predicate(inst->a) ^ ((inst->flags & 1U) != 0 ? kAllLanes : 0U);
    const u32* members = warp.slot<u32>(inst->d);
    if constexpr (Mode == 3) {
        u32* out = warp.slot<u32>(inst->dst);
        for_active(active, [&](u32 lane) {
            out[lane] = votes & active & (sync ? members[lane] : kAllLanes);
        });
        return inst + 1;
    }
    u32 result = 0;
    for_active(active, [&](u32 lane) {
        const u32 who = active & (sync ? members[lane] : kAllLanes);
        const u32 yes = votes & who;
        const bool answer = Mode == 0 ? yes == who : Mode == 1 ? yes != 0 : yes == 0 || yes == who;
        result |= static_cast<u32>(answer) << lane;
    });
    u32& p = warp.predicate(inst->dst);
    p = (p & ~active) | result;
    return inst + 1;
}

template <bool All, typename T>
const Inst* do_match(Warp& warp, const Inst* inst) {
    if (!gather(warp, inst)) {
        return stop_instruction();
    }
    const T* values = warp.slot<T>(inst->a);
    const u32* members = warp.slot<u32>(inst->d);
    u32 same[kLanes] = {};
    u32 agreed = 0;
    for_active(warp.mask, [&](u32 lane) {
        const u32 who = warp.mask & members[lane];
        for_active(who, [&](u32 other) {
            same[lane] |= values[other] == values[lane] ? 1U << other : 0U;
        });
        if (All) {
            const bool equal = same[lane] == who;
            agreed |= static_cast<u32>(equal) << lane;
            same[lane] = equal ? who : 0U;
        }
    });
    u32* out = warp.slot<u32>(inst->dst);
    for_active(warp.mask, [&](u32 lane) { out[lane] = same[lane]; });
    if (All && inst->e != kAllLanes) {
        u32& p = warp.predicate(inst->e);
        p = (p & ~warp.mask) | agreed;
    }
    return inst + 1;
}

u32 combine(u32 op, bool is_signed, u32 a, u32 b) {
    switch (op) {
        case 0: return a + b;
        case 1:
            return is_signed ? (static_cast<std::int32_t>(a) < static_cast<std::int32_t>(b) ? a : b)
                             : (a < b ? a : b);
        case 2:
            return is_signed ? (static_cast<std::int32_t>(a) > static_cast<std::int32_t>(b) ? a : b)
                             : (a > b ? a : b);
        case 3: return a & b;
        case 4: return a | b;
        default: return a ^ b;
    }
}

u32 combine_float(u32 op, u32 a, u32 b) {
    float x = 0;
    float y = 0;
    std::memcpy(&x, &a, 4);
    std::memcpy(&y, &b, 4);
    const bool keep_nan = op >= 8;
    if (std::isnan(x) || std::isnan(y)) {
        return keep_nan || (std::isnan(x) && std::isnan(y)) ? 0x7fffffffU : std::isnan(x) ? b : a;
    }
    const bool larger = op == 7 || op == 9;
    return larger ? (x > y ? a : x < y ? b : a & b) : (x < y ? a : x > y ? b : a | b);
}

const Inst* do_reduce(Warp& warp, const Inst* inst) {
    if (!gather(warp, inst)) {
        return stop_instruction();
    }
    warp.thread->set_fp_mode(kFpNearest);
    const u32* values = warp.slot<u32>(inst->a);
    const u32* members = warp.slot<u32>(inst->d);
    const bool is_signed = (inst->flags & 1U) != 0;
    const u32 clear = (inst->flags & 2U) != 0 ? 0x7fffffffU : kAllLanes;
    u32 results[kLanes] = {};
    for_active(warp.mask, [&](u32 lane) {
        u32 who = warp.mask & members[lane];
        u32 result = values[lane] & clear;
        bool first = true;
        for_active(who, [&](u32 other) {
            const u32 value = values[other] & clear;
            result = first            ? value
                     : inst->aux >= 6 ? combine_float(inst->aux, result, value)
                                      : combine(inst->aux, is_signed, result, value);
            first = false;
        });
        results[lane] = result;
    });
    u32* out = warp.slot<u32>(inst->dst);
    for_active(warp.mask, [&](u32 lane) { out[lane] = results[lane]; });
    return inst + 1;
}

/// The leader is the lowest lane of the members.
const Inst* do_elect(Warp& warp, const Inst* inst) {
    if (!gather(warp, inst)) {
        return stop_instruction();
    }
    const u32* members = warp.slot<u32>(inst->d);
    u32* out = warp.slot<u32>(inst->dst);
    u32 leaders = 0;
    for_active(warp.mask, [&](u32 lane) {
        const u32 who = warp.mask & members[lane];
        const u32 leader = who == 0 ? lane : static_cast<u32>(__builtin_ctz(who));
        out[lane] = leader;
        leaders |= leader == lane ? 1U << lane : 0U;
    });
    u32& p = warp.predicate(inst->e);
    p = (p & ~warp.mask) | leaders;
    return inst + 1;
}

const Inst* do_active_mask(Warp& warp, const Inst* inst) {
    u32* out = warp.slot<u32>(inst->dst);
    for_active(warp.mask, [&](u32 lane) { out[lane] = warp.mask; });
    return inst + 1;
}

const Inst* do_predicate_logic(Warp& warp, const Inst* inst) {
    const u32 a = warp.predicate(inst->a) ^ ((inst->flags & 1U) != 0 ? kAllLanes : 0U);
    const u32 b = warp.predicate(inst->b) ^ ((inst->flags & 2U) != 0 ? kAllLanes : 0U);
    const u32 result = inst->aux == 0 ? a & b : inst->aux == 1 ? a | b : a ^ b;
    u32& p = warp.predicate(inst->dst);
    p = (p & ~warp.mask) | (result & warp.mask);
    return inst + 1;
}

const Inst* do_select_predicate(Warp& warp, const Inst* inst) {
    const u32 p = warp.predicate(inst->c) ^ (inst->flags != 0 ? kAllLanes : 0U);
    const u32 result = (warp.predicate(inst->a) & p) | (warp.predicate(inst->b) & ~p);
    u32& out = warp.predicate(inst->dst);
    out = (out & ~warp.mask) | (result & warp.mask);
    return inst + 1;
}

}  // namespace

Handler warp_sync() { return &do_warp_sync; }
Handler shuffle(int mode) {
    static constexpr Handler kModes[] = {&do_shuffle<0>, &do_shuffle<1>, &do_shuffle<2>,
                                         &do_shuffle<3>};
    return kModes[mode];
}
Handler vote(int mode) {
    static constexpr Handler kModes[] = {&do_vote<0>, &do_vote<1>, &do_vote<2>, &do_vote<3>};
    return kModes[mode];
}
Handler match(bool all, bool wide) {
    return all ? (wide ? &do_match<true, u64> : &do_match<true, u32>)
               : (wide ? &do_match<false, u64> : &do_match<false, u32>);
}
Handler reduce() { return &do_reduce; }
Handler elect() { return &do_elect; }
Handler active_mask() { return &do_active_mask; }
Handler predicate_logic() { return &do_predicate_logic; }
Handler select_predicate() { return &do_select_predicate; }

}  // namespace gantry::softgpu::exec
