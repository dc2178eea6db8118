// GANTRY_TRACE=file: a line per forwarded command. Off, it costs a load of one static.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gantry::session {

extern bool g_tracing;
inline bool tracing() noexcept { return g_tracing; }

/// Writes a command as text, as snprintf does. The driver part knows the calls' names and sets it.
using TraceFormat = int (*)(char* out, std::size_t capacity, std::uint16_t op, const void* args,
                            std::size_t bytes);
void set_trace_format(TraceFormat format) noexcept;

/// Opens the file (appending). False when it cannot be opened; errno says why.
bool start_trace(const char* path) noexcept;
void trace_command(std::uint16_t op, const void* args, std::uint32_t args_bytes,
                   std::uint32_t trailing_bytes) noexcept;

}  // namespace gantry::session
