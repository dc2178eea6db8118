#include "host-daemon/state/blocks/locked_pages.h"

namespace gantry::state {
namespace {

/// Between two looks whether the driver may be called again.
constexpr std::chrono::milliseconds kAgain{5};
/// ... so that a capture which waits to begin comes first.
constexpr std::chrono::microseconds kForOthers{100};

}  // namespace

bool may_lock_pages(const worker::GuestProcess& process) {
    return process.is_broken() || (!process.graphs.captures.any() && !process.held.active());
}

bool unlock_pages(worker::GuestProcess& process, std::span<const std::span<std::byte>> locked,
                  const Rest& rest) {
    process.device.bind_thread();
    while (!locked.empty()) {
        MutexLock gate(process.graphs.captures.gate);
        const bool may = may_lock_pages(process);
        if (may) {
            process.device.api().cuMemHostUnregister(locked.front().data());
            locked = locked.subspan(1);
        }
        gate.unlock();
        if (rest(may ? kForOthers : std::chrono::microseconds(kAgain))) {
            return locked.empty();
        }
    }
    return true;
}

}  // namespace gantry::state
