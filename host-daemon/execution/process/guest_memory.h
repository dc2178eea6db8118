// GuestMemory: the memory of one guest process, and what is kept about it. GuestShares: what it
// shares with other processes of its VM.
//
// Owner: GuestProcess. Threads: each member as its header says. Failure: as the members'.
#pragma once

#include <cstdint>

#include "host-daemon/execution/device/event_pool.h"
#include "host-daemon/execution/device/staging_pool.h"
#include "host-daemon/execution/memory/device_memory.h"
#include "host-daemon/execution/memory/pinned_writes.h"
#include "host-daemon/execution/memory/pool_book.h"
#include "host-daemon/execution/memory/share_link.h"
#include "host-daemon/execution/memory/shared_events.h"
#include "host-daemon/execution/memory/shared_memory.h"
#include "host-daemon/execution/memory/virtual_memory.h"

namespace gantry::worker {

class GuestMemory {
public:
    GuestMemory(Device& owner, EventPool& own_events, std::uint64_t quota_bytes)
        : device(owner, quota_bytes),
          ranges(owner, device),
          staging(owner, own_events),
          pinned_writes(own_events, device),
          owner_(owner) {}
    GuestMemory(const GuestMemory&) = delete;
    GuestMemory& operator=(const GuestMemory&) = delete;

    DeviceMemory device;
    VirtualMemory ranges;  ///< The guest's own reservations and mappings.
    PoolBook pools;
    StagingPool staging;
    PinnedWrites pinned_writes;

    /// Brings the driver's private ranges into the books; before a scan and a capture.
    void refresh_private_ranges();

private:
    Device& owner_;
};

struct GuestShares {
    GuestShares(Device& device, DeviceMemory& own)
        : memory(device, own, link), events(device, link) {}

    ShareLink link;
    SharedMemory memory;
    SharedEvents events;
};

}  // namespace gantry::worker
