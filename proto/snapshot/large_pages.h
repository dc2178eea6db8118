// Large pages for memory that is about to be filled as a whole: a tmpfs file's, shared memory's.
//
// Where the system's settings give shared memory pages of 4 KiB, to make one of them takes longer
// than to fill it, and to free it takes long again. A process may ask for large pages all the same
// (MADV_COLLAPSE, from Linux 6.1 on), where one small page is there already.
//
// What lies there stays as it is, also while others read and write it. A hint only: without such
// pages, or room for them, nothing changes. Threads: any.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace gantry::snapshot {

inline constexpr std::uint64_t kLargePageBytes = 2U << 20;
inline constexpr std::uint64_t kSmallPageBytes = 4096;

/// The least multiple of `unit` that is not below `value`.
constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
    return (value + unit - 1) / unit * unit;
}

/// The pages of a file are memory.
bool is_on_tmpfs(int file);

/// The pages of a file are memory, and large where one fits, without being asked for.
bool has_large_pages(int file);

/// Maps a part of a file to addresses at which its large pages can be mapped as such; MAP_FAILED.
/// `offset`: a multiple of kLargePageBytes. `hint`: at which address, if nothing is there.
void* map_aligned(int file, std::uint64_t offset, std::uint64_t bytes, int protection,
                  int flags = MAP_SHARED, void* hint = nullptr);

/// Of a shared, writable mapping by map_aligned(): makes every large page that lies in the range as
/// a whole. Costs what clearing them costs; nothing where the system gives large pages by itself.
void make_large_pages(std::byte* at, std::uint64_t bytes);

/// Of private memory that is about to be written for the first time: the large pages that lie in it
/// as a whole are made as such.
void want_large_pages(void* at, std::uint64_t bytes);

/// As want_large_pages(), and the pages are made meanwhile, by threads that end with the object:
/// the memory must outlive it. What is written first is not lost.
class PagesAhead {
public:
    PagesAhead(void* at, std::uint64_t bytes);

private:
    std::vector<std::jthread> threads_;
};

}  // namespace gantry::snapshot
