// Free runs of an address range: first fit by address, merged when given back. Pure; used by the
// arena allocator for granules and, inside a slab, for small allocations.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <optional>

#include "proto/base/assert.h"

namespace gantry::worker {

using AddressRuns = std::map<std::uint64_t, std::uint64_t>;  ///< Start -> bytes, never adjacent.

/// Removes [start, start + bytes) from the runs; false when it is not wholly free.
inline bool take_run(AddressRuns& runs, std::uint64_t start, std::uint64_t bytes) {
    auto run = runs.upper_bound(start);
    if (run == runs.begin()) {
        return false;
    }
    --run;
    const std::uint64_t run_start = run->first;
    const std::uint64_t run_end = run->first + run->second;
    if (start < run_start || bytes > run_end - run_start || start > run_end - bytes) {
        return false;
    }
    runs.erase(run);
    if (start > run_start) {
        runs.emplace(run_start, start - run_start);
    }
    if (start + bytes < run_end) {
        runs.emplace(start + bytes, run_end - (start + bytes));
    }
    return true;
}

/// Lowest address where `bytes` fit at `alignment` (a power of two); not taken yet.
inline std::optional<std::uint64_t> find_run(const AddressRuns& runs, std::uint64_t bytes,
                                             std::uint64_t alignment) {
    for (const auto& [start, length] : runs) {
        const std::uint64_t aligned = (start + alignment - 1) & ~(alignment - 1);
        if (aligned - start <= length && bytes <= length - (aligned - start)) {
            return aligned;
        }
    }
    return std::nullopt;
}

/// Gives a range back and merges it with its neighbours.
inline void give_run(AddressRuns& runs, std::uint64_t start, std::uint64_t bytes) {
    auto next = runs.lower_bound(start);
    GANTRY_ASSERT(next == runs.end() || start + bytes <= next->first,
                  "range %#llx+%#llx is already free", static_cast<unsigned long long>(start),
                  static_cast<unsigned long long>(bytes));
    if (next != runs.end() && start + bytes == next->first) {
        bytes += next->second;
        next = runs.erase(next);
    }
    if (next != runs.begin()) {
        const auto previous = std::prev(next);
        GANTRY_ASSERT(previous->first + previous->second <= start,
                      "range %#llx+%#llx is already free", static_cast<unsigned long long>(start),
                      static_cast<unsigned long long>(bytes));
        if (previous->first + previous->second == start) {
            previous->second += bytes;
            return;
        }
    }
    runs.emplace(start, bytes);
}

}  // namespace gantry::worker
