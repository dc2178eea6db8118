#include "host-daemon/softgpu/memory/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "host-daemon/softgpu/memory/kernel_reach.h"

namespace gantry::softgpu {
namespace {

constexpr std::uint64_t kSmallBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kUnit = 512;

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

void* pointer(std::uint64_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

Arena& Arena::instance() {
    static auto* arena = new Arena;
    return *arena;
}

bool Arena::reserve(bool foreign) {
    const std::lock_guard lock(mutex_);
    if (file_ >= 0) {
        return true;
    }
    const auto take = [](std::uint64_t base, std::uint64_t bytes) {
        void* window =
            mmap(pointer(base), bytes, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
        return window == pointer(base);
    };
    if (!take(kArenaBase, kArenaBytes - kGlobalsBytes) ||
        !take(foreign ? kForeignGlobalsBase : kGlobalsBase, kGlobalsBytes)) {
        return false;
    }
    if (foreign) {
        globals_ = RangeAllocator(kForeignGlobalsBase, kGlobalsBytes);
    }
    foreign_ = foreign;
    file_ = memfd_create(kArenaFileName, MFD_CLOEXEC);
    return file_ >= 0 && ftruncate(file_, static_cast<off_t>(kArenaBytes)) == 0;
}

off_t Arena::offset_of(std::uint64_t address) const {
    return static_cast<off_t>(address < kForeignGlobalsBase
                                  ? address - kArenaBase
                                  : address - kForeignGlobalsBase + kArenaBytes - kGlobalsBytes);
}

bool Arena::map_at(std::uint64_t address, std::uint64_t bytes) const {
    void* got = mmap(pointer(address), bytes, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file_, offset_of(address));
    if (got == MAP_FAILED) {
        return false;
    }
    madvise(got, bytes, MADV_DONTFORK);
    madvise(got, bytes, MADV_HUGEPAGE);  // As in physical.cc.
    kernel_reach().add(address, bytes);
    return true;
}

std::optional<std::uint64_t> Arena::map_granules(Device& device, std::uint64_t bytes) {
    if (!device.charge(bytes)) {
        return std::nullopt;
    }
    const auto address = space_.allocate(bytes, kGranuleBytes);
    if (address && map_at(*address, bytes)) {
        return address;
    }
    if (address) {
        space_.free(*address, bytes);
    }
    device.refund(bytes);
    return std::nullopt;
}

void Arena::unmap(std::uint64_t address, std::uint64_t bytes) const {
    kernel_reach().remove(address, bytes);
    // Addresses fault first, then the pages go: no reader can see another allocation's zeros.
    mmap(pointer(address), bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset_of(address),
              static_cast<off_t>(bytes));
}

std::optional<std::uint64_t> Arena::allocate_globals(Device& device, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    bytes = round_up(bytes, kGlobalsBlock);
    if (!device.charge(bytes)) {
        return std::nullopt;
    }
    const auto address = globals_.allocate(bytes, kGlobalsBlock);
    if (address && map_at(*address, bytes)) {
        return address;
    }
    if (address) {
        globals_.free(*address, bytes);
    }
    device.refund(bytes);
    return std::nullopt;
}

bool Arena::allocate_globals_at(Device& device, std::uint64_t address, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    bytes = round_up(bytes, kGlobalsBlock);
    if (address % kGlobalsBlock != 0 || !device.charge(bytes)) {
        return false;
    }
    if (globals_.allocate_at(address, bytes)) {
        if (map_at(address, bytes)) {
            return true;
        }
        globals_.free(address, bytes);
    }
    device.refund(bytes);
    return false;
}

void Arena::free_globals(Device& device, std::uint64_t address, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    bytes = round_up(bytes, kGlobalsBlock);
    unmap(address, bytes);
    globals_.free(address, bytes);
    device.refund(bytes);
}

void Arena::unmap_granules(Device& device, std::uint64_t address, std::uint64_t bytes) {
    unmap(address, bytes);
    space_.free(address, bytes);
    device.refund(bytes);
}

std::optional<std::uint64_t> Arena::allocate_small(Device& device, std::uint64_t bytes) {
    const auto take = [&](std::uint64_t base, Slab& slab) -> std::optional<std::uint64_t> {
        const auto address = slab.space.allocate(bytes, kUnit);
        if (address) {
            open_slab_[device.ordinal] = base;
            if (slab.dirty) {
                std::memset(pointer(*address), 0, bytes);
            }
        }
        return address;
    };
    if (const auto open = slabs_.find(open_slab_[device.ordinal]); open != slabs_.end()) {
        if (const auto address = take(open->first, open->second)) {
            return address;
        }
    }
    for (auto& [base, slab] : slabs_) {
        if (slab_device_[base] != device.ordinal) {
            continue;
        }
        if (const auto address = take(base, slab)) {
            return address;
        }
    }
    const auto base = map_granules(device, kGranuleBytes);
    if (!base) {
        return std::nullopt;
    }
    slab_device_[*base] = device.ordinal;
    const auto slab = slabs_.emplace(*base, Slab{RangeAllocator(*base, kGranuleBytes)}).first;
    return take(*base, slab->second);
}

std::optional<std::uint64_t> Arena::allocate(Device& device, std::uint64_t bytes) {
    if (bytes == 0 || bytes > kArenaBytes) {
        return std::nullopt;
    }
    const std::lock_guard lock(mutex_);
    return bytes < kSmallBytes ? allocate_small(device, round_up(bytes, kUnit))
                               : map_granules(device, round_up(bytes, kGranuleBytes));
}

bool Arena::allocate_at(Device& device, std::uint64_t address, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    bytes = round_up(bytes, kGranuleBytes);
    if (address % kGranuleBytes != 0 || !device.charge(bytes)) {
        return false;
    }
    if (space_.allocate_at(address, bytes)) {
        if (map_at(address, bytes)) {
            return true;
        }
        space_.free(address, bytes);
    }
    device.refund(bytes);
    return false;
}

void Arena::free(Device& device, std::uint64_t address, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t base = address / kGranuleBytes * kGranuleBytes;
    const auto slab = slabs_.find(base);
    if (slab == slabs_.end()) {
        unmap_granules(device, address, round_up(bytes, kGranuleBytes));
        return;
    }
    slab->second.space.free(address, round_up(bytes, kUnit));
    slab->second.dirty = true;
    if (slab->second.space.is_whole(kGranuleBytes)) {
        slabs_.erase(slab);
        slab_device_.erase(base);
        unmap_granules(device, base, kGranuleBytes);
    }
}

}  // namespace gantry::softgpu
