// StagingPool: page-locked buffers for copies of guest bytes to the device.
//
// The bytes of a write command lie in the ring, which must be free again at once; the copy to the
// device happens in stream order, maybe much later. So they wait in a buffer here, until an event
// behind the copy tells that the buffer is free.
//
// Invariant: a buffer is reused only after its event has completed. Threads: all calls lock.
// Failure: falls back to ordinary memory when the driver gives no page-locked memory; null only
// when that fails too. Cost: one event record a write; buffers are kept, kKeptBytesMax of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "host-daemon/execution/device/device.h"
#include "host-daemon/execution/device/event_pool.h"
#include "proto/base/mutex.h"

namespace gantry::worker {

class StagingPool {
public:
    static constexpr std::uint64_t kKeptBytesMax = 64ull << 20;
    static constexpr std::uint64_t kBufferBytesMin = 256ull << 10;

    StagingPool(Device& device, EventPool& events) : device_(device), events_(events) {}
    ~StagingPool();
    StagingPool(const StagingPool&) = delete;
    StagingPool& operator=(const StagingPool&) = delete;

    struct Buffer {
        std::byte* bytes = nullptr;
        std::uint64_t capacity = 0;
        bool page_locked = false;
        EventPool::Event event;
    };
    Buffer acquire(std::uint64_t bytes);
    /// The copy out of `buffer` has been queued on `stream`.
    void release_after(Buffer buffer, CUstream stream);
    /// No copy was queued.
    void release(Buffer buffer);

private:
    void recycle_locked() GANTRY_REQUIRES(mutex_);
    void destroy(Buffer& buffer);

    Device& device_;
    EventPool& events_;
    Mutex mutex_;
    std::vector<Buffer> free_ GANTRY_GUARDED_BY(mutex_);
    std::deque<Buffer> busy_ GANTRY_GUARDED_BY(mutex_);
    std::uint64_t free_bytes_ GANTRY_GUARDED_BY(mutex_) = 0;
};

}  // namespace gantry::worker
