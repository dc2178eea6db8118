// Guards, packing and unpacking of vectors.
#include "host-daemon/softgpu/engine/isa/fill.h"

namespace gantry::softgpu::GANTRY_ISA_NAMESPACE {
namespace {

/// @p and @!p on an instruction that always goes on to the next one.
template <bool Negated>
const Inst* guarded(Warp& warp, const Inst* inst) {
    const u32 p = warp.predicate(inst->guard);
    const u32 lanes = warp.mask & (Negated ? ~p : p);
    if (lanes == 0) {
        return inst + 1;
    }
    const u32 before = warp.mask;
    if (lanes == before) {
        return inst->inner(warp, inst);
    }
    warp.set_mask(lanes);
    const Inst* next = inst->inner(warp, inst);
    warp.set_mask(before);
    return next;
}

template <typename Part, typename Whole, int N>
const Inst* pack(Warp& warp, const Inst* inst) {
    const Slot<Part>* in[N];
    const u32 slots[4] = {inst->a, inst->b, inst->c, inst->d};
    for (int part = 0; part < N; ++part) {
        in[part] = warp.slot<Slot<Part>>(slots[part]);
    }
    for_lanes(warp, warp.slot<Whole>(inst->dst), [=](int lane) {
        Whole whole = 0;
        for (int part = 0; part < N; ++part) {
            whole |= static_cast<Whole>(static_cast<Part>(in[part][lane]))
                     << (part * static_cast<int>(8 * sizeof(Part)));
        }
        return whole;
    });
    return inst + 1;
}

template <typename Part, typename Whole, int N>
const Inst* unpack(Warp& warp, const Inst* inst) {
    const Whole* in = warp.slot<Whole>(inst->a);
    const u32 slots[4] = {inst->dst, inst->b, inst->c, inst->d};
    Whole copy[kLanes];  // a destination may be the source's own slot
    std::memcpy(copy, in, sizeof copy);
    for (int part = 0; part < N; ++part) {
        const int bits = part * static_cast<int>(8 * sizeof(Part));
        for_lanes(warp, warp.slot<Slot<Part>>(slots[part]), [=, &copy](int lane) {
            return static_cast<Slot<Part>>(static_cast<Part>(copy[lane] >> bits));
        });
    }
    return inst + 1;
}

/// 128-bit slots hold their two halves one behind the other.
const Inst* pack128(Warp& warp, const Inst* inst) {
    const u64* low = warp.slot<u64>(inst->a);
    const u64* high = warp.slot<u64>(inst->b);
    u64* out = warp.slot<u64>(inst->dst);
    for_lanes(warp, out, [=](int lane) { return low[lane]; });
    for_lanes(warp, out + kLanes, [=](int lane) { return high[lane]; });
    return inst + 1;
}

const Inst* unpack128(Warp& warp, const Inst* inst) {
    const u64* in = warp.slot<u64>(inst->a);
    for_lanes(warp, warp.slot<u64>(inst->dst), [=](int lane) { return in[lane]; });
    for_lanes(warp, warp.slot<u64>(inst->b), [=](int lane) { return in[kLanes + lane]; });
    return inst + 1;
}

}  // namespace

void fill_move(HandlerTable& table) {
    table.guarded[0] = &guarded<false>;
    table.guarded[1] = &guarded<true>;
    table.pack[0] = &pack<u16, u32, 2>;
    table.pack[1] = &pack<u8, u32, 4>;
    table.pack[2] = &pack<u32, u64, 2>;
    table.pack[3] = &pack<u16, u64, 4>;
    table.pack[4] = &pack128;
    table.pack[5] = &pack<u8, u32, 2>;
    table.unpack[0] = &unpack<u16, u32, 2>;
    table.unpack[1] = &unpack<u8, u32, 4>;
    table.unpack[2] = &unpack<u32, u64, 2>;
    table.unpack[3] = &unpack<u16, u64, 4>;
    table.unpack[4] = &unpack128;
    table.unpack[5] = &unpack<u8, u32, 2>;
}

}  // namespace gantry::softgpu::GANTRY_ISA_NAMESPACE
