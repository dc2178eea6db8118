#include "host-daemon/worker/staging_pool.h"

#include <algorithm>
#include <new>

namespace gantry::worker {

StagingPool::~StagingPool() {
    for (Buffer& buffer : free_) {
        destroy(buffer);
    }
    for (Buffer& buffer : busy_) {
        device_.api().cuStreamSynchronize(nullptr);
        destroy(buffer);
    }
}

void StagingPool::destroy(Buffer& buffer) {
    if (buffer.event != nullptr) {
        device_.api().cuEventDestroy_v2(buffer.event);
    }
    if (buffer.page_locked) {
        device_.api().cuMemFreeHost(buffer.bytes);
    } else {
        ::operator delete(buffer.bytes, std::align_val_t{4096});
    }
    buffer = {};
}

void StagingPool::recycle_locked() {
    while (!busy_.empty()) {
        Buffer& oldest = busy_.front();
        if (device_.api().cuEventQuery(oldest.event) == CUDA_ERROR_NOT_READY) {
            return;
        }
        if (free_bytes_ + oldest.capacity <= kKeptBytesMax) {
            free_bytes_ += oldest.capacity;
            free_.push_back(oldest);
        } else {
            destroy(oldest);
        }
        busy_.pop_front();
    }
}

StagingPool::Buffer StagingPool::acquire(std::uint64_t bytes) {
    std::lock_guard lock(mutex_);
    recycle_locked();
    const auto fits = std::find_if(free_.begin(), free_.end(), [bytes](const Buffer& buffer) {
        return buffer.capacity >= bytes;
    });
    if (fits != free_.end()) {
        Buffer buffer = *fits;
        free_bytes_ -= buffer.capacity;
        free_.erase(fits);
        return buffer;
    }
    Buffer buffer;
    buffer.capacity = std::max(bytes, kBufferBytesMin);
    const driver::DriverApi& api = device_.api();
    void* host = nullptr;
    if (api.cuMemHostAlloc != nullptr && api.cuMemFreeHost != nullptr &&
        api.cuMemHostAlloc(&host, buffer.capacity, CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS) {
        buffer.page_locked = true;
    } else {
        host = ::operator new(buffer.capacity, std::align_val_t{4096}, std::nothrow);
    }
    buffer.bytes = static_cast<std::byte*>(host);
    return buffer;
}

void StagingPool::release_after(Buffer buffer, CUstream stream) {
    const driver::DriverApi& api = device_.api();
    if ((buffer.event == nullptr &&
         api.cuEventCreate(&buffer.event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) ||
        api.cuEventRecord(buffer.event, stream) != CUDA_SUCCESS) {
        api.cuStreamSynchronize(stream);  // Nothing tells us when it is free, so wait for it.
        release(buffer);
        return;
    }
    std::lock_guard lock(mutex_);
    busy_.push_back(buffer);
}

void StagingPool::release(Buffer buffer) {
    std::lock_guard lock(mutex_);
    free_bytes_ += buffer.capacity;
    free_.push_back(buffer);
}

}  // namespace gantry::worker
