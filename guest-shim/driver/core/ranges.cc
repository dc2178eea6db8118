#include "guest-shim/driver/core/ranges.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "guest-shim/session/base/futex_mutex.h"
#include "guest-shim/session/session.h"
#include "proto/wire/control_ops.h"

namespace gantry::shim {
namespace {

/// Sorted by address; they do not overlap.
struct Ranges {
    Range* all = nullptr;
    std::size_t count = 0;
    std::size_t capacity = 0;

    /// Index of the first range that starts above `address`.
    [[nodiscard]] std::size_t upper(std::uint64_t address) const {
        std::size_t low = 0;
        std::size_t high = count;
        while (low < high) {
            const std::size_t middle = (low + high) / 2;
            if (all[middle].address <= address) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        return low;
    }
    /// ... at `address` or above.
    [[nodiscard]] std::size_t lower(std::uint64_t address) const {
        return address == 0 ? 0 : upper(address - 1);
    }

    [[nodiscard]] Range* containing(std::uint64_t address) const {
        const std::size_t above = upper(address);
        if (above == 0) {
            return nullptr;
        }
        Range* range = &all[above - 1];
        return address - range->address < range->bytes ? range : nullptr;
    }

    [[nodiscard]] bool starts_at(std::size_t index, std::uint64_t address) const {
        return index < count && all[index].address == address;
    }

    /// Chooses its id; one that starts there as well is replaced, and its id kept. False when
    /// memory is out.
    bool put(Range* range, std::uint64_t* next_id) {
        const std::size_t at = lower(range->address);
        if (starts_at(at, range->address)) {
            range->id = all[at].id;
            all[at] = *range;
            return true;
        }
        if (count == capacity) {
            const std::size_t wanted = capacity == 0 ? 256 : capacity * 2;
            void* grown = std::realloc(all, wanted * sizeof(Range));
            if (grown == nullptr) {
                return false;
            }
            all = static_cast<Range*>(grown);
            capacity = wanted;
        }
        range->id = (*next_id)++;
        std::memmove(all + at + 1, all + at, (count - at) * sizeof(Range));
        all[at] = *range;
        ++count;
        return true;
    }

    void erase(std::size_t first, std::size_t last) {
        std::memmove(all + first, all + last, (count - last) * sizeof(Range));
        count -= last - first;
    }
};

constinit session::FutexMutex g_mutex;
constinit Ranges g_ranges GANTRY_GUARDED_BY(g_mutex);
constinit Ranges g_mappings GANTRY_GUARDED_BY(g_mutex);
std::uint64_t g_next_id GANTRY_GUARDED_BY(g_mutex) = 1;
std::atomic<std::uint32_t> g_elsewhere{0};  // Of g_ranges: outside arena and pool.

bool find_in(const Ranges& ranges, std::uint64_t address, Range* out) GANTRY_REQUIRES(g_mutex) {
    const Range* range = ranges.containing(address);
    if (range == nullptr) {
        return false;
    }
    *out = *range;
    return true;
}

/// What the device calls pages that the application has registered.
bool is_registered_alias(std::uint64_t address, std::uint64_t bytes) {
    session::Guard guard(g_mutex);
    for (std::size_t i = 0; i < g_ranges.count; ++i) {
        const Range& range = g_ranges.all[i];
        const std::uint64_t inside = address - range.alias;
        if (range.kind == RangeKind::kRegistered && inside < range.bytes) {
            return bytes <= range.bytes - inside;
        }
    }
    return false;
}

bool host_has(std::uint64_t address, std::uint64_t bytes) {
    const wire::FindMemoryCall arguments{address, bytes};
    return session::call(static_cast<cuda::Op>(wire::ControlOp::kFindMemory), &arguments,
                         sizeof(arguments), nullptr, 0, nullptr, 0, nullptr, 0,
                         nullptr) == CUDA_SUCCESS;
}

bool is_elsewhere(std::uint64_t address) { return !is_in_arena(address) && !is_in_pool(address); }

void erase(std::size_t index) GANTRY_REQUIRES(g_mutex) {
    if (is_elsewhere(g_ranges.all[index].address)) {
        g_elsewhere.fetch_sub(1);
    }
    g_ranges.erase(index, index + 1);
}

}  // namespace

bool is_in_pool(std::uint64_t address) noexcept {
    return address - wire::kPinnedBase < session::pinned_bytes();
}

bool add_range(Range* range) noexcept {
    session::Guard guard(g_mutex);
    for (std::size_t i = g_ranges.upper(range->address + range->bytes - 1); i-- > 0;) {
        const Range& other = g_ranges.all[i];
        if (other.address == range->address) {
            range->sync_memops |= other.sync_memops && other.owner == range->owner &&
                                  other.kind == RangeKind::kGlobal;  // Only looked up again.
        } else if (other.address + other.bytes > range->address) {
            erase(i);
        } else {
            break;
        }
    }
    const std::size_t before = g_ranges.count;
    if (!g_ranges.put(range, &g_next_id)) {
        return false;
    }
    if (g_ranges.count != before && is_elsewhere(range->address)) {
        g_elsewhere.fetch_add(1);
    }
    return true;
}

bool find_range(std::uint64_t address, Range* out) noexcept {
    session::Guard guard(g_mutex);
    return find_in(g_ranges, address, out);
}

bool set_sync_memops(std::uint64_t address, bool is_on) noexcept {
    session::Guard guard(g_mutex);
    Range* range = g_ranges.containing(address);
    if (range != nullptr) {
        range->sync_memops = is_on;
    }
    return range != nullptr;
}

bool next_range(std::uint64_t from, Range* out) noexcept {
    session::Guard guard(g_mutex);
    const std::size_t at = g_ranges.lower(from);
    if (at == g_ranges.count) {
        return false;
    }
    *out = g_ranges.all[at];
    return true;
}

bool add_mapping(Range* mapping) noexcept {
    session::Guard guard(g_mutex);
    return g_mappings.put(mapping, &g_next_id);
}

bool find_memory(std::uint64_t address, Memory* out) noexcept {
    session::Guard guard(g_mutex);
    if (!find_in(g_ranges, address, &out->range)) {
        return false;
    }
    out->mapping = out->range;
    return out->range.kind != RangeKind::kReserved || find_in(g_mappings, address, &out->mapping);
}

void remove_mappings(std::uint64_t address, std::uint64_t bytes) noexcept {
    session::Guard guard(g_mutex);
    const std::size_t first = g_mappings.lower(address);
    std::size_t last = first;
    while (last < g_mappings.count && g_mappings.all[last].address - address < bytes) {
        ++last;
    }
    g_mappings.erase(first, last);
}

// The callers cannot name the mutex.
void lock_ranges() noexcept GANTRY_NO_THREAD_SAFETY_ANALYSIS { g_mutex.lock(); }

void unlock_ranges() noexcept GANTRY_NO_THREAD_SAFETY_ANALYSIS { g_mutex.unlock(); }

bool remove_range(std::uint64_t address, Range* out) noexcept {
    session::Guard guard(g_mutex);
    const std::size_t at = g_ranges.lower(address);
    if (!g_ranges.starts_at(at, address)) {
        return false;
    }
    *out = g_ranges.all[at];
    erase(at);
    return true;
}

void remove_ranges_of(std::uint64_t owner) noexcept {
    session::Guard guard(g_mutex);
    for (std::size_t i = g_ranges.count; i-- > 0;) {
        if (g_ranges.all[i].owner == owner) {
            erase(i);
        }
    }
}

bool place_of(std::uint64_t address, std::uint64_t bytes, Place* out) noexcept {
    *out = Place{false, false, address};
    const bool inside = is_in_arena(address) || is_in_pool(address);
    if (!inside && g_elsewhere.load(std::memory_order_acquire) == 0) {
        out->host_side = out->is_host = true;
        return true;
    }
    Range range;
    if (!find_range(address, &range)) {
        out->host_side = !inside;
        out->is_host = !inside || (is_in_pool(address) && is_registered_alias(address, bytes));
        return true;  // Inside, but not known here: the host decides.
    }
    out->is_host = range.kind == RangeKind::kHost || range.kind == RangeKind::kRegistered ||
                   range.kind == RangeKind::kManaged;
    if (range.kind == RangeKind::kRegistered) {
        // A registration may end inside the copied bytes; then they travel as pageable ones.
        out->host_side = bytes > range.address + range.bytes - address;
        out->address = out->host_side ? address : range.alias + (address - range.address);
        return true;
    }
    const std::uint64_t room = range.address + range.bytes - address;
    return bytes <= room || range.kind == RangeKind::kReserved || range.kind == RangeKind::kGlobal;
}

bool is_mapped_here(std::uint64_t address) noexcept {
    unsigned char in_core = 0;
    void* page = reinterpret_cast<void*>(address / wire::kPageBytes * wire::kPageBytes);
    return mincore(page, 1, &in_core) == 0;
}

bool place_on_device(std::uint64_t address, std::uint64_t bytes, Place* out) noexcept {
    if (place_of(address, bytes, out) && !out->host_side) {
        return true;
    }
    Range range;
    *out = Place{false, false, address};
    return !find_range(address, &range) && !is_mapped_here(address) && host_has(address, bytes);
}

}  // namespace gantry::shim
