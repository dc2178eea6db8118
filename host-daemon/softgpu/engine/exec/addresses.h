// The host address of one lane's access, checked for window, alignment and reach. For handlers that
// work lane by lane; ld and st have their own faster way.
#pragma once

#include "host-daemon/softgpu/engine/exec/touch.h"
#include "host-daemon/softgpu/engine/warp.h"

namespace gantry::softgpu::exec {

/// Whether a host address is one of the block's shared memory.
inline bool in_shared(const Warp& warp, std::uint64_t address) {
    return address - reinterpret_cast<std::uint64_t>(warp.block->shared) < warp.block->shared_bytes;
}

/// `size` is a power of two; faults do not return.
inline std::uint64_t lane_address(Warp& warp, const Inst* inst, Access access, Touch touch,
                                  std::uint32_t slot, std::int64_t offset, std::uint32_t lane,
                                  std::uint32_t size) {
    std::uint64_t at = 0;
    switch (access) {
        case Access::kShared32:
        case Access::kLocal32:
            at = static_cast<std::uint32_t>(warp.slot<std::uint32_t>(slot)[lane] +
                                            static_cast<std::uint32_t>(offset));
            break;
        case Access::kFrame: at = warp.frame[lane] + static_cast<std::uint64_t>(offset); break;
        default:
            at = warp.slot<std::uint64_t>(slot)[lane] + static_cast<std::uint64_t>(offset);
            break;
    }
    if (access == Access::kShared32 || access == Access::kShared64) {
        const std::uint64_t limit = warp.block->shared_bytes;
        if (at > limit || limit - at < size) {
            raise_fault(warp, inst, LaunchError::kIllegalAddress, lane, at,
                        "address outside the block's shared memory");
        }
        at += reinterpret_cast<std::uint64_t>(warp.block->shared);
    } else if (access != Access::kFlat) {
        const std::uint64_t limit = warp.local_stride;
        if (at > limit || limit - at < size) {
            raise_fault(warp, inst, LaunchError::kIllegalAddress, lane, at,
                        "address outside the thread's local memory");
        }
        at += reinterpret_cast<std::uint64_t>(warp.local) + limit * lane;
    }
    if ((at & (size - 1)) != 0) {
        raise_fault(warp, inst, LaunchError::kMisalignedAddress, lane, at, "misaligned address");
    }
    return access == Access::kFlat ? flat_address(warp, inst, touch, lane, at, size) : at;
}

}  // namespace gantry::softgpu::exec
