// SharedMemory: device memory that this worker's guest process gives to other processes of its VM,
// and what it has opened of theirs (proto/decisions/0006-memory-between-processes.md).
//
// What is given is the physical memory of a whole extent of the arena, as a descriptor of the
// driver's, offered to the host's broker under a token. What is opened is mapped whole in a range
// of addresses reserved in this worker's own arena, of which the guest may name the one allocation
// that the handle is about. This worker's snapshots leave it out (a move is refused while anything
// is open); its quota counts it, so that memory which its giver has freed cannot pile up uncounted.
//
// Threads: all calls lock; offer() and open() ask the broker and may wait. Failure: the driver's
// results; CUDA_ERROR_NOT_SUPPORTED where there is no broker. Cost: a round trip to the broker and,
// for open(), a mapping of the driver.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>

#include "host-daemon/execution/memory/device_memory.h"
#include "host-daemon/execution/memory/share_link.h"
#include "proto/base/mutex.h"
#include "proto/cuda/wire_hand.h"

namespace gantry::worker {

class SharedMemory {
public:
    using Handle = cuda::wire_hand::ShareHandle;

    SharedMemory(Device& device, DeviceMemory& memory, ShareLink& link)
        : device_(device), memory_(memory), link_(link) {}
    ~SharedMemory() { close_all(); }
    SharedMemory(const SharedMemory&) = delete;
    SharedMemory& operator=(const SharedMemory&) = delete;

    /// A handle for the allocation that contains `address`; the same one as long as it lives.
    CUresult offer(std::uint64_t address, Handle* handle);
    /// The allocation is freed: its handle opens nothing more. Cheap when nothing is offered.
    void freed(std::uint64_t address) {
        if (offer_count_.load(std::memory_order_acquire) != 0) {
            withdraw(address);
        }
    }
    /// Opening again what is open gives the same address, and wants closing once more.
    CUresult open(const Handle& handle, std::uint64_t* address);
    /// The device is done with it. CUDA_ERROR_INVALID_VALUE when nothing is open there.
    CUresult close(std::uint64_t address, bool* is_last);
    /// The context is gone, or the process: everything opened is closed, all handles are void.
    void close_all();

    /// Opened here, and open elsewhere, or about to be, of what is offered here.
    [[nodiscard]] std::uint64_t open_count();

private:
    struct Offered {
        control::ShareToken token;
        std::uint64_t connection = 0;  ///< Of the link: over a later one it opens nothing.
        std::uint64_t offset = 0;      ///< Of the allocation in its extent.
        std::uint64_t bytes = 0;
    };
    struct Opened {
        control::ShareToken token;
        std::uint64_t base = 0;  ///< Where its extent is mapped.
        std::uint64_t bytes = 0;
        std::uint32_t uses = 0;
        CUmemGenericAllocationHandle handle = 0;
        MemoryChargePtr charge;
    };
    using Answer = ShareLink::Answer;
    void withdraw(std::uint64_t address);
    void withdraw_locked(std::uint64_t address) GANTRY_REQUIRES(mutex_);
    CUresult map(const Answer& piece, Opened* opened);
    void unmap(const Opened& opened);

    Device& device_;
    DeviceMemory& memory_;
    ShareLink& link_;
    std::atomic<std::size_t> offer_count_{0};
    Mutex mutex_;
    /// By the allocation's address.
    std::map<std::uint64_t, Offered> offered_ GANTRY_GUARDED_BY(mutex_);
    /// By the address that the guest was given.
    std::map<std::uint64_t, Opened> opened_ GANTRY_GUARDED_BY(mutex_);
};

}  // namespace gantry::worker
