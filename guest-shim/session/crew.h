// A few threads that help to move the bytes of large copies. They sleep in between, so that a copy
// pays for waking them and not for making them.
//
// They know nothing of CUDA: no lane, no context, no state of a thread of the application. Started
// with the first copy that asks for them, all signals blocked; a child of this process has none.
// Threads: any number may ask at once and share them. Failure: fewer helpers, or none.
#pragma once

namespace gantry::session {

inline constexpr unsigned kMostHelpers = 5;

/// Runs `work(data)` in the calling thread and in up to `helpers` others, and returns when all of
/// them have returned. A helper that comes late finds the work done and does not begin.
void work_together(unsigned helpers, void (*work)(void*), void* data) noexcept;

}  // namespace gantry::session
