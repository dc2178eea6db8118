// SharedEvents: events that this worker's guest process gives to other processes of its VM, and
// what it has opened of theirs (proto/decisions/0007-events-between-processes.md).
//
// The driver's own handle of an event goes to the host's broker, which gives out a token for it;
// the guest has the token, and the driver's handle never leaves the host. Whoever opens the token
// has the driver open the handle. An event that was opened is an object like any other, and ends as
// one; a move is refused while one is open.
//
// Threads: all calls lock; offer() and open() ask the broker and may wait. Failure: the driver's
// results; CUDA_ERROR_NOT_SUPPORTED where there is no broker. Cost: a round trip to the broker.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>

#include "host-daemon/execution/device/device.h"
#include "host-daemon/execution/memory/share_link.h"
#include "proto/base/mutex.h"
#include "proto/cuda/wire_hand.h"

namespace gantry::worker {

class SharedEvents {
public:
    using Handle = cuda::wire_hand::ShareHandle;

    SharedEvents(Device& device, ShareLink& link) : device_(device), link_(link) {}
    SharedEvents(const SharedEvents&) = delete;
    SharedEvents& operator=(const SharedEvents&) = delete;

    /// A handle for the guest's event; the same one as long as it lives.
    CUresult offer(std::uint64_t event, CUevent native, Handle* handle);
    /// Makes the driver's event that is to be the guest's `event`.
    CUresult open(const Handle& handle, std::uint64_t event, CUevent* native);
    /// The guest's event is gone. Cheap for one that was neither given nor opened.
    void ended(std::uint64_t event) {
        if (count_.load(std::memory_order_acquire) != 0) {
            forget(event);
        }
    }
    /// It was given or opened: others may record it.
    [[nodiscard]] bool is_shared(std::uint64_t event);

    /// Opened here, and open elsewhere, or about to be, of what is offered here.
    [[nodiscard]] std::uint64_t open_count();

private:
    struct Offered {
        control::ShareToken token;
        std::uint64_t connection = 0;  ///< Of the link: over a later one it opens nothing.
    };
    void forget(std::uint64_t event);
    void note_count() GANTRY_REQUIRES(mutex_) { count_ = offered_.size() + opened_.size(); }

    Device& device_;
    ShareLink& link_;
    std::atomic<std::size_t> count_{0};
    Mutex mutex_;
    // By the guest's handle.
    std::map<std::uint64_t, Offered> offered_ GANTRY_GUARDED_BY(mutex_);
    std::map<std::uint64_t, control::ShareToken> opened_ GANTRY_GUARDED_BY(mutex_);
};

}  // namespace gantry::worker
