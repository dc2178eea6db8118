// DeviceMemory: the guest's device and pinned memory, and which addresses its commands may name.
//
// Freed memory is given back only when the device has finished with it, since a guest's free
// returns at once: free_later() parks it, reap() (after a synchronisation) gives it back. A free in
// stream order waits for an event of that stream instead of the whole device.
//
// Invariant: owns() is true only for addresses that belong to this guest: live or parked
// allocations, the pinned pool, module globals that were announced. Every address in a command of
// the guest is held against it before a driver that could read this process's own memory sees it.
//
// Threads: any. Failure: reasons `memory.*`. Cost: owns() is one or two map look-ups; free_bytes()
// takes no lock where nothing is parked.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "host-daemon/execution/base/arena_allocator.h"
#include "host-daemon/execution/base/memory_share.h"
#include "host-daemon/execution/device/device.h"
#include "proto/base/mutex.h"

namespace gantry::worker {

struct PinnedRange {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    std::uint32_t flags = 0;
};

/// Guest memory that does not lie in the arena.
struct OutsideRange {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    std::uint64_t lies_at = 0;  ///< Where its bytes are: at `address`, but for add_outside().
};

/// No memory is taken away while one lives that DeviceMemory::hold_layout() has given. It moves, so
/// the analysis of locks cannot follow it; it protects no member.
using LayoutHold = std::unique_lock<Mutex>;

class DeviceMemory {
public:
    DeviceMemory(Device& device, std::uint64_t quota_bytes);

    Result<DeviceVa> allocate(std::uint64_t bytes);
    /// Parks the allocation; false when none starts there. `stream`: free in its order.
    bool free_later(DeviceVa address, std::optional<CUstream> stream);
    /// Allocated, and not freed by the guest (it may be parked until the device is idle).
    [[nodiscard]] bool is_live(DeviceVa address) const;
    /// Called whenever the guest has freed an allocation, without a lock held.
    std::function<void(DeviceVa)> on_freed;
    /// A graph allocates or frees it: it stays for as long as there are graphs. `is_live`: it is
    /// allocated now, as the program sees it; ignored where it is kept already.
    bool keep_for_graphs(DeviceVa address, bool is_live);
    /// No graph is left: parks what was kept for them and is not live, and tells what that is. What
    /// is live becomes an ordinary allocation, which the program frees.
    std::vector<DeviceVa> free_graph_memory();
    [[nodiscard]] std::map<std::uint64_t, bool> kept_for_graphs() const;
    /// A graph has been launched that allocates and frees these.
    void ran_in_graph(const std::set<std::uint64_t>& allocates,
                      const std::set<std::uint64_t>& frees);
    /// False when one of these is live: then the graph cannot allocate it again.
    [[nodiscard]] bool may_allocate(const std::set<std::uint64_t>& addresses) const;
    /// Bytes that graphs have allocated and keep, and the most of either.
    struct GraphUse {
        std::uint64_t used = 0;
        std::uint64_t used_high = 0;
        std::uint64_t reserved = 0;
        std::uint64_t reserved_high = 0;
    };
    [[nodiscard]] GraphUse graph_use() const;
    void reset_graph_use_high(bool used);
    /// Gives back what was parked before the device was last found idle. `all`: the caller has just
    /// synchronised the whole device.
    void reap(bool all);
    [[nodiscard]] bool has_parked() const {
        return parked_count_.load(std::memory_order_acquire) != 0;
    }
    /// Gives everything back that the guest has freed; the device is idle. Before a capture, so
    /// that the layout follows from the allocations alone.
    void settle();
    /// Gives back what the arena keeps for the next small allocation.
    void drop_spare();
    /// What is parked for an idle device now; gives these back once the device has been idle since.
    [[nodiscard]] std::vector<DeviceVa> parked_now() const;
    void reap_these(const std::vector<DeviceVa>& parked);

    /// Page-locks a part of the pinned pool, so that kernels may use its addresses.
    CUresult register_pinned(const PinnedRange& range);
    CUresult unregister_pinned(std::uint64_t address);
    [[nodiscard]] std::vector<PinnedRange> pinned_ranges() const;
    void set_pinned_pool(std::uint64_t bytes);

    /// Announces memory outside the arena that the guest may name (a module's global variable).
    /// `lies_at`: where the driver has what a state that is taken in knows by `address`, until
    /// settle_outside(); 0: there.
    void add_outside(std::uint64_t owner, std::uint64_t address, std::uint64_t bytes,
                     std::uint64_t lies_at = 0);
    /// What lies elsewhere has that address from now on.
    void settle_outside();
    void remove_outside(std::uint64_t owner);

    /// Address space without memory, for mappings of the guest's own (virtual_memory.h).
    Result<DeviceVa> reserve(std::uint64_t bytes, std::uint64_t alignment);
    /// False unless it is a whole reservation with nothing mapped in it.
    bool release_reservation(DeviceVa address, std::uint64_t bytes);
    [[nodiscard]] bool is_reserved(std::uint64_t address, std::uint64_t bytes) const;
    [[nodiscard]] std::vector<AllocationRecord> reservations() const;
    /// Addresses at which the guest has mapped memory whose home is elsewhere in the arena.
    void add_window(std::uint64_t address, std::uint64_t bytes);
    void remove_window(std::uint64_t address);

