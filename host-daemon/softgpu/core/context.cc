#include "host-daemon/softgpu/core/context.h"

#include <utility>

#include "host-daemon/softgpu/core/errors.h"

namespace gantry::softgpu {
namespace {

std::uint64_t next_context_id() {
    static std::atomic<std::uint64_t> next{1};
    return next.fetch_add(1);
}

// As an H200 with a 580 driver answers.
std::array<std::uint64_t, CU_LIMIT_MAX> default_limits(const Device& device) {
    std::array<std::uint64_t, CU_LIMIT_MAX> limits{};
    limits[CU_LIMIT_STACK_SIZE] = 1024;
    limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 8650752;
    limits[CU_LIMIT_MALLOC_HEAP_SIZE] = std::uint64_t{8} << 20;
    limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
    limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
    limits[CU_LIMIT_PERSISTING_L2_CACHE_SIZE] =
        static_cast<std::uint64_t>(device.profile.l2_bytes) / 16 * 3;
    limits[CU_LIMIT_SHMEM_SIZE] = device.profile.engine.shared_bytes_per_block_optin;
    return limits;
}

}  // namespace

Context::Context(Device& device_in, unsigned flags_in, bool primary_in)
    : Object(kKind),
      device(device_in),
      primary(primary_in),
      id(next_context_id()),
      flags(flags_in),
      limits(default_limits(device_in)) {}

std::map<void*, std::shared_ptr<Object>> Context::forget() {
    const std::lock_guard lock(mutex);
    std::map<void*, std::shared_ptr<Object>> doomed = std::move(modules);
    modules.clear();
    peers.clear();
    limits = default_limits(device);
    printf_used = false;
    return doomed;
}

CUresult take_error(Context& context) {
    if (const CUresult error = poison(); error != CUDA_SUCCESS) {
        return error;
    }
    const std::lock_guard lock(context.mutex);
    return std::exchange(context.deferred_error, CUDA_SUCCESS);
}

}  // namespace gantry::softgpu
