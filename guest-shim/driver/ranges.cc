#include "guest-shim/driver/ranges.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "guest-shim/session/futex_mutex.h"
#include "guest-shim/session/session.h"

namespace gantry::shim {
namespace {

constinit session::FutexMutex g_mutex;
Range* g_ranges = nullptr;  // Sorted by address; they do not overlap.
std::size_t g_count = 0;
std::size_t g_capacity = 0;
std::uint64_t g_next_id = 1;
std::atomic<std::uint32_t> g_elsewhere{0};  // Ranges outside arena and pool.

/// Index of the first range that starts above `address`.
std::size_t upper(std::uint64_t address) {
    std::size_t low = 0;
    std::size_t high = g_count;
    while (low < high) {
        const std::size_t middle = (low + high) / 2;
        if (g_ranges[middle].address <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

Range* containing(std::uint64_t address) {
    const std::size_t above = upper(address);
    if (above == 0) {
        return nullptr;
    }
    Range* range = &g_ranges[above - 1];
    return address - range->address < range->bytes ? range : nullptr;
}

/// What the device calls pages that the application has registered.
bool is_registered_alias(std::uint64_t address, std::uint64_t bytes) {
    session::Guard guard(g_mutex);
    for (std::size_t i = 0; i < g_count; ++i) {
        const Range& range = g_ranges[i];
        const std::uint64_t inside = address - range.alias;
        if (range.kind == RangeKind::kRegistered && inside < range.bytes) {
            return bytes <= range.bytes - inside;
        }
    }
    return false;
}

bool is_elsewhere(std::uint64_t address) { return !is_in_arena(address) && !is_in_pool(address); }

void erase(std::size_t index) {
    if (is_elsewhere(g_ranges[index].address)) {
        g_elsewhere.fetch_sub(1);
    }
    --g_count;
    std::memmove(g_ranges + index, g_ranges + index + 1, (g_count - index) * sizeof(Range));
}

}  // namespace

bool is_in_pool(std::uint64_t address) noexcept {
    return address - wire::kPinnedBase < session::pinned_bytes();
}

bool add_range(Range* range) noexcept {
    session::Guard guard(g_mutex);
    std::size_t at = upper(range->address);
    if (at > 0 && g_ranges[at - 1].address == range->address) {
        range->id = g_ranges[at - 1].id;
        g_ranges[at - 1] = *range;
        return true;
    }
    if (g_count == g_capacity) {
        const std::size_t capacity = g_capacity == 0 ? 256 : g_capacity * 2;
        void* grown = std::realloc(g_ranges, capacity * sizeof(Range));
        if (grown == nullptr) {
            return false;
        }
        g_ranges = static_cast<Range*>(grown);
        g_capacity = capacity;
    }
    range->id = g_next_id++;
    std::memmove(g_ranges + at + 1, g_ranges + at, (g_count - at) * sizeof(Range));
    g_ranges[at] = *range;
    ++g_count;
    if (is_elsewhere(range->address)) {
        g_elsewhere.fetch_add(1);
    }
    return true;
}

bool find_range(std::uint64_t address, Range* out) noexcept {
    session::Guard guard(g_mutex);
    const Range* range = containing(address);
    if (range == nullptr) {
        return false;
    }
    *out = *range;
    return true;
}

bool next_range(std::uint64_t from, Range* out) noexcept {
    session::Guard guard(g_mutex);
    const std::size_t at = from == 0 ? 0 : upper(from - 1);
    if (at == g_count) {
        return false;
    }
    *out = g_ranges[at];
    return true;
}

void lock_ranges() noexcept { g_mutex.lock(); }

void unlock_ranges() noexcept { g_mutex.unlock(); }

bool remove_range(std::uint64_t address, Range* out) noexcept {
    session::Guard guard(g_mutex);
    const std::size_t above = upper(address);
    if (above == 0 || g_ranges[above - 1].address != address) {
        return false;
    }
    *out = g_ranges[above - 1];
    erase(above - 1);
    return true;
}

void remove_ranges_of(std::uint64_t owner) noexcept {
    session::Guard guard(g_mutex);
    for (std::size_t i = g_count; i-- > 0;) {
        if (g_ranges[i].owner == owner) {
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

}  // namespace gantry::shim
