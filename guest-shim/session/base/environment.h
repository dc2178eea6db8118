// GANTRY_* settings, read once at start. A GANTRY_ name that no part of Gantry knows
// (proto/base/settings.h) is an error, so that a typing mistake is not silently without effect.
#pragma once

namespace gantry::session {

struct Environment {
    const char* transport = nullptr;       ///< GANTRY_TRANSPORT: see transport.h.
    const char* trace_path = nullptr;      ///< GANTRY_TRACE: file for a line per forwarded call.
    const char* report_path = nullptr;     ///< GANTRY_REPORT: see report.h.
    bool synchronous = false;              ///< GANTRY_SYNC=1: every call waits for the host.
    unsigned connect_timeout_ms = 20'000;  ///< GANTRY_CONNECT_TIMEOUT_MS.
};

/// Reads the environment. False (with one line in `problem`) for a key or value that is not known.
bool read_environment(Environment* out, char* problem, unsigned long problem_bytes);

}  // namespace gantry::session
