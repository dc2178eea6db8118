// The driver's own device memory: one sparse memory file, mapped at fixed addresses from
// 0x2000_0000_0000 up. File offset = address - base, so an address names its bytes for good.
//
// Large requests (1 MiB and more) get 2 MiB granules of their own, mapped when allocated; freeing
// gives the pages back and makes the addresses fault. Small ones share 2 MiB slabs in units of
// 512 bytes, as on hardware; a slab goes back when its last piece is freed. Memory always starts
// as zeros. The whole window is reserved with PROT_NONE at cuInit, so nothing else lands there.
// The mappings are not inherited by fork().
// Threads: any. Failure: nullopt when addresses or the device's quota run out.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "host-daemon/softgpu/core/device.h"
#include "host-daemon/softgpu/core/range_allocator.h"

namespace gantry::softgpu {

inline constexpr std::uint64_t kGranuleBytes = std::uint64_t{2} << 20;
#if defined(__SANITIZE_THREAD__)  // It leaves a program little but the first 512 GiB.
inline constexpr std::uint64_t kArenaBase = 0x50'0000'0000;
inline constexpr std::uint64_t kArenaBytes = std::uint64_t{128} << 30;
#else
inline constexpr std::uint64_t kArenaBase = 0x2000'0000'0000;
inline constexpr std::uint64_t kArenaBytes = std::uint64_t{8} << 40;
#endif
/// The window's last eighth holds module variables, in blocks of 64 KiB that modules do not share:
/// so a module can be placed again where it was, whatever else was allocated before.
inline constexpr std::uint64_t kGlobalsBytes = kArenaBytes / 8;
inline constexpr std::uint64_t kGlobalsBase = kArenaBase + kArenaBytes - kGlobalsBytes;
inline constexpr std::uint64_t kGlobalsBlock = 65536;
/// Where they lie instead for a foreign driver (GpuProfile::foreign), behind the window; the
/// window's last eighth is then left to whoever asks for it.
inline constexpr std::uint64_t kForeignGlobalsBase = kArenaBase + kArenaBytes;

/// As the system shows the file behind the arena.
inline constexpr char kArenaFileName[] = "gantry-soft-vram";

class Arena {
public:
    static Arena& instance();

    /// Reserves the window; false (with errno) when it is taken.
    bool reserve(bool foreign);
    [[nodiscard]] bool is_foreign() const { return foreign_; }

    std::optional<std::uint64_t> allocate(Device& device, std::uint64_t bytes);
    /// Takes an exact range (extension: restore at given addresses), granule by granule.
    bool allocate_at(Device& device, std::uint64_t address, std::uint64_t bytes);
    void free(Device& device, std::uint64_t address, std::uint64_t bytes);

    /// Blocks for module variables; `bytes` is rounded up to kGlobalsBlock.
    std::optional<std::uint64_t> allocate_globals(Device& device, std::uint64_t bytes);
    bool allocate_globals_at(Device& device, std::uint64_t address, std::uint64_t bytes);
    void free_globals(Device& device, std::uint64_t address, std::uint64_t bytes);

    /// File and offset behind an address of the arena, for IPC.
    [[nodiscard]] int file() const { return file_; }

private:
    struct Slab {
        RangeAllocator space;
        bool dirty = false;  ///< Something in it was freed: zero before reuse.
    };

    std::optional<std::uint64_t> allocate_small(Device& device, std::uint64_t bytes);
    std::optional<std::uint64_t> map_granules(Device& device, std::uint64_t bytes);
    [[nodiscard]] off_t offset_of(std::uint64_t address) const;
    bool map_at(std::uint64_t address, std::uint64_t bytes) const;
    void unmap(std::uint64_t address, std::uint64_t bytes) const;
    void unmap_granules(Device& device, std::uint64_t address, std::uint64_t bytes);

    std::mutex mutex_;
    int file_ = -1;
    bool foreign_ = false;
    RangeAllocator space_{kArenaBase, kArenaBytes - kGlobalsBytes};
    RangeAllocator globals_{kGlobalsBase, kGlobalsBytes};
    std::map<std::uint64_t, Slab> slabs_;     ///< By base address.
    std::map<int, std::uint64_t> open_slab_;  ///< Device ordinal -> slab last allocated from.
    std::map<std::uint64_t, int> slab_device_;
};

}  // namespace gantry::softgpu
