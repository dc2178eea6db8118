// Which code an image carries, for preflight. Images come from guests: every byte is hostile.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "migration/engine/needs.h"

namespace gantry::state {

/// Adds the code entries of a fatbin, ELF or PTX text. What cannot be read adds nothing: the driver
/// has accepted the image, so an unknown form must not stop a move by itself.
void append_code(std::span<const std::byte> image, std::vector<engine::CodeEntry>* out);

}  // namespace gantry::state
