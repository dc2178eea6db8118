#include "host-daemon/softgpu/run/context.h"

#include "host-daemon/softgpu/code/module.h"
#include "host-daemon/softgpu/graph/capture.h"
#include "host-daemon/softgpu/memory/allocate.h"
#include "host-daemon/softgpu/run/device_output.h"
#include "host-daemon/softgpu/run/driver.h"
#include "proto/cuda/dark/dark.h"

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

void Context::start() {
    legacy_stream = std::make_shared<Stream>(weak_from_this(), CU_STREAM_DEFAULT, 0);
    legacy_stream->legacy = true;
    Scheduler::instance().add(*this, legacy_stream);
}

void Context::reset() {
    abandon_captures_of(*this);
    Scheduler::instance().wait(Scheduler::instance().points_of(*this));
    DeviceOutput::instance().flush();
    dark::forget_context(handle());
    std::map<void*, std::shared_ptr<Object>> doomed;
    {
        const std::lock_guard lock(mutex);
        doomed.swap(modules);
        peers.clear();
        limits = default_limits(device);
        printf_used = false;
    }
    forget_libraries(id);
    for (const auto& [module, object] : doomed) {
        object->retire();
        HandleTable::instance().retract(module);
    }
    doomed.clear();
    heap.release(device);
    free_all_of(*this);
}

CUresult take_error(Context& context) {
    if (const CUresult error = poison(); error != CUDA_SUCCESS) {
        return error;
    }
    const std::lock_guard lock(context.mutex);
    return std::exchange(context.deferred_error, CUDA_SUCCESS);
}

}  // namespace gantry::softgpu
