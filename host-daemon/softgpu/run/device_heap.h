// The heap of malloc() and free() in kernels: one range of device memory per context, made when
// the first kernel that needs it is loaded, with the size of CU_LIMIT_MALLOC_HEAP_SIZE.
// The book of pieces is kept outside device memory, so a kernel cannot damage it; state() and
// restore() carry it across a snapshot. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "host-daemon/softgpu/memory/range_allocator.h"

namespace gantry::softgpu {

struct Device;

class DeviceHeap {
public:
    /// Makes the heap if there is none; false when memory is short.
    bool ensure(Device& device, std::uint64_t bytes, void* context);
    /// Makes the heap at an address (restore).
    bool ensure_at(Device& device, std::uint64_t address, std::uint64_t bytes, void* context);
    void release(Device& device);

    std::uint64_t allocate(std::uint64_t bytes);
    void free(std::uint64_t address);

    [[nodiscard]] std::uint64_t base() const { return base_; }
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
    /// Every live piece as (u64 address, u64 bytes) pairs.
    [[nodiscard]] std::string state() const;
    bool restore(const std::string& state);

private:
    bool adopt(Device& device, std::uint64_t address, std::uint64_t bytes, void* context);

    mutable std::mutex mutex_;
    std::uint64_t base_ = 0;
    std::uint64_t bytes_ = 0;
    std::unique_ptr<RangeAllocator> space_;
    std::map<std::uint64_t, std::uint64_t> pieces_;
};

}  // namespace gantry::softgpu
