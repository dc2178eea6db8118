// How much device memory a driver takes for what the guest asks, beside memory that it allocates:
// what the quota counts before the driver is asked. Never less than the bytes that are asked for; a
// driver's rounding is not known here. A number too large to be had saturates.
//
// Pure functions.
#pragma once

#include <cstdint>
#include <optional>

#include "proto/cuda/abi.h"

namespace gantry::worker {

std::uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR_v2& descriptor);
std::uint64_t mipmapped_array_bytes(const CUDA_ARRAY3D_DESCRIPTOR_v2& descriptor, unsigned levels);

/// What a context takes for a limit of this value beyond that of the limit it starts with.
/// `threads`: as many as the device has resident, each of which has a stack. 0 of a limit that
/// takes no memory.
std::uint64_t limit_bytes(CUlimit limit, std::uint64_t value, std::uint64_t initial,
                          std::uint64_t threads);

/// What a context was seen to take, from what the device had free before and behind: others may
/// have allocated or freed meanwhile, so it is held near the figure that was charged.
std::uint64_t context_bytes_seen(std::uint64_t figure, std::optional<std::uint64_t> free_before,
                                 std::optional<std::uint64_t> free_behind);

}  // namespace gantry::worker
