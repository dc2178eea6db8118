// cuMemHostRegister: the application's own pages become page-locked memory that the device sees.
//
// WHAT. The pages' bytes move into the pinned pool, and the pool is mapped in their place: address
// and content stay, and host and guest see the same memory from there on. Unregistering moves the
// bytes back into private pages. Only pages that are this process's own can move: private ones,
// anonymous or of a file. Pages that other processes or a file share would be torn from them, so
// they are refused by name (CUDA_ERROR_NOT_SUPPORTED).
//
// FORK. A child keeps what it inherits for itself, as it does natively: its registered pages become
// private in the child. Pages that the child has not written yet show what the parent writes later.
// A fork waits while pages are on their way, so that the child knows of each where it is.
//
// LIMIT. The move copies: what another thread writes to the pages while they are being registered
// or unregistered may be lost. What the caller's own functions write is not, as where the pages are
// of its stack (swap_pages.h); but a child that is forked while such pages are registered has them
// in common with its parent until pthread_atfork's handlers run.
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "guest-shim/driver/core/objects.h"
#include "guest-shim/driver/core/ranges.h"
#include "guest-shim/driver/memory/swap_pages.h"
#include "guest-shim/session/base/futex_mutex.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/refuse_if.h"

namespace gantry::shim {
namespace {

constexpr std::uint64_t kPage = wire::kPageBytes;

/// One line of /proc/self/maps.
struct Mapping {
    std::uint64_t first = 0;
    std::uint64_t end = 0;
    int protection = PROT_NONE;
    bool is_shared = false;
};

/// Reads /proc/self/maps line by line; without memory of its own, as the child of a fork must.
class Mappings {
public:
    Mappings() : file_(open("/proc/self/maps", O_RDONLY | O_CLOEXEC)) {}
    ~Mappings() {
        if (file_ >= 0) {
            close(file_);
        }
    }
    Mappings(const Mappings&) = delete;
    Mappings& operator=(const Mappings&) = delete;

    /// False at the end, and when the file cannot be read.
    bool next(Mapping* out) {
        *out = Mapping{};
        if (!read_number('-', &out->first) || !read_number(' ', &out->end)) {
            return false;
        }
        const int bits[] = {PROT_READ, PROT_WRITE, PROT_EXEC};
        for (const int bit : bits) {
            out->protection |= take() != '-' ? bit : 0;
        }
        out->is_shared = take() == 's';
        for (int character = take(); character >= 0 && character != '\n'; character = take()) {
        }
        return true;
    }

private:
    int take() {
        if (at_ == filled_) {
            const ssize_t got = file_ < 0 ? 0 : read(file_, buffer_, sizeof(buffer_));
            if (got <= 0) {
                return -1;
            }
            filled_ = static_cast<std::size_t>(got);
            at_ = 0;
        }
        return static_cast<unsigned char>(buffer_[at_++]);
    }

    bool read_number(char until, std::uint64_t* out) {
        *out = 0;
        int character = take();
        for (; character >= 0 && character != until; character = take()) {
            const int digit = character <= '9' ? character - '0' : character - 'a' + 10;
            *out = *out * 16 + static_cast<std::uint64_t>(digit);
        }
        return character >= 0;
    }

