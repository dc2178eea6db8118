// What a guest process uses of its device that a target might not have, for preflight.
#pragma once

#include <vector>

#include "host-daemon/execution/process/guest_process.h"
#include "migration/engine/needs.h"

namespace gantry::state {

/// Attributes of which some device that Gantry runs on has less than the process uses.
[[nodiscard]] std::vector<engine::AttributeNeed> attribute_needs(worker::GuestProcess& process);

}  // namespace gantry::state
