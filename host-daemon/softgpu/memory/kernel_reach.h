// What the kernels of this process may touch (engine/reach.h): the memory that is mapped for them,
// in the units in which it is mapped, as on hardware. Whoever maps memory for kernels adds it here
// when it is there, and takes it away before it goes.
#pragma once

#include "host-daemon/softgpu/engine/reach.h"

namespace gantry::softgpu {

/// Never destroyed.
[[nodiscard]] Reach& kernel_reach();

/// Takes memory away whose addresses may become somebody else's; returns when no kernel uses them
/// any more. Addresses that stay the driver's own (the arena's) need remove() alone.
void end_reach(std::uint64_t begin, std::uint64_t bytes);

}  // namespace gantry::softgpu
