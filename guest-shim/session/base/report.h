// GANTRY_REPORT=file: what this process's calls met, by name, written to `file.PID`.
//
// One line each, with how often: `refused NAME N` (CUDA_ERROR_NOT_SUPPORTED), `failed NAME RESULT
// N` (any other error; what an application probes for belongs here too), `round-trip NAME N`
// (commands that waited for the host). Written anew whenever something is refused or fails for the
// first time, when the program stops the profiler (cuProfilerStop, by which programs mark what is
// to be measured: two reports' difference is what a stretch of calls met), and at the end of the
// process. Off, a successful call costs nothing and a wait one load.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/cuda/abi.h"

namespace gantry::session {

extern bool g_reporting;
inline bool reporting() noexcept { return g_reporting; }

/// Names a command, of control or of the API; the driver part knows them and sets it.
using NameOfCommand = const char* (*)(std::uint16_t op);
void set_name_of_command(NameOfCommand name) noexcept;

/// Starts reporting. False when the file cannot be made; errno says why.
bool start_report(const char* path) noexcept;
/// Counts an error that a call returned to the application.
void note_failure(std::uint16_t op, CUresult result) noexcept;
/// Counts a command that waits for an answer.
void note_round_trip(std::uint16_t op) noexcept;
void write_report() noexcept;

}  // namespace gantry::session
