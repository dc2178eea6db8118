// Handler templates by operand shape. `Op` gives `apply`, `T` the operand type, `R` the result.
#pragma once

#include "host-daemon/softgpu/engine/isa/lanes.h"

namespace gantry::softgpu::GANTRY_ISA_NAMESPACE {

/// Whether an element type is computed by the FP unit, whose mode must then be right.
template <typename T>
inline constexpr bool kUsesFp =
    std::is_floating_point_v<T> || std::is_same_v<T, half_t> || std::is_same_v<T, bf16_t> ||
    std::is_same_v<T, half2_t> || std::is_same_v<T, bf162_t>;

template <typename Op, typename T, typename R = T>
const Inst* unary(Warp& warp, const Inst* inst) {
    if constexpr (kUsesFp<T>) {
        warp.thread->set_fp_mode(inst->fp_mode);
    }
    const Slot<T>* a = warp.slot<Slot<T>>(inst->a);
    for_lanes(warp, warp.slot<Slot<R>>(inst->dst),
              [=](int lane) { return to_slot<R>(Op::apply(from_slot<T>(a[lane]))); });
    return inst + 1;
}

template <typename Op, typename T, typename R = T>
const Inst* binary(Warp& warp, const Inst* inst) {
    if constexpr (kUsesFp<T>) {
        warp.thread->set_fp_mode(inst->fp_mode);
    }
    const Slot<T>* a = warp.slot<Slot<T>>(inst->a);
    const Slot<T>* b = warp.slot<Slot<T>>(inst->b);
    for_lanes(warp, warp.slot<Slot<R>>(inst->dst), [=](int lane) {
        return to_slot<R>(Op::apply(from_slot<T>(a[lane]), from_slot<T>(b[lane])));
    });
    return inst + 1;
}

/// Second operand is always a u32 (shift counts).
template <typename Op, typename T>
const Inst* shift(Warp& warp, const Inst* inst) {
    const Slot<T>* a = warp.slot<Slot<T>>(inst->a);
    const u32* b = warp.slot<u32>(inst->b);
    for_lanes(warp, warp.slot<Slot<T>>(inst->dst),
              [=](int lane) { return to_slot<T>(Op::apply(from_slot<T>(a[lane]), b[lane])); });
    return inst + 1;
}

template <typename Op, typename T, typename C = T, typename R = C>
const Inst* ternary(Warp& warp, const Inst* inst) {
    if constexpr (kUsesFp<T> || kUsesFp<C>) {
        warp.thread->set_fp_mode(inst->fp_mode);
    }
    const Slot<T>* a = warp.slot<Slot<T>>(inst->a);
    const Slot<T>* b = warp.slot<Slot<T>>(inst->b);
    const Slot<C>* c = warp.slot<Slot<C>>(inst->c);
    for_lanes(warp, warp.slot<Slot<R>>(inst->dst), [=](int lane) {
        return to_slot<R>(
            Op::apply(from_slot<T>(a[lane]), from_slot<T>(b[lane]), from_slot<C>(c[lane])));
    });
    return inst + 1;
}

}  // namespace gantry::softgpu::GANTRY_ISA_NAMESPACE
