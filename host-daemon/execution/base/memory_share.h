// MemoryShare: a worker's part of its VM's device memory quota (proto/control/memory_page.h).
//
// As a GranuleMapper it stands between the arena and the device: what is mapped is counted, and a
// mapping that would take the VM above its quota is refused with reason memory.quota. A restore is
// counted, but not refused: for a moment source and target of a move on one host both have the
// memory.
//
// Threads: any. Without a page nothing is counted: the arena's own quota is the only one then.
#pragma once

#include <atomic>
#include <cstdint>

#include "host-daemon/execution/base/arena_allocator.h"
#include "proto/base/mutex.h"
#include "proto/control/memory_page.h"

namespace gantry::worker {

class MemoryShare final : public GranuleMapper {
public:
    explicit MemoryShare(GranuleMapper& device) : device_(device) {}
    ~MemoryShare() override;
    MemoryShare(const MemoryShare&) = delete;
    MemoryShare& operator=(const MemoryShare&) = delete;

    /// Before any memory is mapped. The descriptor stays the caller's.
    Result<void> join(int page, std::uint32_t slot, std::uint64_t quota_bytes);
    /// What the whole VM uses; `own_bytes` where nothing is shared.
    [[nodiscard]] std::uint64_t used_bytes(std::uint64_t own_bytes) const;
    void set_restoring(bool restoring) { restoring_ = restoring; }
    /// Memory that is mapped elsewhere than by map(): false when it would exceed the quota.
    /// `own_bytes` and `own_quota_bytes` count where nothing is shared.
    bool count(std::uint64_t bytes, std::uint64_t own_bytes, std::uint64_t own_quota_bytes);
    void uncount(std::uint64_t bytes);
    /// Memory that two workers hold during a take-over is counted by the one that serves.
    void set_counting(bool counting);

    Result<void> map(DeviceVa address, std::uint64_t bytes) override;
    void unmap(DeviceVa address, std::uint64_t bytes) override;
    [[nodiscard]] bool is_current(DeviceVa address) const override {
        return device_.is_current(address);
    }

private:
    GranuleMapper& device_;
    control::MemoryPage* page_ = nullptr;
    std::uint32_t slot_ = 0;
    std::uint64_t quota_bytes_ = 0;
    std::atomic<bool> restoring_{false};
    Mutex mutex_;  ///< Holds own_bytes_, the slot and counting_ together.
    std::uint64_t own_bytes_ GANTRY_GUARDED_BY(mutex_) = 0;
    /// By count(); a part of own_bytes_.
    std::uint64_t extra_bytes_ GANTRY_GUARDED_BY(mutex_) = 0;
    bool counting_ GANTRY_GUARDED_BY(mutex_) = true;
};

}  // namespace gantry::worker
