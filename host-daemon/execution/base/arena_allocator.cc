#include "host-daemon/execution/base/arena_allocator.h"

#include <fmt/format.h>

#include <algorithm>

namespace gantry::worker {
namespace {

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
    return (value + unit - 1) / unit * unit;
}

Error bad_layout(std::string text) {
    return Error{Code::kInvalidArgument, "memory.layout",
                 "the snapshot's memory layout is impossible: " + std::move(text)};
}

/// A small allocation lies in a slab, a large one is exactly its extent; takes it out of `inside`.
bool fits_its_extent(const AllocationRecord& allocation,
                     const std::map<std::uint64_t, ExtentRecord>& extents, AddressRuns& inside) {
    const std::uint64_t address = allocation.address.value;
    auto extent = extents.upper_bound(address);
    if (allocation.bytes == 0 || extent == extents.begin()) {
        return false;
    }
    --extent;
    const bool small = allocation.bytes <= ArenaAllocator::kSmallBytesMax;
    if (small != extent->second.is_slab || allocation.bytes > extent->second.bytes) {
        return false;
    }
    if (small) {
        return address % ArenaAllocator::kAlignBytes == 0 &&
               take_run(inside, address, round_up(allocation.bytes, ArenaAllocator::kAlignBytes));
    }
    return extent->first == address &&
           round_up(allocation.bytes, ArenaAllocator::kGranuleBytes) == extent->second.bytes &&
           take_run(inside, address, extent->second.bytes);
}

}  // namespace

ArenaAllocator::ArenaAllocator(DeviceVa base, std::uint64_t bytes, std::uint64_t quota_bytes,
                               GranuleMapper& mapper)
    : base_(base.value), bytes_(bytes), quota_bytes_(quota_bytes), mapper_(mapper) {
    GANTRY_ASSERT(base_ % kGranuleBytes == 0 && bytes_ % kGranuleBytes == 0,
                  "arena %#llx+%#llx is not made of whole granules",
                  static_cast<unsigned long long>(base_), static_cast<unsigned long long>(bytes_));
    free_runs_.emplace(base_, bytes_);
}

Result<DeviceVa> ArenaAllocator::allocate(std::uint64_t bytes) {
    if (bytes == 0) {
        return Error{Code::kInvalidArgument, "memory.size", "an allocation of no bytes"};
    }
    if (bytes > bytes_) {
        return Error{Code::kResourceExhausted, "memory.quota",
                     fmt::format("{} bytes are more than the arena holds", bytes)};
    }
    auto address = bytes <= kSmallBytesMax ? allocate_small(round_up(bytes, kAlignBytes))
                                           : allocate_large(round_up(bytes, kGranuleBytes));
    if (address.ok()) {
        allocations_.emplace(address->value, bytes);
        requested_bytes_ += bytes;
    }
    return address;
}

Result<DeviceVa> ArenaAllocator::allocate_small(std::uint64_t bytes) {
    for (auto& [start, extent] : extents_) {
        if (!extent.is_slab) {
            continue;
        }
        if (const auto place = find_run(extent.free_runs, bytes, kAlignBytes)) {
            take_run(extent.free_runs, *place, bytes);
            ++extent.live_count;
            if (spare_slab_ == start) {
                spare_slab_ = 0;
            }
            return DeviceVa{*place};
        }
    }
    const auto start = find_run(free_runs_, kGranuleBytes, kGranuleBytes);
    if (!start) {
        return Error{Code::kResourceExhausted, "memory.arena", "the arena is full"};
    }
    GANTRY_TRY(map_extent(*start, kGranuleBytes, true));
    Extent& slab = extents_.at(*start);
    take_run(slab.free_runs, *start, bytes);
    slab.live_count = 1;
    return DeviceVa{*start};
}

Result<DeviceVa> ArenaAllocator::allocate_large(std::uint64_t bytes) {
    const auto start = find_run(free_runs_, bytes, kGranuleBytes);
    if (!start) {
        return Error{Code::kResourceExhausted, "memory.arena",
                     fmt::format("the arena has no room for {} bytes in one piece", bytes)};
    }
    if (auto mapped = map_extent(*start, bytes, false); !mapped.ok()) {
        return mapped.error();
    }
    extents_.at(*start).live_count = 1;
    return DeviceVa{*start};
}

