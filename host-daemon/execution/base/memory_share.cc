#include "host-daemon/execution/base/memory_share.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
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
    return page_ != nullptr ? page_->used_bytes() : own_bytes + charged_bytes();
}

void MemoryShare::set_counting(bool counting) {
    const MutexLock lock(mutex_);
    if (page_ != nullptr && counting != counting_) {
        auto& own = page_->slots[slot_].bytes;
        counting ? own.fetch_add(own_bytes_) : own.fetch_sub(own_bytes_);
    }
    counting_ = counting;
}

bool MemoryShare::take(std::uint64_t bytes, Beyond beyond) {
    const std::uint64_t own_quota = own_quota_bytes_.load();
    const bool refuses = beyond == Beyond::kRefused && counting_;
    if (page_ == nullptr) {
        if (refuses && (bytes > own_quota || own_bytes_ > own_quota - bytes)) {
            return false;
        }
    } else if (counting_) {
        const std::uint64_t quota = std::min(quota_bytes_, own_quota);
        if (refuses && bytes > quota) {
            return false;  // Not even for a moment: others look at the sum.
        }
        auto& own = page_->slots[slot_].bytes;
        own.fetch_add(bytes);
        if (refuses && page_->used_bytes() > quota) {
            own.fetch_sub(bytes);
            return false;
        }
    }
    own_bytes_ += bytes;
    return true;
}

void MemoryShare::give(std::uint64_t bytes) {
    own_bytes_ -= bytes;
    if (page_ != nullptr && counting_) {
        page_->slots[slot_].bytes.fetch_sub(bytes);
    }
}

Result<void> MemoryShare::map(DeviceVa address, std::uint64_t bytes) {
    const MutexLock lock(mutex_);
    if (!take(bytes, restoring_.load() ? Beyond::kCounted : Beyond::kRefused)) {
        const std::uint64_t used = page_ != nullptr ? page_->used_bytes() : own_bytes_;
        return Error{Code::kResourceExhausted, "memory.quota",
                     fmt::format("{} bytes more would exceed the VM's quota: {} of {} are in use",
                                 bytes, used, std::min(quota_bytes_, own_quota_bytes_.load()))};
    }
    auto mapped = device_.map(address, bytes);
    if (!mapped.ok()) {
        give(bytes);
    }
    return mapped;
}

void MemoryShare::unmap(DeviceVa address, std::uint64_t bytes) {
    device_.unmap(address, bytes);
    const MutexLock lock(mutex_);
    give(bytes);
}

bool MemoryShare::count(std::uint64_t bytes, Beyond beyond) {
    const MutexLock lock(mutex_);
    const bool counted = take(bytes, beyond);
    charged_bytes_ += counted ? bytes : 0;
    return counted;
}

void MemoryShare::uncount(std::uint64_t bytes) {
    const MutexLock lock(mutex_);
    charged_bytes_ -= bytes;
    give(bytes);
}

MemoryChargePtr MemoryShare::charge(std::uint64_t bytes, Beyond beyond) {
    return count(bytes, beyond) ? std::make_shared<MemoryCharge>(*this, bytes) : nullptr;
}

}  // namespace gantry::worker
