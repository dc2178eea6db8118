// Stream-ordered memory: pools and allocations from them.
//
// An allocation is mapped at the call and usable in stream order; a free takes effect when the
// stream reaches it. Freed blocks of a pool are kept up to its release threshold and reused by
// size, oldest first (zeroed: a block's old bytes are nobody's business).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "host-daemon/softgpu/core/context.h"

namespace gantry::softgpu {

class MemoryPool : public Object, public std::enable_shared_from_this<MemoryPool> {
public:
    static constexpr ObjectKind kKind = ObjectKind::kMemoryPool;
    MemoryPool(Device& device_in, const CUmemPoolProps& props_in)
        : Object(kKind), device(device_in), props(props_in) {}
    ~MemoryPool() override;

    CUresult allocate(Context& context, std::uint64_t bytes, std::uint64_t& address);
    /// Gives a block back; called when the stream reaches the free.
    void put_back(std::uint64_t address, std::uint64_t bytes);
    /// Frees kept blocks until at most `bytes` are reserved beyond what is used.
    void trim(std::uint64_t bytes);
    CUresult attribute(CUmemPool_attribute attribute, void* value);
    CUresult set_attribute(CUmemPool_attribute attribute, const void* value);

    Device& device;
    const CUmemPoolProps props;

private:
    void trim_locked(std::uint64_t bytes);

    std::mutex mutex_;
    std::multimap<std::uint64_t, std::uint64_t> kept_;  ///< Size -> address, mapped and unused.
    std::uint64_t kept_bytes_ = 0;
    std::uint64_t used_ = 0;
    std::uint64_t used_high_ = 0;
    std::uint64_t reserved_high_ = 0;
    std::uint64_t threshold_ = 0;
    int reuse_[3] = {1, 1, 1};
};

/// The device's default pool (and the one for managed memory), made at first use.
std::shared_ptr<MemoryPool> default_pool(Device& device);

/// Frees a pool's allocation now (cuMemFree).
CUresult free_pooled(std::uint64_t address);

}  // namespace gantry::softgpu
