#include "host-daemon/execution/base/memory_share.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace gantry::worker {

MemoryShare::~MemoryShare() {
    if (page_ != nullptr) {
        munmap(page_, sizeof(*page_));
    }
}

Result<void> MemoryShare::join(int page, std::uint32_t slot, std::uint64_t quota_bytes) {
    if (slot >= control::MemoryPage::kSlots) {
        return Error{Code::kInvalidArgument, "worker.protocol",
                     fmt::format("slot {} of the memory page", slot)};
    }
    void* mapped =
        mmap(nullptr, sizeof(control::MemoryPage), PROT_READ | PROT_WRITE, MAP_SHARED, page, 0);
    if (mapped == MAP_FAILED) {
        return Error{Code::kInternal, "worker.memory_page", std::strerror(errno)};
    }
    page_ = static_cast<control::MemoryPage*>(mapped);
    slot_ = slot;
    quota_bytes_ = quota_bytes;
    return {};
}

std::uint64_t MemoryShare::used_bytes(std::uint64_t own_bytes) const {
    return page_ != nullptr ? page_->used_bytes() : own_bytes;
}

void MemoryShare::set_counting(bool counting) {
    const MutexLock lock(mutex_);
    if (page_ != nullptr && counting != counting_) {
        auto& own = page_->slots[slot_].bytes;
        counting ? own.fetch_add(own_bytes_) : own.fetch_sub(own_bytes_);
    }
    counting_ = counting;
}

Result<void> MemoryShare::map(DeviceVa address, std::uint64_t bytes) {
    if (page_ == nullptr) {
        return device_.map(address, bytes);
    }
    const MutexLock lock(mutex_);
    auto& own = page_->slots[slot_].bytes;
    if (counting_) {
        own.fetch_add(bytes);
        const std::uint64_t used = page_->used_bytes();
        if (used > quota_bytes_ && !restoring_.load()) {
            own.fetch_sub(bytes);
            return Error{Code::kResourceExhausted, "memory.quota",
                         fmt::format("{} bytes more would exceed the VM's quota: {} of {} are in "
                                     "use",
                                     bytes, used - bytes, quota_bytes_)};
        }
    }
    auto mapped = device_.map(address, bytes);
    if (mapped.ok()) {
        own_bytes_ += bytes;
    } else if (counting_) {
        own.fetch_sub(bytes);
    }
    return mapped;
}

bool MemoryShare::count(std::uint64_t bytes, std::uint64_t own_bytes,
                        std::uint64_t own_quota_bytes) {
    const MutexLock lock(mutex_);
    if (page_ == nullptr) {
        if (own_bytes + extra_bytes_ + bytes > own_quota_bytes) {
            return false;
        }
    } else if (counting_) {
        auto& own = page_->slots[slot_].bytes;
        own.fetch_add(bytes);
        if (page_->used_bytes() > quota_bytes_) {
            own.fetch_sub(bytes);
            return false;
        }
    }
    own_bytes_ += bytes;
    extra_bytes_ += bytes;
    return true;
}

void MemoryShare::uncount(std::uint64_t bytes) {
    const MutexLock lock(mutex_);
    own_bytes_ -= bytes;
    extra_bytes_ -= bytes;
    if (page_ != nullptr && counting_) {
        page_->slots[slot_].bytes.fetch_sub(bytes);
    }
}

void MemoryShare::unmap(DeviceVa address, std::uint64_t bytes) {
    device_.unmap(address, bytes);
    const MutexLock lock(mutex_);
    if (page_ != nullptr) {
        own_bytes_ -= bytes;
        if (counting_) {
            page_->slots[slot_].bytes.fetch_sub(bytes);
        }
    }
}

}  // namespace gantry::worker
