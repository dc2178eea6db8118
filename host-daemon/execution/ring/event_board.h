// EventBoard: shows the guest which event records have completed, so that it need not ask.
//
// A completed cuEventRecord is written into HostWords.event_done by its position on the ring
// (proto/wire/region.h, EVENTS). look() asks the driver about the records it does not know to have
// completed; the loop calls it now and then, and whoever is about to answer a command that tells of
// completed work calls it first: a guest that has synchronised must see its events done.
//
// Invariant: what is shown has completed, and what has completed is shown by look_at_all(), however
// many records are open: a guest takes what is not shown for pending. Nothing is shown while a
// migration is announced; of records before it the guest asks (guest-shim/session/events.cc).
// Threads: all calls lock. Failure: a driver's error is look()'s result; the record is forgotten.
// Cost: with nothing open one load; else a query of the driver per completed record and per busy
// stream. An event has one open record at most.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

#include "host-daemon/execution/device/device.h"
#include "proto/base/mutex.h"
#include "proto/wire/region.h"

namespace gantry::worker {

class EventBoard {
public:
    explicit EventBoard(Device& device) : device_(device) {}

    /// Null: shows nothing any more. `executed`: all commands below this position were executed.
    void attach(wire::HostWords* words, std::uint64_t executed);
    void announce(bool migrating);

    /// The guest's event was recorded in this stream by the command at `position`.
    void recorded(std::uint64_t event, std::uint64_t position, CUevent native, CUstream stream);
    /// Nobody asks the driver about the event any more: before it is destroyed.
    void forget(std::uint64_t event);
    /// Asks about a few records, oldest first, and of each stream until one is not ready.
    CUresult look();
    /// Shows every record that has completed. Each is asked about by itself: a stream's handle may
    /// be that of one that is gone, whose records still wait.
    CUresult look_at_all();
    /// The guest's kLookAtEvent at `position`; `native` is null when there is no such event.
    CUresult look_at(std::uint64_t event, std::uint64_t recorded, CUevent native,
                     std::uint64_t position);
    /// A command without an answer has failed.
    void late_error();

private:
    struct Open {
        std::uint64_t event = 0;
        std::uint64_t position = 0;
        CUevent native = nullptr;
        CUstream stream = nullptr;
    };
    using Records = std::list<Open>;
    void show_locked(std::uint64_t event, std::uint64_t position) GANTRY_REQUIRES(mutex_);
    CUresult ask(std::size_t ask_most, std::size_t see_most);
    void end_locked(Records::iterator open) GANTRY_REQUIRES(mutex_);

    Device& device_;
    std::atomic<std::size_t> open_count_{0};
    Mutex mutex_;
    wire::HostWords* words_ GANTRY_GUARDED_BY(mutex_) = nullptr;
    bool announced_ GANTRY_GUARDED_BY(mutex_) = false;
    Records open_ GANTRY_GUARDED_BY(mutex_);  ///< Oldest first.
    std::unordered_map<std::uint64_t, Records::iterator> by_event_ GANTRY_GUARDED_BY(mutex_);
};

}  // namespace gantry::worker
