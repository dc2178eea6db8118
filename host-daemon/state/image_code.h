// What preflight asks of a guest process: which code its images carry, which features cannot move.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "host-daemon/worker/guest_process.h"
#include "migration/engine/needs.h"

namespace gantry::state {

/// Adds the code entries of a fatbin, ELF or PTX text. What cannot be read adds nothing: the driver
/// has accepted the image, so an unknown form must not stop a move by itself.
void append_code(std::span<const std::byte> image, std::vector<engine::CodeEntry>* out);

/// Objects and states that no target can take over, by stable id.
[[nodiscard]] std::vector<engine::BlockingFeature> blocking_features(worker::GuestProcess& process,
                                                                     std::uint64_t part_id);

}  // namespace gantry::state
