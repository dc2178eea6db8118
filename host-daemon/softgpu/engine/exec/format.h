// Device printf: formats as CUDA does, from a guest's format string and argument buffer.
#pragma once

#include <cstdint>
#include <string>

#include "host-daemon/softgpu/engine/exec/touch.h"

namespace gantry::softgpu::exec {

/// Appends the text to `out`. Arguments lie in the buffer at their natural alignment: 4 bytes for
/// int, 8 for long, pointers and doubles. Returns the number of arguments used; -1 for a null
/// format. `arguments` and the texts that they name are addresses in the kernel's memory, so it may
/// end the launch: holds nothing but `out` and its stack.
int format_printf(std::string& out, const char* format, const LaneMemory& memory,
                  std::uint64_t arguments);

}  // namespace gantry::softgpu::exec
