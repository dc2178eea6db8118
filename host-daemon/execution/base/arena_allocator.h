// ArenaAllocator: gives out device addresses inside the reserved arena and decides which granules
// of it need physical memory.
//
// Invariant: every live allocation lies inside exactly one extent; extents never overlap; an extent
// exists only while an allocation lies in it (one empty slab is kept back, so that a loop of small
// allocations does not map and unmap a granule each time). Addresses depend on nothing but the
// sequence of calls: first fit by address.
//
// Two kinds of extent: a slab of one granule shared by small allocations, and a private extent of
// whole granules for everything above kSmallBytesMax, so that a small neighbour never keeps a large
// block's memory alive. Physical bytes, not requested ones, count against the quota, as on a GPU.
//
// Owner: the worker's DeviceMemory, which serialises the calls and supplies the GranuleMapper. Not
// thread-safe. Failure: a Result with reason `memory.*`; the allocator is unchanged then.
// Cost: O(log n) in the number of allocations for a large block, O(slabs) for a small one.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "host-daemon/execution/base/address_runs.h"
#include "proto/base/ids.h"
#include "proto/base/result.h"

namespace gantry::worker {

/// Backs a range of the arena with physical memory, and takes it away again.
class GranuleMapper {
public:
    virtual ~GranuleMapper() = default;
    virtual Result<void> map(DeviceVa address, std::uint64_t bytes) = 0;
    /// Only ranges given to map(), whole.
    virtual void unmap(DeviceVa address, std::uint64_t bytes) = 0;
    /// False when other memory than what map() put there has come for this address (a take-over).
    [[nodiscard]] virtual bool is_current(DeviceVa) const { return true; }
};

struct ExtentRecord {
    DeviceVa address;
    std::uint64_t bytes = 0;
    bool is_slab = false;
    friend bool operator==(const ExtentRecord&, const ExtentRecord&) = default;
};

struct AllocationRecord {
    DeviceVa address;
    std::uint64_t bytes = 0;  ///< As the guest asked, not rounded.
    friend bool operator==(const AllocationRecord&, const AllocationRecord&) = default;
};

class ArenaAllocator {
public:
    static constexpr std::uint64_t kGranuleBytes = 2ull << 20;
    static constexpr std::uint64_t kSmallBytesMax = 1ull << 20;
    static constexpr std::uint64_t kAlignBytes = 512;

    /// `base` and `bytes` are multiples of kGranuleBytes. `quota_bytes` bounds physical memory.
    ArenaAllocator(DeviceVa base, std::uint64_t bytes, std::uint64_t quota_bytes,
                   GranuleMapper& mapper);

    Result<DeviceVa> allocate(std::uint64_t bytes);
    /// False when no live allocation starts at `address`.
    bool free(DeviceVa address);
    /// Gives the empty slab back, so that the layout follows from the allocations alone.
    void drop_spare();
    /// Takes address space without memory (for guests that map physical memory themselves).
    Result<DeviceVa> reserve(std::uint64_t bytes, std::uint64_t alignment);
    bool release(DeviceVa address);

    /// The live allocation that contains `address`.
    [[nodiscard]] std::optional<AllocationRecord> find(DeviceVa address) const;

    /// Turns the present layout into the given one, mapping and unmapping only the difference.
    /// Used by a restore. On error the layout is that of the extents mapped so far.
    Result<void> reshape(std::span<const ExtentRecord> extents,
                         std::span<const AllocationRecord> allocations,
                         std::span<const AllocationRecord> reservations);

    [[nodiscard]] std::vector<ExtentRecord> extents() const;
    /// Those that meet [address, address + bytes), ascending.
    [[nodiscard]] std::vector<ExtentRecord> extents_in(std::uint64_t address,
                                                       std::uint64_t bytes) const;
    [[nodiscard]] std::vector<AllocationRecord> allocations() const;
    [[nodiscard]] std::vector<AllocationRecord> reservations() const;
    [[nodiscard]] std::uint64_t mapped_bytes() const { return mapped_bytes_; }
    [[nodiscard]] std::uint64_t requested_bytes() const { return requested_bytes_; }
    [[nodiscard]] std::uint64_t quota_bytes() const { return quota_bytes_; }
    void lower_quota(std::uint64_t bytes) { quota_bytes_ = std::min(quota_bytes(), bytes); }

private:
    struct Extent {
        std::uint64_t bytes = 0;
        bool is_slab = false;
        std::uint32_t live_count = 0;
        AddressRuns free_runs;  ///< Slabs only.
    };
    using Extents = std::map<std::uint64_t, Extent>;

    Result<void> map_extent(std::uint64_t start, std::uint64_t bytes, bool is_slab);
    void unmap_extent(Extents::iterator extent);
    Result<DeviceVa> allocate_small(std::uint64_t bytes);
    Result<DeviceVa> allocate_large(std::uint64_t bytes);
    void keep_or_unmap_slab(Extents::iterator slab);
    Extents::iterator extent_of(std::uint64_t address);
    Result<void> check_layout(std::span<const ExtentRecord> extents,
                              std::span<const AllocationRecord> allocations,
                              std::span<const AllocationRecord> reservations) const;

    std::uint64_t base_;
    std::uint64_t bytes_;
    std::atomic<std::uint64_t> quota_bytes_;  ///< Changed by the owner, read by any thread.
    GranuleMapper& mapper_;
    AddressRuns free_runs_;  ///< Unused granules of the arena.
    Extents extents_;
    std::map<std::uint64_t, std::uint64_t> allocations_;   ///< Start -> requested bytes.
    std::map<std::uint64_t, std::uint64_t> reservations_;  ///< Start -> bytes.
    std::atomic<std::uint64_t> mapped_bytes_{0};  ///< Changed by the owner, read by any thread.
    std::uint64_t requested_bytes_ = 0;
    std::uint64_t spare_slab_ = 0;  ///< Address of the one empty slab kept, or 0.
};

}  // namespace gantry::worker
