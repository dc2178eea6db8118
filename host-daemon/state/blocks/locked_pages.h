// Page-locked stretches of a file's mapping, and how they are let go while a guest is served.
//
// A driver may wait for the device before it locks pages or lets them go. So neither is done while
// a stream is captured, which it would cost its capture, or a host callback is open, for which it
// would wait for ever. In between others get their turn.
// Threads: as said. Failure: none; what cannot be let go goes with the process.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <span>

#include "host-daemon/execution/process/guest_process.h"

namespace gantry::state {

/// Whoever holds process.graphs.captures.gate may have the driver lock pages and let them go. Of a
/// context that has failed it waits for nothing.
bool may_lock_pages(const worker::GuestProcess& process);

/// Waits so long, or less. True: the worker is about to end, there is no better moment to wait for.
using Rest = std::function<bool(std::chrono::microseconds)>;

/// Lets stretches go, one after the other: several threads were no faster. False: `rest` said so
/// before all were.
bool unlock_pages(worker::GuestProcess& process, std::span<const std::span<std::byte>> locked,
                  const Rest& rest);

}  // namespace gantry::state
