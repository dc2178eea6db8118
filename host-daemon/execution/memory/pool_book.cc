#include "host-daemon/execution/memory/pool_book.h"

#include <algorithm>

namespace gantry::worker {
namespace {

constexpr std::uint64_t kGranuleBytes = 2ull << 20;

std::uint64_t reserved_bytes(const PoolBook::Pool& pool) {
    return (pool.used_bytes + kGranuleBytes - 1) / kGranuleBytes * kGranuleBytes;
}

}  // namespace

void PoolBook::add(Pool pool) {
    MutexLock lock(mutex_);
    const std::uint64_t handle = pool.handle;
    pools_[handle] = std::move(pool);
}

bool PoolBook::remove(std::uint64_t handle) {
    MutexLock lock(mutex_);
    const auto pool = pools_.find(handle);
    if (pool == pools_.end() || pool->second.is_default) {
        return false;
    }
    pools_.erase(pool);
    current_ = current_ == handle ? 0 : current_;
    return true;
}

bool PoolBook::contains(std::uint64_t pool) const {
    MutexLock lock(mutex_);
    return pools_.contains(pool);
}

CUresult PoolBook::set_attribute(std::uint64_t handle, std::uint32_t attribute,
                                 std::uint64_t value) {
    MutexLock lock(mutex_);
    const auto pool = pools_.find(handle);
    if (pool == pools_.end()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch (attribute) {
        case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
            pool->second.attributes[attribute] = value;
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:  // High marks may only be reset.
            pool->second.reserved_high_bytes = reserved_bytes(pool->second);
            return value == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
            pool->second.used_high_bytes = pool->second.used_bytes;
            return value == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult PoolBook::get_attribute(std::uint64_t handle, std::uint32_t attribute,
                                 std::uint64_t* value) const {
    MutexLock lock(mutex_);
    const auto found = pools_.find(handle);
    if (found == pools_.end()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const Pool& pool = found->second;
    const auto set = pool.attributes.find(attribute);
    switch (attribute) {
        case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
            *value = set == pool.attributes.end() ? 1 : set->second;
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
            *value = set == pool.attributes.end() ? 0 : set->second;
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
            *value = reserved_bytes(pool);
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
            *value = pool.reserved_high_bytes;
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *value = pool.used_bytes; return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *value = pool.used_high_bytes; return CUDA_SUCCESS;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

std::uint64_t PoolBook::current() const {
    MutexLock lock(mutex_);
    return current_;
}

bool PoolBook::set_current(std::uint64_t pool) {
    MutexLock lock(mutex_);
    if (pool != 0 && !pools_.contains(pool)) {
        return false;
    }
    current_ = pool;
    return true;
}

std::uint64_t PoolBook::resolve_locked(std::uint64_t pool) const {
    if (pool == 0) {
        pool = current_;
    }
    for (const auto& [handle, each] : pools_) {
        if (pool == 0 && each.is_default) {
            return handle;
        }
    }
    return pool;
}

bool PoolBook::has_room(std::uint64_t pool, std::uint64_t bytes) const {
    MutexLock lock(mutex_);
    const auto found = pools_.find(resolve_locked(pool));
    return found == pools_.end() || found->second.properties.maxSize == 0 ||
           (found->second.used_bytes <= found->second.properties.maxSize &&
            bytes <= found->second.properties.maxSize - found->second.used_bytes);
}

void PoolBook::allocated(std::uint64_t pool, std::uint64_t address, std::uint64_t bytes) {
    MutexLock lock(mutex_);
    const std::uint64_t handle = resolve_locked(pool);
    allocations_[address] = {handle, bytes};
    const auto found = pools_.find(handle);
    if (found != pools_.end()) {
        Pool& each = found->second;
        each.used_bytes += bytes;
        each.used_high_bytes = std::max(each.used_high_bytes, each.used_bytes);
        each.reserved_high_bytes = std::max(each.reserved_high_bytes, reserved_bytes(each));
    }
}

void PoolBook::freed(std::uint64_t address) {
    MutexLock lock(mutex_);
    const auto allocation = allocations_.find(address);
    if (allocation == allocations_.end()) {
        return;
    }
    if (const auto pool = pools_.find(allocation->second.pool); pool != pools_.end()) {
        pool->second.used_bytes -= std::min(pool->second.used_bytes, allocation->second.bytes);
    }
    allocations_.erase(allocation);
}

std::uint64_t PoolBook::pool_of(std::uint64_t address) const {
    MutexLock lock(mutex_);
    const auto allocation = allocations_.find(address);
    return allocation == allocations_.end() ? 0 : allocation->second.pool;
}

void PoolBook::set_high_marks(std::uint64_t handle, std::uint64_t used_bytes,
                              std::uint64_t reserved_high) {
    MutexLock lock(mutex_);
    if (const auto pool = pools_.find(handle); pool != pools_.end()) {
        pool->second.used_high_bytes = used_bytes;
        pool->second.reserved_high_bytes = reserved_high;
    }
}

std::vector<PoolBook::Pool> PoolBook::pools() const {
    MutexLock lock(mutex_);
    std::vector<Pool> all;
    for (const auto& [handle, pool] : pools_) {
        all.push_back(pool);
    }
    return all;
}

void PoolBook::clear() {
    MutexLock lock(mutex_);
    pools_.clear();
    allocations_.clear();
    current_ = 0;
}

}  // namespace gantry::worker
