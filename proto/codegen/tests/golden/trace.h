// Generated from proto/cuda/driver_api by proto/codegen; do not edit.
// Prints a command as one line, for logs and tools. Libc only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/cuda/gen/opcodes.h"

namespace gantry::cuda {

/// Writes `cuMemAlloc_v2(bytesize=4096)` and a NUL, cut to the capacity. Returns the length the
/// whole line has, as snprintf does. Wrong sizes and unknown numbers are printed as such.
int trace_format(char* out, std::size_t capacity, Op op, const void* args,
                 std::size_t bytes) noexcept;

}  // namespace gantry::cuda
