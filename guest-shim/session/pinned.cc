// Sub-allocation of the pinned pool: page-aligned extents, first fit, the list kept sorted by
// address. The host learns of an extent by cuMemHostAlloc, a mirror by the pool's high-water mark.
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "guest-shim/session/connection.h"

namespace gantry::session {
namespace {

struct Extent {
    std::uint64_t offset;
    std::uint64_t bytes;
};

struct Pool {
    FutexMutex mutex;
    std::atomic<std::uint64_t> bytes{0};  ///< Changed with the mutex.
    std::byte* base GANTRY_GUARDED_BY(mutex) = nullptr;
    Extent* extents GANTRY_GUARDED_BY(mutex) = nullptr;
    std::size_t count GANTRY_GUARDED_BY(mutex) = 0;
    std::size_t capacity GANTRY_GUARDED_BY(mutex) = 0;
};
Pool g_pool;

bool make_room_in_list(Pool* pool) GANTRY_REQUIRES(pool->mutex) {
    if (pool->count < pool->capacity) {
        return true;
    }
    const std::size_t capacity = pool->capacity == 0 ? 64 : pool->capacity * 2;
    void* grown = std::realloc(pool->extents, capacity * sizeof(Extent));
    if (grown == nullptr) {
        return false;
    }
    pool->extents = static_cast<Extent*>(grown);
    pool->capacity = capacity;
    return true;
}

/// Index at which an extent of `bytes` fits before extents[index]; its offset in *offset.
bool find_gap(const Pool& pool, std::uint64_t bytes, std::size_t* index, std::uint64_t* offset)
    GANTRY_REQUIRES(pool.mutex) {
    std::uint64_t free_from = 0;
    for (std::size_t i = 0; i <= pool.count; ++i) {
        const std::uint64_t free_to = i < pool.count ? pool.extents[i].offset : pool.bytes.load();
        if (free_to - free_from >= bytes) {
            *index = i;
            *offset = free_from;
            return true;
        }
        free_from = i < pool.count ? pool.extents[i].offset + pool.extents[i].bytes : free_to;
    }
    return false;
}

/// Tells a mirror how much of the pool it has to compare.
void note_high_water(std::uint64_t end) GANTRY_REQUIRES(g_pool.mutex) {
    wire::GuestWords* guest = g_connection.guest;
    if (guest != nullptr && guest->pinned_high_water.load(std::memory_order_relaxed) < end) {
        guest->pinned_high_water.store(end, std::memory_order_release);
    }
}

}  // namespace

void attach_pinned(std::byte* base, std::uint64_t bytes) noexcept {
    Guard guard(g_pool.mutex);
    g_pool.base = base;
    g_pool.bytes = bytes;
    g_pool.count = 0;
}

void* pinned_allocate(std::uint64_t bytes) noexcept {
    if (bytes == 0 || bytes > pinned_bytes()) {
        return nullptr;
    }
    bytes = wire::align_up(bytes, wire::kPageBytes);
    Guard guard(g_pool.mutex);
    std::size_t index = 0;
    std::uint64_t offset = 0;
    if (!find_gap(g_pool, bytes, &index, &offset) || !make_room_in_list(&g_pool)) {
        return nullptr;
    }
    std::memmove(g_pool.extents + index + 1, g_pool.extents + index,
                 (g_pool.count - index) * sizeof(Extent));
    g_pool.extents[index] = Extent{offset, bytes};
    ++g_pool.count;
    note_high_water(offset + bytes);
    return g_pool.base + offset;
}

void pinned_free(void* address) noexcept {
    Guard guard(g_pool.mutex);
    const auto offset = static_cast<std::uint64_t>(static_cast<std::byte*>(address) - g_pool.base);
    for (std::size_t i = 0; i < g_pool.count; ++i) {
        if (g_pool.extents[i].offset == offset) {
            --g_pool.count;
            std::memmove(g_pool.extents + i, g_pool.extents + i + 1,
                         (g_pool.count - i) * sizeof(Extent));
            return;
        }
    }
}

std::uint64_t pinned_bytes() noexcept { return g_pool.bytes.load(std::memory_order_acquire); }

void touch_pinned() noexcept {
    Guard guard(g_pool.mutex);
    for (std::size_t i = 0; i < g_pool.count; ++i) {
        const Extent& extent = g_pool.extents[i];
        for (std::uint64_t at = 0; at < extent.bytes; at += wire::kPageBytes) {
            touch_page(g_pool.base + extent.offset + at);
        }
    }
}

int region_descriptor() noexcept { return g_connection.attachment.region_fd; }

std::uint64_t pinned_region_offset() noexcept { return g_connection.layout.pinned; }

}  // namespace gantry::session
