// BulkPages: page-locks the channel's bulk area, once: a copy into it is one transfer then, without
// the driver's own staging.
//
// Owner: GuestProcess. Threads: any. Failure: a driver that refuses copies all the same, only
// slower. Cost: lock() is one load once it was tried.
#pragma once

#include <atomic>
#include <cstdint>

#include "host-daemon/execution/device/device.h"
#include "host-daemon/execution/process/guest_channel.h"
#include "host-daemon/execution/ring/bulk_board.h"
#include "proto/base/mutex.h"

namespace gantry::worker {

class BulkPages {
public:
    BulkPages(Device& device, GuestChannel& channel, BulkBoard& board)
        : device_(device), channel_(channel), board_(board) {}

    /// False when the driver refuses.
    bool lock();
    void unlock();
    /// Counts a read; true once there were so many that page-locking pays.
    bool is_frequent_reader();

private:
    Device& device_;
    GuestChannel& channel_;
    BulkBoard& board_;
    Mutex mutex_;
    std::atomic<bool> is_tried_{false};
    std::atomic<bool> is_locked_{false};  ///< Changed under mutex_.
    std::atomic<std::uint32_t> reads_{0};
};

}  // namespace gantry::worker
