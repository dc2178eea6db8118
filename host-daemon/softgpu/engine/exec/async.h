// Asynchronous copies and mbarrier objects.
//
// Copies are done at once: PTX allows that, since nobody may look before the group or barrier
// says so. An mbarrier is 64 bits in shared memory: bits 0-19 arrivals still due, 20-39 arrivals
// of a phase, 40-61 bytes still due (biased by half its range), 63 the phase.
#pragma once

#include "host-daemon/softgpu/engine/inst.h"

namespace gantry::softgpu::exec {

enum class BarrierOp : std::uint8_t {
    kInit,
    kInvalidate,
    kArrive,
    kArriveDrop,
    kExpect,
    kComplete,
    kArriveExpect,
    kTest,
    kTestParity,
    kPending,
};

/// dst[a + imm] <- [b]; the shared side's Access in d, aux: bytes (4, 8, 16), c: u32 bytes to
/// read, the rest is zero. `e`: byte offset of the source.
Handler copy_async();
/// Bulk: a: destination slot, b: source slot, c: size (u32), e: mbarrier slot or ~0; flags bit 0:
/// destination is shared, bit 1: source is shared; bit 2 (3): address slots of shared sides are
/// 32 bits wide.
Handler copy_bulk();
/// a + imm: address (d: Access), aux: BarrierOp, b: u32 count, bytes or parity, or the token's
/// u64 slot (kTest); dst: token u64, predicate (tests), u32 (kPending); flags: 1 dst wanted,
/// 2 counted as polling.
Handler mbarrier();

}  // namespace gantry::softgpu::exec
