// What of a guest process no target can take over, for preflight.
#pragma once

#include <cstdint>
#include <vector>

#include "host-daemon/execution/process/guest_process.h"
#include "migration/engine/needs.h"

namespace gantry::state {

/// Objects and states that no target can take over, by stable id.
[[nodiscard]] std::vector<engine::BlockingFeature> blocking_features(worker::GuestProcess& process,
                                                                     std::uint64_t part_id);

}  // namespace gantry::state
