// Parses one PTX text (ISA up to 9.0). Errors read "ptx:LINE:COLUMN: message" (or NAME:LINE:...
// when the text has a name). What an instruction means is not checked here, only its form.
// Thread-safe: no shared state.
#pragma once

#include <string_view>

#include "host-daemon/softgpu/ptx/ast.h"
#include "proto/base/result.h"

namespace gantry::softgpu::ptx {

/// Stops at the first NUL of `text` if it has one.
[[nodiscard]] Result<Module> parse(std::string_view text, std::string_view name = {});

/// The error form of this folder: "NAME:LINE:COLUMN: message", reason "ptx.<what>".
[[nodiscard]] Error error_at(std::string_view module_name, Position where, std::string reason,
                             std::string_view message);

}  // namespace gantry::softgpu::ptx