    [[nodiscard]] bool owns(std::uint64_t address, std::uint64_t bytes) const;
    [[nodiscard]] std::optional<AllocationRecord> find(DeviceVa address) const;

    [[nodiscard]] std::vector<ExtentRecord> extents() const;
    /// Those that meet [address, address + bytes).
    [[nodiscard]] std::vector<ExtentRecord> extents_in(std::uint64_t address,
                                                       std::uint64_t bytes) const;
    [[nodiscard]] std::vector<OutsideRange> outside_ranges() const;
    [[nodiscard]] std::vector<OutsideRange> outside_in(std::uint64_t address,
                                                       std::uint64_t bytes) const;
    /// While it is held no memory is taken away, so that it can be copied: frees wait, and so do
    /// the ends of modules and arrays, which are not the arena's (op_traits.h, kEndsMemory).
    [[nodiscard]] LayoutHold hold_layout() const { return LayoutHold(unmap_mutex_); }
    /// Live allocations; parked ones are reaped by a freeze before it asks.
    [[nodiscard]] std::vector<AllocationRecord> allocations() const;
    // The arena's count and quota are atomic: they are read without the lock.
    [[nodiscard]] std::uint64_t mapped_bytes() const GANTRY_NO_THREAD_SAFETY_ANALYSIS {
        return arena_.mapped_bytes();
    }
    /// What the quota has left: what was freed and waits for work that may use it is there for an
    /// allocation that asks. (Small ones, which share what is mapped, count until they go.)
    /// Never more than the device can give: a guest goes on with the size that it was told, here
    /// perhaps on a smaller device, or on one that others use. The device's context is current.
    [[nodiscard]] std::uint64_t free_bytes(std::uint64_t quota_bytes);
    [[nodiscard]] std::uint64_t quota_bytes() const GANTRY_NO_THREAD_SAFETY_ANALYSIS {
        return arena_.quota_bytes();
    }
    /// The guest was told of no more, perhaps on another host: it gets no more.
    void lower_quota(std::uint64_t bytes);
    [[nodiscard]] MemoryShare& share() { return share_; }
    Result<void> reshape(std::span<const ExtentRecord> extents,
                         std::span<const AllocationRecord> allocations,
                         std::span<const AllocationRecord> reservations);
    /// Gives every allocation back (the context was reset); the device is idle.
    void free_everything();
    void release_all();

private:
    [[nodiscard]] bool in_windows(std::uint64_t address, std::uint64_t bytes) const
        GANTRY_REQUIRES(mutex_);
    void set_live(std::uint64_t address, bool is_live) GANTRY_REQUIRES(mutex_);
    void note_graph_use() GANTRY_REQUIRES(mutex_);
    bool park(DeviceVa address, std::optional<CUstream> stream);

    struct Parked {
        DeviceVa address;
        CUevent event = nullptr;  ///< Null: when the whole device was idle.
    };
    struct Outside {
        std::uint64_t owner = 0;
        std::uint64_t bytes = 0;
        std::uint64_t lies_at = 0;
    };

    Device& device_;
    MemoryShare share_;
    /// Whatever gives memory back holds it, so that the layout stays.
    mutable Mutex unmap_mutex_ GANTRY_ACQUIRED_BEFORE(mutex_);
    mutable Mutex mutex_;
    ArenaAllocator arena_ GANTRY_GUARDED_BY(mutex_);
    std::vector<Parked> parked_ GANTRY_GUARDED_BY(mutex_);
    std::atomic<std::size_t> parked_count_{0};  ///< To be seen without the lock.
    std::map<std::uint64_t, PinnedRange> pinned_ GANTRY_GUARDED_BY(mutex_);
    std::map<std::uint64_t, Outside> outside_ GANTRY_GUARDED_BY(mutex_);
    /// Address -> is it live.
    std::map<std::uint64_t, bool> graph_memory_ GANTRY_GUARDED_BY(mutex_);
    GraphUse graph_use_ GANTRY_GUARDED_BY(mutex_);
    std::map<std::uint64_t, std::uint64_t> windows_ GANTRY_GUARDED_BY(mutex_);  ///< Start -> bytes.
    std::atomic<std::uint64_t> pinned_pool_bytes_{0};  ///< owns() reads it without the lock.

    void note_parked() GANTRY_REQUIRES(mutex_) {
        parked_count_.store(parked_.size(), std::memory_order_release);
    }
    [[nodiscard]] std::uint64_t parked_bytes() const GANTRY_REQUIRES(mutex_);
    [[nodiscard]] std::uint64_t free_with(std::uint64_t parked, std::uint64_t quota_bytes) const;
    /// Once every few milliseconds: what the device could give, whoever else uses it.
    void ask_device();

    std::atomic<std::uint64_t> asked_at_{~0ull};  ///< Of the processor's counter.
    /// What was free then, and what was mapped and charged here.
    std::atomic<std::uint64_t> device_could_give_{0};
};

}  // namespace gantry::worker
