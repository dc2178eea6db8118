// A few threads that help to move the bytes of large copies. They sleep in between, so that a copy
// pays for waking them and not for making them; not at once, where there are processors enough.
//
// They know nothing of CUDA: no lane, no context, no state of a thread of the application. Started
// with the first copy that asks for them, all signals blocked; a child of this process has none.
// Threads: any number may ask at once and share them. Failure: fewer helpers, or none.
#pragma once

namespace gantry::session {

inline constexpr unsigned kMostHelpers = 5;

struct Help {
    unsigned helpers = 0;  ///< Threads beside the calling one.
    /// Whoever sleeps is woken. Else only right behind another job, as more may follow: one that
    /// comes alone would be done before anybody is awake.
    bool is_long = false;
};

/// Runs `work(data)` in the calling thread and in helpers, and returns when all of them have
/// returned. A helper that comes late finds the work done and does not begin.
void work_together(Help help, void (*work)(void*), void* data) noexcept;

}  // namespace gantry::session
