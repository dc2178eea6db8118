// Profiles: what the guest tells of its operations, and when it does.
//
// HostWords.profile is a level in its low two bits and above them a count of settings: another
// number means that what was seen before has an end. Level 1: totals by operation. Level 2: the
// ranges themselves as well.
//
// kProfile carries totals, not changes: rows come again, and one that is lost costs nothing. A row
// is one operation (an NVTX range within its enclosing ones) of one thread; row numbers are the
// guest's, and a row's parent has a lower one. The parts of a row sum to its wall time. The host
// believes none of it but the sum, which it checks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gantry::wire {

inline constexpr std::uint32_t kProfileLevelMask = 3;
inline constexpr std::uint32_t kProfileRows = 512;
inline constexpr std::uint32_t kProfileRanges = 4096;  ///< That are kept; the oldest go first.
inline constexpr std::uint32_t kProfileNameBytes = 64;
inline constexpr std::uint32_t kNoProfileRow = 0xffffffff;

constexpr std::uint32_t profile_level(std::uint32_t word) { return word & kProfileLevelMask; }

/// Each moment of a thread is one of these.
enum class Part : std::uint32_t {
    kGuest = 0,       ///< The program's own code.
    kShim = 1,        ///< Inside a CUDA call, not waiting.
    kTransport = 2,   ///< Waiting for the ring, the worker, or its answer.
    kScheduler = 3,   ///< ... while the arbiter held the process's launches.
    kGpu = 4,         ///< ... for the device.
    kOverlapped = 5,  ///< One of the first three, while the GPU worked for the process.
    kPause = 6,       ///< ... while a move or a replacement held the process.
};
inline constexpr std::size_t kProfileParts = 7;

struct ProfileCall {
    std::uint32_t row_count;
    std::uint32_t range_count;
    std::uint64_t first_range;  ///< Number of the first range that follows; they count up.
    std::uint64_t rows_lost;    ///< Operations that found no row: they are their parent's time.
    std::uint64_t unmatched;    ///< Ends of ranges that no range was open for.
    std::uint32_t stamp_ps;     ///< What a stamp costs, as measured in this process.
    std::uint32_t range_ps;     ///< The same of a range's push and pop, beside their stamps.
};

struct ProfileRow {
    std::uint32_t row;
    std::uint32_t parent;  ///< kNoProfileRow: a thread's time outside all ranges.
    std::uint32_t thread;  ///< Numbered by the guest.
    std::uint32_t pauses;  ///< Moves and replacements that hit it.
    std::uint64_t count;   ///< Times that it was begun.
    std::uint64_t wall_ns;
    std::uint64_t part_ns[kProfileParts];
    std::uint64_t stamps;
    char name[kProfileNameBytes];
};

struct ProfileRange {
    std::uint32_t row;
    std::uint32_t part;      ///< kGuest: the operation; kPause: a wait of it that a move fell into.
    std::uint64_t begin_ns;  ///< By the guest's monotonic clock.
    std::uint64_t end_ns;
};
static_assert(sizeof(ProfileCall) == 40 && sizeof(ProfileRow) == 160 && sizeof(ProfileRange) == 24);

}  // namespace gantry::wire
