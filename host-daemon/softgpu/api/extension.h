// The soft GPU's extension table; see proto/cuda/soft_extension.h for what it is.
#pragma once

#include <cstdint>

namespace gantry::softgpu {

/// The table for Gantry's id, else null.
const void* extension_table(const std::uint8_t uuid[16]);

}  // namespace gantry::softgpu
