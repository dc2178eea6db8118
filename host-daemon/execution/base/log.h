// The worker's log: one line per event on the descriptor that was stderr before output capture.
// Never on the hot path; lines that a guest can provoke are limited in number. Thread-safe.
#pragma once

namespace gantry::worker {

void set_log_descriptor(int fd);
/// printf-style; adds a time, the process id and a newline.
[[gnu::format(printf, 1, 2)]] void log_line(const char* format, ...);
/// As log_line, but at most 20 lines and then one in 1000.
[[gnu::format(printf, 1, 2)]] void log_limited(const char* format, ...);

}  // namespace gantry::worker
