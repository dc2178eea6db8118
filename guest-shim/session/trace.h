// GANTRY_TRACE=file: a line per forwarded command. Off, it costs a load of one static.
#pragma once

#include <cstdint>

namespace gantry::session {

extern bool g_tracing;
inline bool tracing() noexcept { return g_tracing; }

/// Opens the file (appending). False when it cannot be opened; errno says why.
bool start_trace(const char* path) noexcept;
void trace_command(std::uint16_t op, const void* args, std::uint32_t args_bytes,
                   const void* trailing, std::uint32_t trailing_bytes) noexcept;

}  // namespace gantry::session