    int file_;
    std::size_t at_ = 0;
    std::size_t filled_ = 0;
    char buffer_[4096];
};

/// What all pages of [first, end) have in common. False where there are holes or differences.
bool find_protection(std::uint64_t first, std::uint64_t end, Mapping* out) {
    Mappings mappings;
    Mapping each;
    std::uint64_t known = first;
    while (known < end && mappings.next(&each)) {
        if (each.end <= known) {
            continue;
        }
        if (each.first > known) {
            return false;
        }
        if (known == first) {
            *out = each;
        } else if (each.protection != out->protection || each.is_shared != out->is_shared) {
            return false;
        }
        known = each.end;
    }
    return known >= end;
}

/// Natively what cannot be pinned for writing is refused, unless the caller only lets it be read.
CUresult check_pages(std::uint64_t first, std::uint64_t end, unsigned flags, int* protection) {
    Mapping pages;
    if (!find_protection(first, end, &pages) || (pages.protection & PROT_READ) == 0 ||
        ((pages.protection & PROT_WRITE) == 0 && (flags & CU_MEMHOSTREGISTER_READ_ONLY) == 0)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *protection = pages.protection;
    return pages.is_shared || (pages.protection & PROT_EXEC) != 0 ? CUDA_ERROR_NOT_SUPPORTED
                                                                  : CUDA_SUCCESS;
}

off_t region_offset_of(std::uint64_t pool_at) {
    return static_cast<off_t>(session::pinned_region_offset() + (pool_at - wire::kPinnedBase));
}

/// From an exchange of pages until the table of ranges says so. Taken before the table's own lock;
/// nobody waits for the GPU under it, whose callbacks may fork.
constinit session::FutexMutex g_moving;

CUresult move_pages_into_pool(std::uint64_t first, std::uint64_t bytes, int protection,
                              std::uint64_t pool_at) {
    const long mapped = copy_then_call(
        pool_at, first, bytes,
        {SYS_mmap,
         {first, bytes, static_cast<std::uint64_t>(protection), MAP_SHARED | MAP_FIXED,
          static_cast<std::uint64_t>(session::region_descriptor()),
          static_cast<std::uint64_t>(region_offset_of(pool_at))}});
    return static_cast<std::uint64_t>(mapped) == first ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult move_pages_back(std::uint64_t first, std::uint64_t bytes, std::uint64_t pool_at) {
    Mapping before;
    const bool is_known = find_protection(first, first + bytes, &before);
    void* own = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    GANTRY_REFUSE_IF(own == MAP_FAILED, CUDA_ERROR_OPERATING_SYSTEM);
    // There at once, so that no other thread finds zeros.
    const long moved = copy_then_call(
        bits(own), pool_at, bytes,
        {SYS_mremap, {bits(own), bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, first, 0}});
    if (static_cast<std::uint64_t>(moved) != first) {
        munmap(own, bytes);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    if (is_known && before.protection != (PROT_READ | PROT_WRITE)) {
        mprotect(reinterpret_cast<void*>(first), bytes, before.protection);
    }
    return CUDA_SUCCESS;
}

std::uint64_t first_page_of(const Range& range) { return range.address / kPage * kPage; }

std::uint64_t end_page_of(const Range& range) {
    return (range.address + range.bytes + kPage - 1) / kPage * kPage;
}

std::uint64_t pool_address_of(const Range& range) {
    return range.alias - (range.address - first_page_of(range));
}

void keep_private(const Range& range) {
    const std::uint64_t first = first_page_of(range);
    const std::uint64_t bytes = end_page_of(range) - first;
    const std::uint64_t pool_at = pool_address_of(range);
    Mapping pages;
    const int protection =
        find_protection(first, first + bytes, &pages) ? pages.protection : PROT_READ | PROT_WRITE;
    auto* at = reinterpret_cast<void*>(first);
    if (mmap(at, bytes, protection, MAP_PRIVATE | MAP_FIXED, session::region_descriptor(),
             region_offset_of(pool_at)) == at) {
        return;
    }
    // A device's memory may not be had privately: a copy then. Without memory the pages go, so
    // that the child faults instead of writing into its parent's.
    if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
        at) {
        std::memcpy(at, reinterpret_cast<void*>(pool_at), bytes);
        mprotect(at, bytes, protection);
    } else {
        munmap(at, bytes);
    }
}

// The locks stay taken until after_fork().
void before_fork() GANTRY_NO_THREAD_SAFETY_ANALYSIS {
    g_moving.lock();
    lock_ranges();
}

void after_fork() GANTRY_NO_THREAD_SAFETY_ANALYSIS {
    unlock_ranges();
    g_moving.unlock();
}

void after_fork_in_child() {
    after_fork();
    Range range{};
    for (std::uint64_t from = 0; next_range(from, &range); from = range.address + 1) {
        if (range.kind == RangeKind::kRegistered) {
            keep_private(range);
        }
    }
}

void prepare_for_forks() {
    static std::atomic<bool> done{false};
    if (!done.exchange(true)) {
        pthread_atfork(before_fork, after_fork, after_fork_in_child);
    }
}

}  // namespace
}  // namespace gantry::shim

namespace gantry::cuda_impl {

using namespace gantry::shim;

CUresult cuMemHostRegister_v2(void* p, size_t bytesize, unsigned int Flags) noexcept {
    constexpr unsigned kServed =
        CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;
    if (const CUresult closed = session::gate(); closed != CUDA_SUCCESS) {
        return closed;
    }
    if (p == nullptr || bytesize == 0 || bytesize > UINTPTR_MAX - kPage - bits(p) ||
        (Flags & ~(kServed | CU_MEMHOSTREGISTER_IOMEMORY)) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if ((Flags & CU_MEMHOSTREGISTER_IOMEMORY) != 0 || session::region_descriptor() < 0) {
        return CUDA_ERROR_NOT_SUPPORTED;  // Memory of another device cannot move.
    }
    if (const CUresult refused = refuse_in_capture(); refused != CUDA_SUCCESS) {
        return refused;
    }
    Range wanted{};
    wanted.address = bits(p);
    wanted.bytes = bytesize;
    wanted.kind = RangeKind::kRegistered;
    wanted.flags = Flags;
    const std::uint64_t first = first_page_of(wanted);
    const std::uint64_t end = end_page_of(wanted);
    Range other{};
    for (std::uint64_t at = first; at < end; at += kPage) {
        GANTRY_REFUSE_IF(find_range(at, &other), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    }
    GANTRY_REFUSE_IF(is_in_arena(first) || is_in_pool(first), CUDA_ERROR_INVALID_VALUE);
    int protection = PROT_NONE;
    CUresult result = check_pages(first, end, Flags, &protection);
    void* pool = nullptr;
    if (result == CUDA_SUCCESS) {
        result = take_extent(end - first, 0, &pool);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    wanted.alias = bits(pool) + (wanted.address - first);
    wanted.context = session::current_context();
    wanted.device = current_device();
    prepare_for_forks();
    {
        session::Guard moving(g_moving);
        result = move_pages_into_pool(first, end - first, protection, bits(pool));
        if (result == CUDA_SUCCESS && !add_range(&wanted)) {
            (void)move_pages_back(first, end - first, bits(pool));
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (result != CUDA_SUCCESS) {
        return_extent(pool);
    }
    return result;
}

CUresult cuMemHostUnregister(void* p) noexcept {
    Range range{};
    GANTRY_REFUSE_IF(!find_range(bits(p), &range), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    GANTRY_REFUSE_IF(range.address != bits(p), CUDA_ERROR_INVALID_VALUE);
    GANTRY_REFUSE_IF(range.kind != RangeKind::kRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    const CUresult waited = synchronize_context();
    CUresult result = CUDA_SUCCESS;
    {
        session::Guard moving(g_moving);
        Range now{};
        if (!find_range(bits(p), &now) || now.id != range.id) {
            return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;  // Another thread was faster.
        }
        const std::uint64_t first = first_page_of(range);
        result = move_pages_back(first, end_page_of(range) - first, pool_address_of(range));
        if (result == CUDA_SUCCESS) {
            remove_range(bits(p), &range);
        }
    }
    if (result == CUDA_SUCCESS) {
        result = return_extent(reinterpret_cast<void*>(pool_address_of(range)));
    }
    return waited != CUDA_SUCCESS ? waited : result;
}

}  // namespace gantry::cuda_impl
