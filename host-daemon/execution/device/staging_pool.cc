#include "host-daemon/execution/device/staging_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

namespace gantry::worker {
namespace {

constexpr std::uint64_t kPageBytes = 4096;
/// Away from where a driver takes device addresses: see channel_memory.cc.
void* const kMemoryHint = reinterpret_cast<void*>(0x6800'0000'0000);

}  // namespace

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
    if (buffer.page_locked) {
        device_.api().cuMemHostUnregister(buffer.bytes);
    }
    munmap(buffer.bytes, buffer.capacity);
    buffer = {};
}

void StagingPool::recycle_locked() {
    while (!busy_.empty()) {
        Buffer& oldest = busy_.front();
        if (events_.query(oldest.event) == CUDA_ERROR_NOT_READY) {
            return;
        }
        events_.keep(std::exchange(oldest.event, {}));
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
    MutexLock lock(mutex_);
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
    buffer.capacity = (buffer.capacity + kPageBytes - 1) / kPageBytes * kPageBytes;
    // Not the driver's own page-locked memory: NVIDIA's takes it from the addresses that modules'
    // variables come from as well, and these must not depend on how many copies there were.
    void* host = mmap(kMemoryHint, buffer.capacity, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (host == MAP_FAILED) {
        return buffer;
    }
    const PrimaryContext primary(device_);
    buffer.page_locked = device_.api().cuMemHostRegister_v2(
                             host, buffer.capacity, CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS;
    buffer.bytes = static_cast<std::byte*>(host);
    return buffer;
}

void StagingPool::release_after(Buffer buffer, CUstream stream) {
    buffer.event = events_.record(stream);
    if (!buffer.event) {
        device_.api().cuStreamSynchronize(stream);  // Nothing tells when it is free, so wait.
        release(buffer);
        return;
    }
    MutexLock lock(mutex_);
    busy_.push_back(buffer);
}

void StagingPool::release(Buffer buffer) {
    MutexLock lock(mutex_);
    free_bytes_ += buffer.capacity;
    free_.push_back(buffer);
}

}  // namespace gantry::worker