Result<void> ArenaAllocator::map_extent(std::uint64_t start, std::uint64_t bytes, bool is_slab) {
    if (bytes > quota_bytes() - std::min(quota_bytes(), mapped_bytes()) && spare_slab_ != 0) {
        drop_spare();  // It is ours to give up before the guest is refused.
    }
    if (bytes > quota_bytes() - std::min(quota_bytes(), mapped_bytes())) {
        return Error{Code::kResourceExhausted, "memory.quota",
                     fmt::format("{} bytes more would exceed the quota: {} of {} are in use", bytes,
                                 mapped_bytes(), quota_bytes())};
    }
    GANTRY_TRY(mapper_.map(DeviceVa{start}, bytes));
    const bool taken = take_run(free_runs_, start, bytes);
    GANTRY_ASSERT(taken, "granules at %#llx were not free", static_cast<unsigned long long>(start));
    Extent extent{bytes, is_slab, 0, {}};
    if (is_slab) {
        extent.free_runs.emplace(start, bytes);
    }
    extents_.emplace(start, std::move(extent));
    mapped_bytes_ += bytes;
    return {};
}

void ArenaAllocator::unmap_extent(Extents::iterator extent) {
    mapper_.unmap(DeviceVa{extent->first}, extent->second.bytes);
    mapped_bytes_ -= extent->second.bytes;
    give_run(free_runs_, extent->first, extent->second.bytes);
    extents_.erase(extent);
}

ArenaAllocator::Extents::iterator ArenaAllocator::extent_of(std::uint64_t address) {
    auto extent = extents_.upper_bound(address);
    GANTRY_ASSERT(extent != extents_.begin(), "no extent holds %#llx",
                  static_cast<unsigned long long>(address));
    --extent;
    GANTRY_ASSERT(address - extent->first < extent->second.bytes, "no extent holds %#llx",
                  static_cast<unsigned long long>(address));
    return extent;
}

bool ArenaAllocator::free(DeviceVa address) {
    const auto allocation = allocations_.find(address.value);
    if (allocation == allocations_.end()) {
        return false;
    }
    const std::uint64_t bytes = allocation->second;
    allocations_.erase(allocation);
    requested_bytes_ -= bytes;
    const auto extent = extent_of(address.value);
    --extent->second.live_count;
    if (!extent->second.is_slab) {
        unmap_extent(extent);
        return true;
    }
    give_run(extent->second.free_runs, address.value, round_up(bytes, kAlignBytes));
    if (extent->second.live_count == 0) {
        keep_or_unmap_slab(extent);
    }
    return true;
}

void ArenaAllocator::keep_or_unmap_slab(Extents::iterator slab) {
    if (spare_slab_ == 0) {
        spare_slab_ = slab->first;
        return;
    }
    unmap_extent(slab);
}

void ArenaAllocator::drop_spare() {
    if (spare_slab_ != 0) {
        const auto spare = extents_.find(spare_slab_);
        spare_slab_ = 0;
        unmap_extent(spare);
    }
}

Result<DeviceVa> ArenaAllocator::reserve(std::uint64_t bytes, std::uint64_t alignment) {
    if (bytes == 0 || bytes % kGranuleBytes != 0 || (alignment & (alignment - 1)) != 0) {
        return Error{Code::kInvalidArgument, "memory.size",
                     fmt::format("a reservation of {} bytes at alignment {}", bytes, alignment)};
    }
    const auto start = find_run(free_runs_, bytes, std::max(alignment, kGranuleBytes));
    if (!start || !take_run(free_runs_, *start, bytes)) {
        return Error{Code::kResourceExhausted, "memory.arena", "the arena is full"};
    }
    reservations_.emplace(*start, bytes);
    return DeviceVa{*start};
}

bool ArenaAllocator::release(DeviceVa address) {
    const auto reservation = reservations_.find(address.value);
    if (reservation == reservations_.end()) {
        return false;
    }
    give_run(free_runs_, reservation->first, reservation->second);
    reservations_.erase(reservation);
    return true;
}

std::optional<AllocationRecord> ArenaAllocator::find(DeviceVa address) const {
    auto allocation = allocations_.upper_bound(address.value);
    if (allocation == allocations_.begin()) {
        return std::nullopt;
    }
    --allocation;
    if (address.value - allocation->first >= allocation->second) {
        return std::nullopt;
    }
    return AllocationRecord{DeviceVa{allocation->first}, allocation->second};
}

