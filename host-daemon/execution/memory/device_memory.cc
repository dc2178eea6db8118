#include "host-daemon/execution/memory/device_memory.h"

#include <algorithm>
#include <set>
#include <utility>

namespace gantry::worker {

DeviceMemory::DeviceMemory(Device& device, std::uint64_t quota_bytes)
    : device_(device),
      share_(device),
      arena_(DeviceVa{wire::kArenaBase}, wire::kArenaBytes, quota_bytes, share_) {
    share_.set_own_quota(quota_bytes);
}

Result<DeviceVa> DeviceMemory::allocate(std::uint64_t bytes) {
    MutexLock lock(mutex_);
    return arena_.allocate(bytes);
}

bool DeviceMemory::free_later(DeviceVa address, std::optional<CUstream> stream) {
    const bool freed = park(address, stream);
    if (freed && on_freed) {
        on_freed(address);
    }
    return freed;
}

bool DeviceMemory::is_live(DeviceVa address) const {
    MutexLock lock(mutex_);
    const auto allocation = arena_.find(address);
    return allocation && allocation->address == address &&
           std::none_of(parked_.begin(), parked_.end(),
                        [address](const Parked& parked) { return parked.address == address; });
}

bool DeviceMemory::park(DeviceVa address, std::optional<CUstream> stream) {
    const driver::DriverApi& api = device_.api();
    CUevent event = nullptr;
    if (stream && (api.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS ||
                   api.cuEventRecord(event, *stream) != CUDA_SUCCESS)) {
        event = nullptr;  // Then the whole device has to be idle: later, but never too early.
    }
    MutexLock lock(mutex_);
    if (const auto kept = graph_memory_.find(address.value); kept != graph_memory_.end()) {
        if (event != nullptr) {
            api.cuEventDestroy_v2(event);
        }
        const bool was_live = std::exchange(kept->second, false);
        note_graph_use();
        return was_live;
    }
    const auto allocation = arena_.find(address);
    bool known = allocation && allocation->address == address;
    for (const Parked& parked : parked_) {
        known = known && parked.address != address;
    }
    if (known) {
        parked_.push_back({address, event});
        note_parked();
    } else if (event != nullptr) {
        api.cuEventDestroy_v2(event);
    }
    return known;
}

bool DeviceMemory::keep_for_graphs(DeviceVa address, bool is_live) {
    MutexLock lock(mutex_);
    const auto allocation = arena_.find(address);
    if (!allocation || allocation->address != address) {
        return false;
    }
    graph_memory_.emplace(address.value, is_live);
    note_graph_use();
    return true;
}

std::vector<DeviceVa> DeviceMemory::free_graph_memory() {
    std::vector<DeviceVa> freed;
    {
        MutexLock lock(mutex_);
        for (const auto& [address, is_live] : graph_memory_) {
            if (!is_live) {
                freed.push_back(DeviceVa{address});
                parked_.push_back({DeviceVa{address}, nullptr});
            }
        }
        note_parked();
        graph_memory_.clear();
        note_graph_use();
    }
    for (const DeviceVa address : freed) {
        if (on_freed) {
            on_freed(address);
        }
    }
    return freed;
}

std::map<std::uint64_t, bool> DeviceMemory::kept_for_graphs() const {
    MutexLock lock(mutex_);
    return graph_memory_;
}

void DeviceMemory::set_live(std::uint64_t address, bool is_live) {
    if (const auto kept = graph_memory_.find(address); kept != graph_memory_.end()) {
        kept->second = is_live;
    }
}

void DeviceMemory::note_graph_use() {
    graph_use_.used = 0;
    graph_use_.reserved = 0;
    for (const auto& [address, is_live] : graph_memory_) {
        const auto allocation = arena_.find(DeviceVa{address});
        const std::uint64_t bytes = allocation ? allocation->bytes : 0;
        graph_use_.reserved += bytes;
        graph_use_.used += is_live ? bytes : 0;
    }
    graph_use_.used_high = std::max(graph_use_.used_high, graph_use_.used);
    graph_use_.reserved_high = std::max(graph_use_.reserved_high, graph_use_.reserved);
}

void DeviceMemory::ran_in_graph(const std::set<std::uint64_t>& allocates,
                                const std::set<std::uint64_t>& frees) {
    MutexLock lock(mutex_);
    for (const std::uint64_t address : allocates) {
        set_live(address, true);
    }
    note_graph_use();
    for (const std::uint64_t address : frees) {
        set_live(address, false);
    }
    note_graph_use();
}

bool DeviceMemory::may_allocate(const std::set<std::uint64_t>& addresses) const {
    MutexLock lock(mutex_);
    return std::none_of(addresses.begin(), addresses.end(),
                        [&](std::uint64_t address) GANTRY_REQUIRES(mutex_) {
                            const auto kept = graph_memory_.find(address);
                            return kept != graph_memory_.end() && kept->second;
                        });
}

DeviceMemory::GraphUse DeviceMemory::graph_use() const {
    MutexLock lock(mutex_);
    return graph_use_;
}

void DeviceMemory::reset_graph_use_high(bool used) {
    MutexLock lock(mutex_);
    if (used) {
        graph_use_.used_high = graph_use_.used;
    } else {
        graph_use_.reserved_high = graph_use_.reserved;
    }
}

void DeviceMemory::reap(bool all) {
    const driver::DriverApi& api = device_.api();
    MutexLock hold(unmap_mutex_);
    MutexLock lock(mutex_);
    std::erase_if(parked_, [&](const Parked& parked) GANTRY_REQUIRES(mutex_) {
        const bool done =
            all || (parked.event != nullptr && api.cuEventQuery(parked.event) == CUDA_SUCCESS);
        if (!done) {
            return false;
        }
        if (parked.event != nullptr) {
            api.cuEventDestroy_v2(parked.event);
        }
        arena_.free(parked.address);
        return true;
    });
    note_parked();
}

void DeviceMemory::settle() {
    reap(true);
    MutexLock hold(unmap_mutex_);
    MutexLock lock(mutex_);
    arena_.drop_spare();
}

void DeviceMemory::drop_spare() {
    MutexLock hold(unmap_mutex_);
    MutexLock lock(mutex_);
    arena_.drop_spare();
}

std::vector<DeviceVa> DeviceMemory::parked_now() const {
    MutexLock lock(mutex_);
    std::vector<DeviceVa> addresses;
    for (const Parked& parked : parked_) {
        if (parked.event == nullptr) {
            addresses.push_back(parked.address);
        }
    }
    return addresses;
}

std::uint64_t DeviceMemory::parked_bytes() const {
    std::uint64_t bytes = 0;
    for (const Parked& parked : parked_) {
        const auto allocation = arena_.find(parked.address);
        if (allocation && allocation->bytes > ArenaAllocator::kSmallBytesMax) {
            constexpr std::uint64_t kUnit = ArenaAllocator::kGranuleBytes;
            bytes += (allocation->bytes + kUnit - 1) / kUnit * kUnit;
        }
    }
    return bytes;
}

std::uint64_t DeviceMemory::free_bytes(std::uint64_t quota_bytes) {
    ask_device();
    if (!has_parked()) {
        return free_with(0, quota_bytes);
    }
    MutexLock lock(mutex_);  // What was parked is either counted as that, or given back.
    return free_with(parked_bytes(), quota_bytes);
}

std::uint64_t DeviceMemory::free_with(std::uint64_t parked, std::uint64_t quota_bytes) const {
    const std::uint64_t mapped = mapped_bytes();
    const std::uint64_t could = device_could_give_.load(std::memory_order_relaxed);
    const std::uint64_t here = mapped + share_.charged_bytes();
    const std::uint64_t device = could > here ? could - here : 0;
    const std::uint64_t left = quota_bytes - std::min(quota_bytes, share_.used_bytes(mapped));
    return std::min(quota_bytes, std::min(left, device) + parked);
}

void DeviceMemory::reap_these(const std::vector<DeviceVa>& parked) {
    const std::set<DeviceVa> wanted(parked.begin(), parked.end());
    MutexLock hold(unmap_mutex_);
    MutexLock lock(mutex_);
    std::erase_if(parked_, [&](const Parked& entry) GANTRY_REQUIRES(mutex_) {
        // An address is parked once: it is not given out again before it is reaped.
        return entry.event == nullptr && wanted.contains(entry.address) &&
               arena_.free(entry.address);
    });
    note_parked();
}

CUresult DeviceMemory::register_pinned(const PinnedRange& range) {
    MutexLock lock(mutex_);
    const std::uint64_t pool = pinned_pool_bytes_;
    if (range.bytes == 0 || range.address % wire::kPageBytes != 0 ||
        range.address < wire::kPinnedBase || range.bytes > pool ||
        range.address - wire::kPinnedBase > pool - range.bytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (pinned_.contains(range.address)) {
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
    const std::uint64_t bytes =
        (range.bytes + wire::kPageBytes - 1) / wire::kPageBytes * wire::kPageBytes;
    const CUresult result = device_.api().cuMemHostRegister_v2(
        reinterpret_cast<void*>(range.address), bytes,
        CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    if (result == CUDA_SUCCESS) {
        pinned_.emplace(range.address, range);
    }
    return result;
}

CUresult DeviceMemory::unregister_pinned(std::uint64_t address) {
    MutexLock lock(mutex_);
    if (pinned_.erase(address) == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return device_.api().cuMemHostUnregister(reinterpret_cast<void*>(address));
}

std::vector<PinnedRange> DeviceMemory::pinned_ranges() const {
    MutexLock lock(mutex_);
    std::vector<PinnedRange> ranges;
    for (const auto& [address, range] : pinned_) {
        ranges.push_back(range);
    }
    return ranges;
}

void DeviceMemory::set_pinned_pool(std::uint64_t bytes) { pinned_pool_bytes_ = bytes; }

void DeviceMemory::add_outside(std::uint64_t owner, std::uint64_t address, std::uint64_t bytes,
                               std::uint64_t lies_at) {
    MutexLock lock(mutex_);
    // Managed variables lie in the pinned pool, whose bytes are the guest's to move.
    if (address != 0 && bytes != 0 && !wire::is_pinned_address(address)) {
        outside_[address] = {owner, bytes, lies_at != 0 ? lies_at : address};
    }
}

void DeviceMemory::settle_outside() {
    MutexLock lock(mutex_);
    std::map<std::uint64_t, Outside> settled;
    for (const auto& [address, range] : outside_) {
        settled.emplace(range.lies_at, range);
    }
    outside_ = std::move(settled);
}

void DeviceMemory::remove_outside(std::uint64_t owner) {
    MutexLock lock(mutex_);
    std::erase_if(outside_, [owner](const auto& entry) { return entry.second.owner == owner; });
}

bool DeviceMemory::owns(std::uint64_t address, std::uint64_t bytes) const {
    const std::uint64_t pool = pinned_pool_bytes_;
    if (address >= wire::kPinnedBase && address - wire::kPinnedBase < pool) {
        return bytes <= pool - (address - wire::kPinnedBase);
    }
    MutexLock lock(mutex_);
    if (const auto allocation = arena_.find(DeviceVa{address})) {
        return bytes <= allocation->bytes - (address - allocation->address.value);
    }
    auto outside = outside_.upper_bound(address);
    if (outside == outside_.begin()) {
        return in_windows(address, bytes);
    }
    --outside;
    const std::uint64_t offset = address - outside->first;
    return (offset < outside->second.bytes && bytes <= outside->second.bytes - offset) ||
           in_windows(address, bytes);
}

bool DeviceMemory::in_windows(std::uint64_t address, std::uint64_t bytes) const {
    auto window = windows_.upper_bound(address);
    if (window == windows_.begin()) {
        return false;
    }
    --window;
    std::uint64_t end = window->first + window->second;
    if (address >= end) {
        return false;
    }
    // One after the other without a gap is as good as one.
    for (++window; end - address < bytes && window != windows_.end() && window->first == end;
         ++window) {
        end += window->second;
    }
    return bytes <= end - address;
}

Result<DeviceVa> DeviceMemory::reserve(std::uint64_t bytes, std::uint64_t alignment) {
    MutexLock lock(mutex_);
    return arena_.reserve(bytes, alignment);
}

bool DeviceMemory::release_reservation(DeviceVa address, std::uint64_t bytes) {
    MutexLock lock(mutex_);
    for (const AllocationRecord& reservation : arena_.reservations()) {
        if (reservation.address == address && reservation.bytes == bytes) {
            const auto window = windows_.lower_bound(address.value);
            const bool used = window != windows_.end() && window->first < address.value + bytes;
            return !used && arena_.release(address);
        }
    }
    return false;
}

bool DeviceMemory::is_reserved(std::uint64_t address, std::uint64_t bytes) const {
    MutexLock lock(mutex_);
    for (const AllocationRecord& reservation : arena_.reservations()) {
        const std::uint64_t offset = address - reservation.address.value;
        if (address >= reservation.address.value && offset < reservation.bytes) {
            return bytes <= reservation.bytes - offset;
        }
    }
    return false;
}

std::vector<AllocationRecord> DeviceMemory::reservations() const {
    MutexLock lock(mutex_);
    return arena_.reservations();
}

void DeviceMemory::add_window(std::uint64_t address, std::uint64_t bytes) {
    MutexLock lock(mutex_);
    windows_[address] = bytes;
}

void DeviceMemory::remove_window(std::uint64_t address) {
    MutexLock lock(mutex_);
    windows_.erase(address);
}

std::optional<AllocationRecord> DeviceMemory::find(DeviceVa address) const {
    MutexLock lock(mutex_);
    return arena_.find(address);
}

void DeviceMemory::lower_quota(std::uint64_t bytes) {
    MutexLock lock(mutex_);
    arena_.lower_quota(bytes);
    share_.set_own_quota(arena_.quota_bytes());
}

std::vector<ExtentRecord> DeviceMemory::extents() const {
    MutexLock lock(mutex_);
    return arena_.extents();
}

std::vector<ExtentRecord> DeviceMemory::extents_in(std::uint64_t address,
                                                   std::uint64_t bytes) const {
    MutexLock lock(mutex_);
    return arena_.extents_in(address, bytes);
}

std::vector<OutsideRange> DeviceMemory::outside_ranges() const {
    return outside_in(0, ~std::uint64_t{0});
}

std::vector<OutsideRange> DeviceMemory::outside_in(std::uint64_t address,
                                                   std::uint64_t bytes) const {
    MutexLock lock(mutex_);
    std::vector<OutsideRange> ranges;
    auto at = outside_.upper_bound(address);
    if (at != outside_.begin() && std::prev(at)->first + std::prev(at)->second.bytes > address) {
        --at;
    }
    for (; at != outside_.end() && (at->first < address || at->first - address < bytes); ++at) {
        ranges.push_back({at->first, at->second.bytes, at->second.lies_at});
    }
    return ranges;
}

std::vector<AllocationRecord> DeviceMemory::allocations() const {
    MutexLock lock(mutex_);
    return arena_.allocations();
}

Result<void> DeviceMemory::reshape(std::span<const ExtentRecord> extents,
                                   std::span<const AllocationRecord> allocations,
                                   std::span<const AllocationRecord> reservations) {
    MutexLock hold(unmap_mutex_);
    MutexLock lock(mutex_);
    graph_memory_.clear();
    note_graph_use();
    share_.set_restoring(true);
    auto reshaped = arena_.reshape(extents, allocations, reservations);
    share_.set_restoring(false);
    return reshaped;
}

void DeviceMemory::ask_device() {
    // Once in 1 to 2 ms, by the processor's counter: to ask the system costs a round trip 10 ns.
    const std::uint64_t tick = __builtin_ia32_rdtsc() >> 22;
    if (asked_at_.load(std::memory_order_acquire) == tick) {
        return;
    }
    constexpr std::uint64_t kUnknown = ~std::uint64_t{0} / 2;
    // What the driver says has to fit what is mapped: nothing may be unmapped in between.
    MutexLock lock(mutex_);
    device_could_give_.store(
        device_.memory_free_bytes().value_or(kUnknown) + mapped_bytes() + share_.charged_bytes(),
        std::memory_order_relaxed);
    asked_at_.store(tick, std::memory_order_release);
}

void DeviceMemory::free_everything() {
    reap(true);
    MutexLock hold(unmap_mutex_);
    MutexLock lock(mutex_);
    graph_memory_.clear();
    note_graph_use();
    for (const AllocationRecord& allocation : arena_.allocations()) {
        arena_.free(allocation.address);
    }
}

void DeviceMemory::release_all() {
    free_everything();
    MutexLock lock(mutex_);
    for (const auto& [address, range] : pinned_) {
        device_.api().cuMemHostUnregister(reinterpret_cast<void*>(address));
    }
    pinned_.clear();
    outside_.clear();
}

}  // namespace gantry::worker
