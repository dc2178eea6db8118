// The heap of malloc() and free() in kernels: one range of device memory per context, made when
// the first kernel that needs it is loaded, with the size of CU_LIMIT_MALLOC_HEAP_SIZE.
// This is the book of its pieces; memory/heap_memory.h gets the range and gives it back. The book
// is kept outside device memory, so a kernel cannot damage it; state() and restore() carry it
// across a snapshot. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "host-daemon/softgpu/core/range_allocator.h"

namespace gantry::softgpu {

class DeviceHeap {
public:
    struct Range {
        std::uint64_t base = 0;
        std::uint64_t bytes = 0;
        bool operator==(const Range&) const = default;
    };

    /// The heap's range; calls `make` for one if there is none. Nothing when `make` has none.
    std::optional<Range> ensure(const std::function<std::optional<Range>()>& make);
    /// Calls `give_back` with the heap's range, if there is one, and forgets all pieces.
    void release(const std::function<void(Range)>& give_back);

    std::uint64_t allocate(std::uint64_t bytes);
    void free(std::uint64_t address);

    [[nodiscard]] std::uint64_t base() const { return base_; }
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
    /// Every live piece as (u64 address, u64 bytes) pairs.
    [[nodiscard]] std::string state() const;
    bool restore(const std::string& state);

private:
    mutable std::mutex mutex_;
    std::uint64_t base_ = 0;
    std::uint64_t bytes_ = 0;
    std::unique_ptr<RangeAllocator> space_;
    std::map<std::uint64_t, std::uint64_t> pieces_;
};

}  // namespace gantry::softgpu
