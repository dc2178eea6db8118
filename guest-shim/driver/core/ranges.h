// What this process knows of each range of addresses that it allocated or looked up: kind, extent,
// flags. Answers pointer queries and decides which way a copy goes.
#pragma once

#include <cstdint>

#include "proto/cuda/abi.h"
#include "proto/wire/region.h"

namespace gantry::shim {

enum class RangeKind : std::uint32_t {
    kNone = 0,
    kDevice,
    kDeviceAsync,  ///< Of a memory pool.
    kHost,         ///< Page-locked, from the pinned pool.
    kManaged,      ///< From the pinned pool as well.
    kRegistered,   ///< The application's own pages, moved into the pinned pool (alias).
    kGlobal,       ///< A module's variable.
    kReserved,     ///< Virtual addresses of the application's own mapping.
};

struct Range {
    std::uint64_t address;
    std::uint64_t bytes;
    std::uint64_t alias;  ///< Registered: where the pages are in the pinned pool.
    std::uint64_t id;     ///< Unique for the life of the process.
    std::uint64_t context;
    std::uint64_t owner;  ///< Global: module or library.
    RangeKind kind;
    std::uint32_t flags;
    int device;
    bool sync_memops;  ///< CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, as the application has set it.
};

/// Adds a range (its id is chosen here) in the place of all that it overlaps: what the host gives
/// out anew was free before, whoever freed it. One that starts where it does hands its id on. False
/// when memory is out.
bool add_range(Range* range) noexcept;
/// False where nothing is known.
bool set_sync_memops(std::uint64_t address, bool is_on) noexcept;
bool find_range(std::uint64_t address, Range* out) noexcept;
/// Removes the range that starts at `address`, if it is there.
bool remove_range(std::uint64_t address, Range* out) noexcept;
/// The first range that starts at `from` or above.
bool next_range(std::uint64_t from, Range* out) noexcept;
/// Around a fork: no other thread is in the middle of a change then.
void lock_ranges() noexcept;
void unlock_ranges() noexcept;
/// Removes a module's globals.
void remove_ranges_of(std::uint64_t owner) noexcept;

/// What lies at an address.
struct Memory {
    Range range;    ///< All of it: what was allocated, or the reserved addresses.
    Range mapping;  ///< What was mapped there at once; of what was allocated the same.
};

/// The application's mappings (cuMemMap): each a range inside one of kind kReserved, with an id of
/// its own.
bool add_mapping(Range* mapping) noexcept;
/// False also where addresses are only reserved: that is no memory.
bool find_memory(std::uint64_t address, Memory* out) noexcept;
/// Removes those that start in [address, address + bytes).
void remove_mappings(std::uint64_t address, std::uint64_t bytes) noexcept;

inline bool is_in_arena(std::uint64_t address) {
    return address - wire::kArenaBase < wire::kArenaBytes;
}
bool is_in_pool(std::uint64_t address) noexcept;

/// The owner of a kDevice range that another process of the VM gave (ipc.cc).
inline constexpr std::uint64_t kOpenedRange = ~std::uint64_t{0};

/// An extent of the pinned pool that the device may use as well: taken from the pool, and made
/// known to the host's driver. Returning it waits for work that may still use it (memory.cc).
CUresult take_extent(std::uint64_t bytes, std::uint32_t flags, void** out) noexcept;
CUresult return_extent(void* address) noexcept;

/// Frees what was allocated, registered or opened in a context that is about to end. What belongs
/// to the device stays: pools' memory and mappings.
void free_memory_of(std::uint64_t context) noexcept;
/// The host has freed what belongs to the device, with the last context.
void forget_device_memory() noexcept;

/// Where a copy finds an address.
struct Place {
    bool host_side;         ///< Pageable memory of this process: its bytes must travel.
    bool is_host;           ///< In this process: pageable, page-locked, registered, managed.
    std::uint64_t address;  ///< What the device side calls it.
};

/// Classifies [address, address + bytes). False where that runs past a known allocation: native
/// answers with CUDA_ERROR_INVALID_VALUE, from the first byte behind what was asked for.
bool place_of(std::uint64_t address, std::uint64_t bytes, Place* out) noexcept;
/// This process has memory of its own there. A system call.
bool is_mapped_here(std::uint64_t address) noexcept;
/// As place_of, of an address that has to be the device's: false for pageable memory too. What is
/// not known here at all is asked of the host: a variable whose address a kernel has told.
bool place_on_device(std::uint64_t address, std::uint64_t bytes, Place* out) noexcept;

}  // namespace gantry::shim
