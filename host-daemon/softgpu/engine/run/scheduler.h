// Runs the warps of a block in turns (see scheduler.cc for the rules).
#pragma once

#include <cstdint>

#include "host-daemon/softgpu/engine/warp.h"

namespace gantry::softgpu {

enum class SliceEnd : std::uint8_t {
    kFinished,  ///< All warps have left.
    kBudget,    ///< The budget is used up, or the block polls for somebody else's progress.
    kStopped,   ///< The launch was cancelled or failed elsewhere.
    kDeadlock,  ///< Every warp waits at a barrier that nobody can complete.
};

/// Runs up to about `budget` warp instructions. `exclusive`: no other block waits for a turn, so
/// polling does not end the slice.
[[nodiscard]] SliceEnd run_block(Block& block, std::uint64_t budget, bool exclusive);

/// The lanes have left the kernel: they count as arrived at every later barrier.
void retire_lanes(Warp& warp, std::uint32_t lanes);

/// Lanes arrive at a barrier. True if that completed it (the caller goes on at once); false if
/// the caller has to wait (its fragment was stored).
[[nodiscard]] bool arrive_at_barrier(Warp& warp, const Inst* inst, std::uint32_t id,
                                     std::uint32_t count, std::uint32_t lanes, bool wait);

/// The result of bar.red for lanes that waited (exec/barrier.cc).
void write_barrier_result(Warp& warp, const Inst* inst, std::uint32_t lanes,
                          const Barrier& barrier);

[[nodiscard]] bool is_constant_address(const Warp& warp, std::uint64_t address);
[[nodiscard]] std::uint64_t clock_khz(const Warp& warp);

}  // namespace gantry::softgpu
