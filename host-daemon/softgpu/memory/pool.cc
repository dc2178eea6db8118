#include "host-daemon/softgpu/memory/pool.h"

#include <algorithm>
#include <cstring>

#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/memory/arena.h"
#include "host-daemon/softgpu/memory/map.h"

namespace gantry::softgpu {
namespace {

constexpr std::uint64_t kUnit = 512;

std::uint64_t rounded(std::uint64_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }

}  // namespace

MemoryPool::~MemoryPool() {
    const std::lock_guard lock(mutex_);
    for (const auto& [bytes, address] : kept_) {
        Arena::instance().free(device, address, bytes);
    }
}

CUresult MemoryPool::allocate(Context& context, std::uint64_t bytes, std::uint64_t& address) {
    const std::uint64_t size = rounded(bytes);
    {
        const std::lock_guard lock(mutex_);
        GANTRY_REFUSE_IF(props.maxSize != 0 && used_ + size > props.maxSize,
                         CUDA_ERROR_OUT_OF_MEMORY);
        const auto kept = kept_.find(size);
        address = kept == kept_.end() ? 0 : kept->second;
        if (address != 0) {
            kept_.erase(kept);
            kept_bytes_ -= size;
        }
    }
    if (address != 0) {
        std::memset(reinterpret_cast<void*>(address), 0, size);
    } else {
        auto got = Arena::instance().allocate(device, size);
        if (!got) {
            trim(0);
            got = Arena::instance().allocate(device, size);
        }
        GANTRY_REFUSE_IF(!got, CUDA_ERROR_OUT_OF_MEMORY);
        address = *got;
    }
    MemoryRange range;
    range.base = address;
    range.bytes = size;
    range.kind = MemoryKind::kPooled;
    range.device = device.ordinal;
    range.context = context.handle();
    range.owner = shared_from_this();
    MemoryMap::instance().insert(std::move(range));
    const std::lock_guard lock(mutex_);
    used_ += size;
    used_high_ = std::max(used_high_, used_);
    reserved_high_ = std::max(reserved_high_, used_ + kept_bytes_);
    return CUDA_SUCCESS;
}

void MemoryPool::put_back(std::uint64_t address, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    used_ -= bytes;
    kept_.emplace(bytes, address);
    kept_bytes_ += bytes;
    trim_locked(threshold_ > used_ ? threshold_ - used_ : 0);
}

void MemoryPool::trim(std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    trim_locked(bytes > used_ ? bytes - used_ : 0);
}

void MemoryPool::trim_locked(std::uint64_t bytes) {
    while (kept_bytes_ > bytes && !kept_.empty()) {
        const auto largest = std::prev(kept_.end());
        Arena::instance().free(device, largest->second, largest->first);
        kept_bytes_ -= largest->first;
        kept_.erase(largest);
    }
}

CUresult MemoryPool::attribute(CUmemPool_attribute attribute, void* value) {
    const std::lock_guard lock(mutex_);
    const auto wide = [value](std::uint64_t number) {
        std::memcpy(value, &number, sizeof number);
        return CUDA_SUCCESS;
    };
    switch (attribute) {
        case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
            std::memcpy(value, &reuse_[attribute - 1], sizeof(int));
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: return wide(threshold_);
        case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: return wide(used_ + kept_bytes_);
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: return wide(reserved_high_);
        case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: return wide(used_);
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH: return wide(used_high_);
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult MemoryPool::set_attribute(CUmemPool_attribute attribute, const void* value) {
    const std::lock_guard lock(mutex_);
    std::uint64_t wide = 0;
    switch (attribute) {
        case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
            std::memcpy(&reuse_[attribute - 1], value, sizeof(int));
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
            std::memcpy(&threshold_, value, sizeof threshold_);
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
            std::memcpy(&wide, value, sizeof wide);
            GANTRY_REFUSE_IF(wide != 0, CUDA_ERROR_INVALID_VALUE);
            (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH ? used_high_ : reserved_high_) =
                attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH ? used_ : used_ + kept_bytes_;
            return CUDA_SUCCESS;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

std::shared_ptr<MemoryPool> default_pool(Device& device) {
    const std::lock_guard lock(device.mutex);
    if (device.default_pool == nullptr) {
        CUmemPoolProps props{};
        props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        props.location = {CU_MEM_LOCATION_TYPE_DEVICE, device.ordinal};
        device.default_pool = std::make_shared<MemoryPool>(device, props);
        HandleTable::instance().publish(device.default_pool);
        device.current_pool = device.default_pool;
    }
    return device.default_pool;
}

CUresult free_pooled(std::uint64_t address) {
    const auto range = MemoryMap::instance().erase(address, MemoryKind::kPooled);
    GANTRY_REFUSE_IF(!range, CUDA_ERROR_INVALID_VALUE);
    std::static_pointer_cast<MemoryPool>(range->owner)->put_back(range->base, range->bytes);
    return CUDA_SUCCESS;
}

}  // namespace gantry::softgpu
