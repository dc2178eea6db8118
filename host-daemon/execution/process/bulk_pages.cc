#include "host-daemon/execution/process/bulk_pages.h"

namespace gantry::worker {

bool BulkPages::lock() {
    if (is_tried_.load(std::memory_order_acquire)) {
        return is_locked_;
    }
    const MutexLock lock(mutex_);
    const ChannelMemory* const memory = channel_.memory();
    if (memory == nullptr || is_tried_.load(std::memory_order_relaxed)) {
        return is_locked_;
    }
    const auto bulk = memory->bulk(0, memory->layout().bulk_bytes);
    const PrimaryContext primary(device_);
    is_locked_ = device_.api().cuMemHostRegister_v2(bulk.data(), bulk.size(),
                                                    CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS;
    is_tried_.store(true, std::memory_order_release);
    board_.locked(is_locked_);
    return is_locked_;
}

void BulkPages::unlock() {
    const MutexLock lock(mutex_);
    if (const ChannelMemory* const memory = channel_.memory(); is_locked_ && memory != nullptr) {
        device_.bind_thread();
        device_.api().cuMemHostUnregister(memory->bulk(0, memory->layout().bulk_bytes).data());
    }
    is_locked_ = false;
    board_.locked(false);
    is_tried_.store(false, std::memory_order_release);
}

bool BulkPages::is_frequent_reader() {
    constexpr std::uint32_t kFrequent = 16;
    return reads_.fetch_add(1, std::memory_order_relaxed) >= kFrequent;
}

}  // namespace gantry::worker