Result<void> ArenaAllocator::check_layout(std::span<const ExtentRecord> extents,
                                          std::span<const AllocationRecord> allocations,
                                          std::span<const AllocationRecord> reservations) const {
    AddressRuns granules{{base_, bytes_}};
    AddressRuns inside;
    std::map<std::uint64_t, ExtentRecord> by_address;
    for (const ExtentRecord& extent : extents) {
        if (extent.bytes == 0 || extent.bytes % kGranuleBytes != 0 ||
            extent.address.value % kGranuleBytes != 0 ||
            (extent.is_slab && extent.bytes != kGranuleBytes) ||
            !take_run(granules, extent.address.value, extent.bytes)) {
            return bad_layout(fmt::format("extent {:#x}+{:#x} overlaps another or lies outside",
                                          extent.address.value, extent.bytes));
        }
        by_address.emplace(extent.address.value, extent);
        give_run(inside, extent.address.value, extent.bytes);
    }
    for (const AllocationRecord& reservation : reservations) {
        if (reservation.bytes == 0 || reservation.bytes % kGranuleBytes != 0 ||
            reservation.address.value % kGranuleBytes != 0 ||
            !take_run(granules, reservation.address.value, reservation.bytes)) {
            return bad_layout(fmt::format("reservation {:#x}+{:#x} overlaps or lies outside",
                                          reservation.address.value, reservation.bytes));
        }
    }
    for (const AllocationRecord& allocation : allocations) {
        if (!fits_its_extent(allocation, by_address, inside)) {
            return bad_layout(fmt::format("allocation {:#x}+{:#x} has no memory of its own",
                                          allocation.address.value, allocation.bytes));
        }
    }
    return {};
}

Result<void> ArenaAllocator::reshape(std::span<const ExtentRecord> extents,
                                     std::span<const AllocationRecord> allocations,
                                     std::span<const AllocationRecord> reservations) {
    GANTRY_TRY(check_layout(extents, allocations, reservations));
    std::map<std::uint64_t, ExtentRecord> wanted;
    for (const ExtentRecord& extent : extents) {
        wanted.emplace(extent.address.value, extent);
    }
    allocations_.clear();
    requested_bytes_ = 0;
    spare_slab_ = 0;
    for (const auto& [start, bytes] : reservations_) {
        give_run(free_runs_, start, bytes);
    }
    reservations_.clear();
    for (auto extent = extents_.begin(); extent != extents_.end();) {
        const auto next = std::next(extent);
        const auto match = wanted.find(extent->first);
        if (match == wanted.end() || match->second.bytes != extent->second.bytes ||
            match->second.is_slab != extent->second.is_slab ||
            !mapper_.is_current(DeviceVa{extent->first})) {
            unmap_extent(extent);
        } else {
            extent->second.live_count = 0;
            extent->second.free_runs.clear();
            if (extent->second.is_slab) {
                extent->second.free_runs.emplace(extent->first, extent->second.bytes);
            }
        }
        extent = next;
    }
    for (const AllocationRecord& reservation : reservations) {
        if (!take_run(free_runs_, reservation.address.value, reservation.bytes)) {
            return bad_layout("a reservation meets memory in use");
        }
        reservations_.emplace(reservation.address.value, reservation.bytes);
    }
    for (const auto& [start, extent] : wanted) {
        if (!extents_.contains(start)) {
            GANTRY_TRY(map_extent(start, extent.bytes, extent.is_slab));
        }
    }
    for (const AllocationRecord& allocation : allocations) {
        const auto extent = extent_of(allocation.address.value);
        ++extent->second.live_count;
        if (extent->second.is_slab) {
            take_run(extent->second.free_runs, allocation.address.value,
                     round_up(allocation.bytes, kAlignBytes));
        }
        allocations_.emplace(allocation.address.value, allocation.bytes);
        requested_bytes_ += allocation.bytes;
    }
    for (const auto& [start, extent] : extents_) {
        if (extent.is_slab && extent.live_count == 0) {
            spare_slab_ = start;
        }
    }
    return {};
}

std::vector<ExtentRecord> ArenaAllocator::extents() const {
    std::vector<ExtentRecord> records;
    records.reserve(extents_.size());
    for (const auto& [start, extent] : extents_) {
        records.push_back({DeviceVa{start}, extent.bytes, extent.is_slab});
    }
    return records;
}

std::vector<ExtentRecord> ArenaAllocator::extents_in(std::uint64_t address,
                                                     std::uint64_t bytes) const {
    std::vector<ExtentRecord> records;
    auto extent = extents_.upper_bound(address);
    if (extent != extents_.begin()) {
        --extent;
    }
    for (; extent != extents_.end() && extent->first < address + bytes; ++extent) {
        if (extent->first + extent->second.bytes > address) {
            records.push_back(
                {DeviceVa{extent->first}, extent->second.bytes, extent->second.is_slab});
        }
    }
    return records;
}

std::vector<AllocationRecord> ArenaAllocator::allocations() const {
    std::vector<AllocationRecord> records;
    records.reserve(allocations_.size());
    for (const auto& [start, bytes] : allocations_) {
        records.push_back({DeviceVa{start}, bytes});
    }
    return records;
}

std::vector<AllocationRecord> ArenaAllocator::reservations() const {
    std::vector<AllocationRecord> records;
    for (const auto& [start, bytes] : reservations_) {
        records.push_back({DeviceVa{start}, bytes});
    }
    return records;
}

}  // namespace gantry::worker
