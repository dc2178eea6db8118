// VariableMemory: device memory at addresses outside the arena, for variables that another driver
// had there (placed_ptx.h).
//
// Memory comes in granules of the arena's size, which modules may share, since a driver packs
// variables tightly. Address space is reserved in larger zones, or, where something else lies in
// one, by the granule, and stays reserved. New memory is zero. Owner: the guest process; holds may
// outlive no device. Threads: all calls lock. Failure: reason `module.globals.not_now` when the
// driver does not give the addresses: in another worker, or later, it may.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>

#include "host-daemon/execution/device/device.h"
#include "proto/base/mutex.h"

namespace gantry::worker {

/// Addresses that are to have memory.
struct VariableRange {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
};

class VariableMemory {
public:
    explicit VariableMemory(Device& device) : device_(device) {}
    ~VariableMemory();
    VariableMemory(const VariableMemory&) = delete;
    VariableMemory& operator=(const VariableMemory&) = delete;

    /// Memory that is there until it is destroyed. Before the VariableMemory that it comes from.
    class Hold {
    public:
        explicit Hold(VariableMemory& memory) : memory_(memory) {}
        ~Hold() { memory_.release(granules_); }
        Hold(const Hold&) = delete;
        Hold& operator=(const Hold&) = delete;

    private:
        friend class VariableMemory;
        VariableMemory& memory_;
        std::set<std::uint64_t> granules_;
    };
    Result<std::unique_ptr<Hold>> hold(std::span<const VariableRange> ranges);

private:
    static constexpr std::uint64_t kZoneBytes = 1ull << 30;
    struct Granule {
        CUmemGenericAllocationHandle handle = 0;
        std::uint32_t users = 0;
    };
    Result<void> reserve_around(std::uint64_t granule) GANTRY_REQUIRES(mutex_);
    CUresult reserve(std::uint64_t base, std::uint64_t bytes) GANTRY_REQUIRES(mutex_);
    Result<void> map(std::uint64_t address) GANTRY_REQUIRES(mutex_);
    void release(const std::set<std::uint64_t>& granules);

    Device& device_;
    Mutex mutex_;
    /// Bytes, by address.
    std::map<std::uint64_t, std::uint64_t> reserved_ GANTRY_GUARDED_BY(mutex_);
    std::map<std::uint64_t, Granule> granules_ GANTRY_GUARDED_BY(mutex_);  ///< By address.
};

}  // namespace gantry::worker
