// DeviceUse: what a guest process uses of its device that not every device has. Preflight holds it
// against a target's attributes.
//
// It tells what was used, not what the device has: a program that never asked for more shared
// memory than all devices have, and made no cooperative launch, needs nothing. For each function it
// keeps the largest shared memory of a block that was granted (libraries lower it between two
// launches and count on getting it back) and the shapes of its cooperative launches.
//
// Owner: GuestProcess. Threads: all calls lock. Functions that are gone are left out by whoever
// asks, and forgotten now and then. Cost: a look-up in a map for a cooperative launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "proto/base/mutex.h"

namespace gantry::worker {

class Device;
class ObjectTable;

/// Blocks of one kernel that have to be on the device at once.
struct CooperativeGrid {
    std::uint64_t blocks = 0;
    std::uint32_t threads_per_block = 0;
    std::uint64_t shared_bytes = 0;          ///< Of a block, static and dynamic.
    std::uint32_t registers_per_thread = 0;  ///< As compiled here; 0: unknown.

    /// Whatever can hold this one can hold the other.
    [[nodiscard]] bool covers(const CooperativeGrid& other) const;
};

struct FunctionUse {
    std::uint64_t function = 0;  ///< The guest's handle.
    std::string kernel;          ///< Its name, for people.
    bool is_looked_up = false;   ///< The driver was asked for what follows.
    std::uint64_t static_shared_bytes = 0;
    std::uint32_t registers_per_thread = 0;
    std::int32_t dynamic_shared_bytes = -1;  ///< The most that was granted; -1: never asked.
    std::vector<CooperativeGrid> grids;      ///< None covers another.
};

class DeviceUse {
public:
    using Alive = std::function<bool(std::uint64_t function)>;

    DeviceUse(Device& device, const ObjectTable& objects) : device_(device), objects_(objects) {}

    /// The function may use so much dynamic shared memory. True when it is its largest so far.
    bool note_dynamic_shared(std::uint64_t function, std::int32_t bytes);
    /// A cooperative launch was accepted.
    void note_cooperative(std::uint64_t function, std::uint64_t blocks,
                          std::uint32_t threads_per_block, std::uint32_t dynamic_bytes);
    /// What another worker has noted.
    void restore(std::uint64_t function, const std::string& kernel, const CooperativeGrid& grid);

    [[nodiscard]] std::vector<FunctionUse> list(const Alive& is_alive) const;

private:
    FunctionUse& use_of(std::uint64_t function) GANTRY_REQUIRES(mutex_);
    static void add(FunctionUse& use, const CooperativeGrid& grid);

    Device& device_;
    const ObjectTable& objects_;
    mutable Mutex mutex_;
    std::map<std::uint64_t, FunctionUse> uses_ GANTRY_GUARDED_BY(mutex_);
    std::size_t sweep_at_ GANTRY_GUARDED_BY(mutex_) = 1024;
};

}  // namespace gantry::worker
