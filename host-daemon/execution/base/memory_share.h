// MemoryShare: a worker's part of its VM's device memory quota (proto/control/memory_page.h).
//
// As a GranuleMapper it stands between the arena and the device: what is mapped is counted, and a
// mapping that would take the VM above its quota is refused with reason memory.quota. What takes
// device memory elsewhere (arrays, contexts, heaps, variables, memory of another process) is
// counted by a MemoryCharge, before the driver is asked. A restore is counted, but not refused: for
// a moment source and target of a move on one host both have the memory.
//
// Threads: any. Without a page this worker has the quota for itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "host-daemon/execution/base/arena_allocator.h"
#include "proto/base/mutex.h"
#include "proto/control/memory_page.h"

namespace gantry::worker {

/// Device memory that is counted for as long as this lives; before the share that it is of.
class MemoryCharge;
using MemoryChargePtr = std::shared_ptr<MemoryCharge>;

class MemoryShare final : public GranuleMapper {
public:
    enum class Beyond : bool { kRefused, kCounted };  ///< What would exceed the quota.

    explicit MemoryShare(GranuleMapper& device) : device_(device) {}
    ~MemoryShare() override;
    MemoryShare(const MemoryShare&) = delete;
    MemoryShare& operator=(const MemoryShare&) = delete;

    /// Before any memory is mapped. The descriptor stays the caller's.
    Result<void> join(int page, std::uint32_t slot, std::uint64_t quota_bytes);
    /// What the whole VM uses; `own_bytes` where nothing is shared.
    [[nodiscard]] std::uint64_t used_bytes(std::uint64_t own_bytes) const;
    /// The whole of it where nothing is shared, else beside the VM's.
    void set_own_quota(std::uint64_t bytes) { own_quota_bytes_ = bytes; }
    void set_restoring(bool restoring) { restoring_ = restoring; }
    /// Memory that is not mapped by map(); null when it would exceed the quota.
    [[nodiscard]] MemoryChargePtr charge(std::uint64_t bytes, Beyond beyond = Beyond::kRefused);
    /// All that is charged now; a part of what is used.
    [[nodiscard]] std::uint64_t charged_bytes() const {
        return charged_bytes_.load(std::memory_order_relaxed);
    }
    /// Memory that two workers hold during a take-over is counted by the one that serves.
    void set_counting(bool counting);

    Result<void> map(DeviceVa address, std::uint64_t bytes) override;
    void unmap(DeviceVa address, std::uint64_t bytes) override;
    [[nodiscard]] bool is_current(DeviceVa address) const override {
        return device_.is_current(address);
    }

private:
    friend class MemoryCharge;
    bool count(std::uint64_t bytes, Beyond beyond);
    void uncount(std::uint64_t bytes);
    /// Counts, unless the quota is exceeded by it.
    bool take(std::uint64_t bytes, Beyond beyond) GANTRY_REQUIRES(mutex_);
    void give(std::uint64_t bytes) GANTRY_REQUIRES(mutex_);

    GranuleMapper& device_;
    control::MemoryPage* page_ = nullptr;
    std::uint32_t slot_ = 0;
    std::uint64_t quota_bytes_ = ~std::uint64_t{0};
    std::atomic<std::uint64_t> own_quota_bytes_{~std::uint64_t{0}};
    std::atomic<bool> restoring_{false};
    Mutex mutex_;  ///< Holds own_bytes_, the slot and counting_ together.
    std::uint64_t own_bytes_ GANTRY_GUARDED_BY(mutex_) = 0;
    /// By count(); a part of own_bytes_. Changed with the mutex held, read without.
    std::atomic<std::uint64_t> charged_bytes_{0};
    bool counting_ GANTRY_GUARDED_BY(mutex_) = true;
};

class MemoryCharge {
public:
    MemoryCharge(MemoryShare& share, std::uint64_t bytes) : share_(share), bytes_(bytes) {}
    ~MemoryCharge() { share_.uncount(bytes_); }
    MemoryCharge(const MemoryCharge&) = delete;
    MemoryCharge& operator=(const MemoryCharge&) = delete;

    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
    /// Takes another's bytes over.
    void add(MemoryCharge& other) { bytes_ += std::exchange(other.bytes_, 0); }
    /// What it has turned out to be: it is there, so it is counted.
    void set(std::uint64_t bytes) {
        const std::uint64_t before = std::exchange(bytes_, bytes);
        if (bytes > before) {
            share_.count(bytes - before, MemoryShare::Beyond::kCounted);
        } else {
            share_.uncount(before - bytes);
        }
    }

private:
    MemoryShare& share_;
    std::uint64_t bytes_;
};

}  // namespace gantry::worker
