#include "host-daemon/execution/memory/virtual_memory.h"

#include <algorithm>

#include "host-daemon/execution/base/log.h"

namespace gantry::worker {

CUresult VirtualMemory::create(const CUmemAllocationProp& properties, std::uint64_t bytes,
                               std::uint64_t* home) {
    const auto made = memory_.allocate(bytes);
    if (!made.ok()) {
        log_limited("%s", made.error().to_string().c_str());
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    MutexLock lock(mutex_);
    *home = made->value;
    physicals_[*home] = {*home, bytes, 1, properties};
    return CUDA_SUCCESS;
}

CUresult VirtualMemory::retain(std::uint64_t address, std::uint64_t* home) {
    const auto mapping = find(address);
    MutexLock lock(mutex_);
    const auto physical = mapping ? physicals_.find(mapping->home) : physicals_.end();
    if (physical == physicals_.end()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    ++physical->second.handles;
    *home = physical->first;
    return CUDA_SUCCESS;
}

void VirtualMemory::drop_if_unused(std::uint64_t home) {
    const auto physical = physicals_.find(home);
    const bool used = physical == physicals_.end() || physical->second.handles != 0 ||
                      std::any_of(mappings_.begin(), mappings_.end(),
                                  [home](const auto& entry) { return entry.second.home == home; });
    if (!used) {
        physicals_.erase(physical);
        memory_.free_later(DeviceVa{home}, std::nullopt);
    }
}

CUresult VirtualMemory::release(std::uint64_t home) {
    MutexLock lock(mutex_);
    const auto physical = physicals_.find(home);
    if (physical == physicals_.end() || physical->second.handles == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    --physical->second.handles;
    drop_if_unused(home);
    return CUDA_SUCCESS;
}

CUresult VirtualMemory::map_locked(const Mapping& wanted) {
    const auto handle = device_.physical_at(DeviceVa{wanted.home});
    if (!handle) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const CUresult result = device_.api().cuMemMap(wanted.address, wanted.bytes, 0, *handle, 0);
    if (result == CUDA_SUCCESS) {
        mappings_[wanted.address] = wanted;
        memory_.add_window(wanted.address, wanted.bytes);
    }
    return result;
}

CUresult VirtualMemory::map(std::uint64_t address, std::uint64_t bytes, std::uint64_t home) {
    MutexLock lock(mutex_);
    const auto physical = physicals_.find(home);
    if (physical == physicals_.end() || bytes == 0 || bytes > physical->second.bytes ||
        !memory_.is_reserved(address, bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return map_locked({address, bytes, home, CU_MEM_ACCESS_FLAGS_PROT_NONE});
}

void VirtualMemory::unmap_locked(std::uint64_t address) {
    const auto mapping = mappings_.find(address);
    device_.api().cuMemUnmap(address, mapping->second.bytes);
    memory_.remove_window(address);
    mappings_.erase(mapping);
}

CUresult VirtualMemory::unmap(std::uint64_t address, std::uint64_t bytes) {
    MutexLock lock(mutex_);
    std::vector<std::uint64_t> whole;
    std::vector<std::uint64_t> homes;
    std::uint64_t at = address;
    while (at < address + bytes) {
        const auto mapping = mappings_.find(at);
        if (mapping == mappings_.end() || mapping->second.bytes > address + bytes - at) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        whole.push_back(at);
        homes.push_back(mapping->second.home);
        at += mapping->second.bytes;
    }
    for (const std::uint64_t start : whole) {
        unmap_locked(start);
    }
    for (const std::uint64_t home : homes) {
        drop_if_unused(home);
    }
    return whole.empty() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult VirtualMemory::open_locked(std::uint64_t address, std::uint64_t bytes,
                                    std::uint32_t access) {
    return device_.allow_access(address, bytes, static_cast<CUmemAccess_flags>(access));
}

CUresult VirtualMemory::set_access(std::uint64_t address, std::uint64_t bytes,
                                   std::uint32_t access) {
    MutexLock lock(mutex_);
    std::vector<Mapping*> whole;
    for (std::uint64_t at = address; at < address + bytes;) {
        const auto mapping = mappings_.find(at);
        if (mapping == mappings_.end() || mapping->second.bytes > address + bytes - at) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        whole.push_back(&mapping->second);
        at += mapping->second.bytes;
    }
    const CUresult result =
        whole.empty() ? CUDA_ERROR_INVALID_VALUE : open_locked(address, bytes, access);
    for (Mapping* mapping : whole) {
        mapping->access = result == CUDA_SUCCESS ? access : mapping->access;
    }
    return result;
}

std::optional<VirtualMemory::Mapping> VirtualMemory::find(std::uint64_t address) const {
    MutexLock lock(mutex_);
    auto mapping = mappings_.upper_bound(address);
    if (mapping == mappings_.begin()) {
        return std::nullopt;
    }
    --mapping;
    return address - mapping->first < mapping->second.bytes
               ? std::optional<Mapping>(mapping->second)
               : std::nullopt;
}

std::optional<VirtualMemory::Physical> VirtualMemory::physical(std::uint64_t home) const {
    MutexLock lock(mutex_);
    const auto physical = physicals_.find(home);
    return physical == physicals_.end() ? std::nullopt : std::optional<Physical>(physical->second);
}

std::vector<VirtualMemory::Physical> VirtualMemory::physicals() const {
    MutexLock lock(mutex_);
    std::vector<Physical> all;
    for (const auto& [home, physical] : physicals_) {
        all.push_back(physical);
    }
    return all;
}

std::vector<VirtualMemory::Mapping> VirtualMemory::mappings() const {
    MutexLock lock(mutex_);
    std::vector<Mapping> all;
    for (const auto& [address, mapping] : mappings_) {
        all.push_back(mapping);
    }
    return all;
}

void VirtualMemory::begin_restore(const std::vector<Mapping>& wanted,
                                  const std::vector<ExtentRecord>& extents) {
    const std::vector<ExtentRecord> now = memory_.extents();
    MutexLock lock(mutex_);
    auto stays = [&](std::uint64_t home) {
        return device_.is_current(DeviceVa{home}) &&
               std::any_of(now.begin(), now.end(), [&](const ExtentRecord& extent) {
                   return extent.address.value == home &&
                          std::find(extents.begin(), extents.end(), extent) != extents.end();
               });
    };
    const auto present = mappings_;
    for (const auto& [address, mapping] : present) {
        if (std::find(wanted.begin(), wanted.end(), mapping) == wanted.end() ||
            !stays(mapping.home)) {
            unmap_locked(address);
        }
    }
}

CUresult VirtualMemory::end_restore(const std::vector<Physical>& physicals,
                                    const std::vector<Mapping>& wanted) {
    MutexLock lock(mutex_);
    physicals_.clear();
    for (const Physical& physical : physicals) {
        physicals_[physical.home] = physical;
    }
    for (const Mapping& mapping : wanted) {
        if (mappings_.contains(mapping.address)) {
            continue;
        }
        CUresult result = map_locked(mapping);
        if (result == CUDA_SUCCESS && mapping.access != CU_MEM_ACCESS_FLAGS_PROT_NONE) {
            result = open_locked(mapping.address, mapping.bytes, mapping.access);
        }
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    return CUDA_SUCCESS;
}

void VirtualMemory::clear() {
    MutexLock lock(mutex_);
    while (!mappings_.empty()) {
        unmap_locked(mappings_.begin()->first);
    }
    physicals_.clear();
}

}  // namespace gantry::worker
