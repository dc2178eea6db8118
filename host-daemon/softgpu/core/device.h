// One pretended GPU: its profile, attributes and memory quota.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "host-daemon/softgpu/core/profile.h"
#include "proto/cuda/abi.h"

namespace gantry::softgpu {

class Context;
class MemoryPool;

struct Device {
    Device(int ordinal_in, GpuProfile profile_in)
        : ordinal(ordinal_in), profile(std::move(profile_in)) {}

    const int ordinal;
    const GpuProfile profile;

    /// What decides how many blocks are resident at once: the profile, or what show() was given.
    [[nodiscard]] const DeviceProfile& residency() const { return *residency_.load(); }
    /// From here on; kernels that were queued before may go by either.
    void show(const DeviceProfile& shown);

    /// Takes `bytes` from the quota; false when it would be exceeded.
    bool charge(std::uint64_t bytes);
    void refund(std::uint64_t bytes);
    std::atomic<std::uint64_t> used_bytes{0};

    std::shared_ptr<Context> primary;  ///< Set at cuInit, never changes.
    std::mutex mutex;                  ///< Guards what follows.
    int primary_retains = 0;
    unsigned primary_flags = 0;
    std::shared_ptr<MemoryPool> default_pool;
    std::shared_ptr<MemoryPool> current_pool;
    std::shared_ptr<MemoryPool> managed_pool;

private:
    std::atomic<const DeviceProfile*> residency_{&profile.engine};
    std::vector<std::unique_ptr<const DeviceProfile>> shown_;  ///< A kernel may use an old one.
};

/// CU_DEVICE_ATTRIBUTE_*; false for a number CUDA 13.0 does not define.
bool device_attribute(const Device& device, int attribute, int& value);

/// Puts an attribute that decides how many blocks are resident into `profile`, and ignores others;
/// false for a value that no profile may have.
bool show_attribute(int attribute, int value, DeviceProfile& profile);

}  // namespace gantry::softgpu
