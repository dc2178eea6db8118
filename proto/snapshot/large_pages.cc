#include "proto/snapshot/large_pages.h"

#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <latch>
#include <memory>
#include <span>

#include "proto/base/unless_exhausted.h"

namespace gantry::snapshot {
namespace {

/// MADV_COLLAPSE, which the headers of Debian 12's C library do not name.
constexpr int kAdviceCollapse = 25;

bool populate(std::byte* at, std::uint64_t bytes) {
    return ::madvise(at, bytes, MADV_POPULATE_WRITE) == 0;  // An error where a write were a signal.
}

struct LargePages {
    std::byte* first = nullptr;
    std::uint64_t bytes = 0;  ///< 0: none.
};

/// Those that lie in a range as a whole.
LargePages large_pages_in(std::byte* at, std::uint64_t bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(at);
    const std::uint64_t ahead = (kLargePageBytes - begin % kLargePageBytes) % kLargePageBytes;
    if (bytes < ahead + kLargePageBytes) {
        return {};
    }
    return {at + ahead, (bytes - ahead) / kLargePageBytes * kLargePageBytes};
}

/// True when all of a large page is there, whose first small one has just been asked for.
bool came_as_whole(std::byte* at) {
    std::array<unsigned char, kLargePageBytes / kSmallPageBytes> resident{};
    return ::mincore(at, kLargePageBytes, resident.data()) == 0 &&
           std::all_of(resident.begin(), resident.end(),
                       [](unsigned char page) { return (page & 1U) != 0; });
}

}  // namespace

bool is_on_tmpfs(int file) {
    struct statfs system {};
    return ::fstatfs(file, &system) == 0 && system.f_type == TMPFS_MAGIC;
}

bool has_large_pages(int file) {
    struct stat status {};
    return is_on_tmpfs(file) && ::fstat(file, &status) == 0 &&
           static_cast<std::uint64_t>(status.st_blksize) >= kLargePageBytes;
}

void* map_aligned(int file, std::uint64_t offset, std::uint64_t bytes, int protection, int flags,
                  void* hint) {
    bytes = round_up(bytes, kSmallPageBytes);
    void* window = ::mmap(hint, bytes + kLargePageBytes, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (window == MAP_FAILED) {
        return MAP_FAILED;
    }
    const auto at = reinterpret_cast<std::uintptr_t>(window);
    const std::uintptr_t aligned = (at + kLargePageBytes - 1) / kLargePageBytes * kLargePageBytes;
    void* got = ::mmap(reinterpret_cast<void*>(aligned), bytes, protection,
                       flags | MAP_FIXED | MAP_NORESERVE, file, static_cast<off_t>(offset));
    const bool mapped = got != MAP_FAILED;
    const std::uintptr_t keep_end = mapped ? aligned + bytes : at;
    if (mapped && aligned != at) {
        ::munmap(window, aligned - at);
    }
    ::munmap(reinterpret_cast<void*>(keep_end), at + bytes + kLargePageBytes - keep_end);
    return got;
}

void make_large_pages(std::byte* at, std::uint64_t bytes) {
    const auto [first, whole] = large_pages_in(at, bytes);
    if (whole == 0) {
        return;
    }
    for (std::uint64_t offset = 0; offset < whole; offset += kLargePageBytes) {
        if (!populate(first + offset, kSmallPageBytes) || (offset == 0 && came_as_whole(first))) {
            return;
        }
    }
    ::madvise(first, whole, kAdviceCollapse);
}

void want_large_pages(void* at, std::uint64_t bytes) {
    const auto [first, whole] = large_pages_in(static_cast<std::byte*>(at), bytes);
    if (whole != 0) {
        ::madvise(first, whole, MADV_HUGEPAGE);
    }
}

PagesAhead::PagesAhead(void* at, std::uint64_t bytes) {
    constexpr std::uint64_t kThreadBytes = 2 * kLargePageBytes;
    want_large_pages(at, bytes);
    const auto [first, whole] = large_pages_in(static_cast<std::byte*>(at), bytes);
    // All threads first: whoever makes pages keeps others from mapping a stack.
    const auto begin = std::make_shared<std::latch>(1);
    // Where the system makes no more threads, the rest is made by whoever writes there.
    (void)unless_exhausted([&, from = first, count = whole] {
        for (std::uint64_t done = 0; done < count; done += kThreadBytes) {
            const std::span<std::byte> part(from + done, std::min(kThreadBytes, count - done));
            threads_.emplace_back([begin, part] {
                begin->wait();
                for (std::size_t page = 0; page < part.size(); page += kLargePageBytes) {
                    populate(&part[page], kLargePageBytes);
                }
            });
        }
    });
    begin->count_down();
}

}  // namespace gantry::snapshot
