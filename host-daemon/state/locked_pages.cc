#include "host-daemon/state/locked_pages.h"

#include <sys/mman.h>

namespace gantry::state {
namespace {

/// Between two looks whether the driver may be called again.
constexpr std::chrono::milliseconds kAgain{5};
/// ... so that a capture which waits to begin comes first.
constexpr std::chrono::microseconds kForOthers{100};

}  // namespace

bool may_lock_pages(const worker::GuestProcess& process) {
    return process.is_broken() || (process.captures.load() == 0 && !process.held.active());
}

bool unlock_pages(worker::GuestProcess& process, std::span<const std::span<std::byte>> locked,
                  const Rest& rest) {
    process.device.bind_thread();
    while (!locked.empty()) {
        std::unique_lock gate(process.capture_gate);
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

LeavingPages::LeavingPages(worker::GuestProcess& process, std::span<std::byte> mapping,
                           std::vector<std::span<std::byte>> locked)
    : process_(process),
      mapping_(mapping),
      locked_(std::move(locked)) {}

void LeavingPages::begin() {
    thread_ = std::thread([this] { run(); });
}

LeavingPages::~LeavingPages() {
    {
        const std::lock_guard lock(mutex_);
        is_ending_ = true;
        changed_.notify_all();
    }
    if (thread_.joinable()) {
        thread_.join();
    }
}

void LeavingPages::run() {
    const auto rest = [this](std::chrono::microseconds time) {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, time, [this] { return is_ending_; });
    };
    if (unlock_pages(process_, locked_, rest)) {
        ::munmap(mapping_.data(), mapping_.size());
    }
    is_over_ = true;
}

}  // namespace gantry::state
