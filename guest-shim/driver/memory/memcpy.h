// Copies, in one place each: linear ones by address, all others as a 3D copy.
#pragma once

#include <cstdint>

#include "guest-shim/driver/memory/shaped_copy.h"

namespace gantry::shim {

/// A linear copy. `blocking` is what the application's call is natively.
CUresult copy_linear(std::uint64_t target, std::uint64_t source, std::uint64_t bytes,
                     CUstream stream, bool blocking) noexcept;

CUresult copy_shaped(const ShapedCopy& copy, CUstream stream, bool blocking) noexcept;

}  // namespace gantry::shim
