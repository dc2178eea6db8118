// What is in memory, as ld and st see it.
#pragma once

#include "host-daemon/softgpu/engine/isa/lanes.h"

namespace gantry::softgpu::GANTRY_ISA_NAMESPACE {
namespace {

template <Cell C>
struct CellType;
template <>
struct CellType<Cell::kU8> {
    using type = u8;
};
template <>
struct CellType<Cell::kS8> {
    using type = s8;
};
template <>
struct CellType<Cell::kU16> {
    using type = u16;
};
template <>
struct CellType<Cell::kS16> {
    using type = s16;
};
template <>
struct CellType<Cell::kB32> {
    using type = u32;
};
template <>
struct CellType<Cell::kB64> {
    using type = u64;
};

/// The slot of one element of a vector.
GANTRY_INLINE u32 element_slot(const Inst* inst, int element) {
    return element == 0 ? inst->dst : element == 1 ? inst->b : element == 2 ? inst->c : inst->d;
}

}  // namespace
}  // namespace gantry::softgpu::GANTRY_ISA_NAMESPACE
