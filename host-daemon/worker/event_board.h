// EventBoard: shows the guest which event records have completed, so that it need not ask.
//
// A completed cuEventRecord is written into HostWords.event_done by its position on the ring
// (proto/wire/region.h, EVENTS). look() asks the driver about the records it does not know to have
// completed; the loop calls it now and then, and whoever is about to answer a command that tells of
// completed work calls it first: a guest that has synchronised must see its events done.
//
// Invariant: what is shown has completed. Nothing is shown while a migration is announced. What is
// forgotten (more records open than kOpenMax, a restore) costs the guest a kLookAtEvent.
// Threads: all calls lock. Failure: a driver's error is look()'s result; the record is forgotten.
// Cost: with nothing open one load; a look is a query of the driver per stream with open records.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "host-daemon/worker/device.h"
#include "proto/wire/region.h"

namespace gantry::worker {

class EventBoard {
public:
    static constexpr std::size_t kOpenMax = 128;

    explicit EventBoard(Device& device) : device_(device) {}

    /// Null: shows nothing any more. `executed`: all commands below this position were executed.
    void attach(wire::HostWords* words, std::uint64_t executed);
    void announce(bool migrating);

    /// The guest's event was recorded in this stream by the command at `position`.
    void recorded(std::uint64_t event, std::uint64_t position, CUevent native, CUstream stream);
    /// Nobody asks the driver about the event any more: before it is destroyed.
    void forget(std::uint64_t event);
    /// Asks about at most `most` records, oldest first, and of each stream until one is not ready.
    CUresult look(std::size_t most);
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
    void show_locked(std::uint64_t event, std::uint64_t position);

    Device& device_;
    std::atomic<std::size_t> open_count_{0};
    std::mutex mutex_;
    wire::HostWords* words_ = nullptr;
    bool announced_ = false;
    std::vector<Open> open_;  ///< Oldest first.
};

}  // namespace gantry::worker
