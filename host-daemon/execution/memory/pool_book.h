// PoolBook: the guest's memory pools. All memory comes from the arena, so a pool is what the guest
// can ask about it: limits, attributes, and how much of it is in use.
//
// Threads: all calls lock. Failure: CUresult as the native calls.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "proto/base/mutex.h"
#include "proto/cuda/abi.h"

namespace gantry::worker {

class PoolBook {
public:
    struct Pool {
        std::uint64_t handle = 0;
        std::uint64_t order = 0;
        bool is_default = false;
        CUmemPoolProps properties{};
        std::map<std::uint32_t, std::uint64_t> attributes;  ///< Those that the guest has set.
        std::uint64_t used_bytes = 0;
        std::uint64_t used_high_bytes = 0;
        std::uint64_t reserved_high_bytes = 0;
    };

    void add(Pool pool);
    /// False for the default pool and for none.
    bool remove(std::uint64_t pool);
    [[nodiscard]] bool contains(std::uint64_t pool) const;
    CUresult set_attribute(std::uint64_t pool, std::uint32_t attribute, std::uint64_t value);
    CUresult get_attribute(std::uint64_t pool, std::uint32_t attribute, std::uint64_t* value) const;

    /// The pool of cuMemAllocAsync; 0: the default one.
    [[nodiscard]] std::uint64_t current() const;
    bool set_current(std::uint64_t pool);

    /// True when the pool may take that much more. `pool` 0: the current one.
    [[nodiscard]] bool has_room(std::uint64_t pool, std::uint64_t bytes) const;
    void allocated(std::uint64_t pool, std::uint64_t address, std::uint64_t bytes);
    void freed(std::uint64_t address);
    [[nodiscard]] std::uint64_t pool_of(std::uint64_t address) const;

    void set_high_marks(std::uint64_t pool, std::uint64_t used_bytes, std::uint64_t reserved_bytes);
    [[nodiscard]] std::vector<Pool> pools() const;
    void clear();

private:
    struct Allocation {
        std::uint64_t pool = 0;
        std::uint64_t bytes = 0;
    };
    [[nodiscard]] std::uint64_t resolve_locked(std::uint64_t pool) const GANTRY_REQUIRES(mutex_);

    mutable Mutex mutex_;
    std::map<std::uint64_t, Pool> pools_ GANTRY_GUARDED_BY(mutex_);
    std::map<std::uint64_t, Allocation> allocations_ GANTRY_GUARDED_BY(mutex_);  ///< By address.
    std::uint64_t current_ GANTRY_GUARDED_BY(mutex_) = 0;
};

}  // namespace gantry::worker
