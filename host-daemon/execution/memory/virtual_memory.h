// VirtualMemory: the guest's own address ranges, physical allocations and mappings (cuMemCreate and
// its relatives).
//
// A physical allocation is an extent of the arena like any other: it is mapped at an address of its
// own, its home, for as long as it lives, and its bytes are scanned, copied and counted there. What
// the guest maps are further addresses of the same memory, inside ranges that it has reserved. So
// memory that is mapped nowhere, without access, or at two addresses moves like the rest.
//
// Invariant: a physical allocation lives while a handle or a mapping refers to it. Mappings lie
// whole inside one reservation. Threads: all calls lock. Failure: the driver's results; the books
// follow only what the driver did.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "host-daemon/execution/memory/device_memory.h"
#include "proto/base/mutex.h"

namespace gantry::worker {

class VirtualMemory {
public:
    struct Physical {
        std::uint64_t home = 0;
        std::uint64_t bytes = 0;
        std::uint32_t handles = 0;
        CUmemAllocationProp properties{};  ///< As the guest gave them.
    };
    struct Mapping {
        std::uint64_t address = 0;
        std::uint64_t bytes = 0;
        std::uint64_t home = 0;
        std::uint32_t access = 0;  ///< CUmemAccess_flags.
        friend bool operator==(const Mapping&, const Mapping&) = default;
    };

    VirtualMemory(Device& device, DeviceMemory& memory) : device_(device), memory_(memory) {}

    /// Takes a home in the arena; `home` of a restore is where the memory lies already.
    CUresult create(const CUmemAllocationProp& properties, std::uint64_t bytes,
                    std::uint64_t* home);
    CUresult retain(std::uint64_t address, std::uint64_t* home);
    CUresult release(std::uint64_t home);
    CUresult map(std::uint64_t address, std::uint64_t bytes, std::uint64_t home);
    CUresult unmap(std::uint64_t address, std::uint64_t bytes);
    CUresult set_access(std::uint64_t address, std::uint64_t bytes, std::uint32_t access);
    [[nodiscard]] std::optional<Mapping> find(std::uint64_t address) const;
    [[nodiscard]] std::optional<Physical> physical(std::uint64_t home) const;

    [[nodiscard]] std::vector<Physical> physicals() const;
    [[nodiscard]] std::vector<Mapping> mappings() const;

    /// A restore, before the arena takes its new layout: ends every mapping that is not wanted or
    /// whose memory does not stay.
    void begin_restore(const std::vector<Mapping>& wanted,
                       const std::vector<ExtentRecord>& extents);
    /// And after it.
    CUresult end_restore(const std::vector<Physical>& physicals,
                         const std::vector<Mapping>& wanted);
    /// Forgets and unmaps everything; the device is idle.
    void clear();

private:
    CUresult map_locked(const Mapping& wanted) GANTRY_REQUIRES(mutex_);
    CUresult open_locked(std::uint64_t address, std::uint64_t bytes, std::uint32_t access)
        GANTRY_REQUIRES(mutex_);
    void drop_if_unused(std::uint64_t home) GANTRY_REQUIRES(mutex_);
    void unmap_locked(std::uint64_t address) GANTRY_REQUIRES(mutex_);

    Device& device_;
    DeviceMemory& memory_;
    mutable Mutex mutex_;
    std::map<std::uint64_t, Physical> physicals_ GANTRY_GUARDED_BY(mutex_);  ///< By home.
    std::map<std::uint64_t, Mapping> mappings_ GANTRY_GUARDED_BY(mutex_);    ///< By address.
};

}  // namespace gantry::worker
