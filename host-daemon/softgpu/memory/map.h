// The map of everything a program may use as CUDA memory: who owns an address, how large the
// allocation is, what kind it is. Every copy, attribute query and free goes through it.
// Host memory and other processes' are within kernels' reach (kernel_reach.h) while they are in it;
// whoever erases such a range calls Reach::await_kernels() before the addresses may be used anew.
// Ranges never overlap. Thread-safe (many readers, one writer).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <vector>

namespace gantry::softgpu {

enum class MemoryKind : std::uint8_t {
    kDevice,      ///< cuMemAlloc and its relatives.
    kManaged,     ///< cuMemAllocManaged, __managed__ variables.
    kPinned,      ///< cuMemHostAlloc.
    kRegistered,  ///< cuMemHostRegister.
    kMapped,      ///< cuMemMap of physical memory.
    kPooled,      ///< cuMemAllocAsync, graph allocations.
    kGlobal,      ///< A module's variables.
    kDriver,      ///< Device heap and other ranges private to the driver.
    kImported,    ///< Opened from another process by IPC handle.
};

struct MemoryRange {
    std::uint64_t base = 0;
    std::uint64_t bytes = 0;
    MemoryKind kind = MemoryKind::kDevice;
    int device = 0;        ///< Ordinal of the device it was made for.
    std::uint64_t id = 0;  ///< CU_POINTER_ATTRIBUTE_BUFFER_ID; unique in the process's life.
    void* context = nullptr;
    unsigned flags = 0;  ///< As given to the allocating call.
    int access = 3;      ///< CU_MEM_ACCESS_FLAGS_PROT_*; below 3 only for kMapped.
    bool sync_memops = false;
    std::uint64_t reserved_base = 0;  ///< kMapped: the reserved addresses around it.
    std::uint64_t reserved_bytes = 0;
    std::shared_ptr<void> owner;  ///< Physical memory or pool, kept alive by the range.

    [[nodiscard]] std::uint64_t end() const { return base + bytes; }
    [[nodiscard]] bool on_host() const {
        return kind == MemoryKind::kPinned || kind == MemoryKind::kRegistered;
    }
};

class MemoryMap {
public:
    static MemoryMap& instance();

    /// Fills in the id. False when it would overlap a known range.
    bool insert(MemoryRange range);
    /// The range that contains the address.
    std::optional<MemoryRange> find(std::uint64_t address) const;
    /// Removes and returns the range that starts at `base` if it is of this kind.
    std::optional<MemoryRange> erase(std::uint64_t base, MemoryKind kind);
    /// True when every byte of [address, address + bytes) belongs to some range.
    bool covers(std::uint64_t address, std::uint64_t bytes) const;
    /// True when some byte of [address, address + bytes) belongs to a range.
    bool touches(std::uint64_t address, std::uint64_t bytes) const;
    /// Calls `change` with the range that contains the address; false when there is none.
    template <typename Change>
    bool update(std::uint64_t address, Change change) {
        const std::unique_lock lock(mutex_);
        const auto at = locate(address);
        if (at == ranges_.end()) {
            return false;
        }
        change(const_cast<MemoryRange&>(at->second));
        return true;
    }
    /// All ranges of a kind, in address order.
    std::vector<MemoryRange> list(MemoryKind kind) const;

private:
    using Ranges = std::map<std::uint64_t, MemoryRange>;
    Ranges::const_iterator locate(std::uint64_t address) const;

    mutable std::shared_mutex mutex_;
    Ranges ranges_;
    std::uint64_t next_id_ = 1;
};

}  // namespace gantry::softgpu
