// What a worker's log says when a signal ends it: which, where, and which command of the guest was
// the last that it took. SIGKILL leaves no words.
//
// Thread-safe. Cost: a relaxed store per command.
#pragma once

#include <atomic>
#include <cstdint>

namespace gantry::worker {

namespace crash_log {
extern std::atomic<std::uint16_t> command;
}

/// The guest's command that is carried out from now on.
inline void note_command(std::uint16_t op) {
    crash_log::command.store(op, std::memory_order_relaxed);
}

/// Handles the signals of faults: writes the line, then lets whoever handled the signal before have
/// it, or the process end of it as it would have. Call it before a driver is loaded: a driver's
/// handler then comes first, and passes on what is not its own.
void install_last_words();

}  // namespace gantry::worker
