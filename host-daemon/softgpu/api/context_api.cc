// Contexts: primary, created, the stack of each thread, limits and flags.
#include <algorithm>

#include "host-daemon/softgpu/core/context.h"
#include "host-daemon/softgpu/core/driver.h"
#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/core/thread_state.h"
#include "host-daemon/softgpu/graph/capture.h"
#include "host-daemon/softgpu/runtime/context_life.h"
#include "host-daemon/softgpu/streams/device_output.h"
#include "host-daemon/softgpu/streams/stream.h"
#include "proto/cuda/gen/impl.h"

namespace gantry::cuda_impl {
namespace {

using softgpu::Context;
using softgpu::Device;
using softgpu::device_of;
using softgpu::Scheduler;
using softgpu::thread_state;

constexpr unsigned kApiVersion = 3020;
constexpr unsigned kFlagsKnown = CU_CTX_FLAGS_MASK;
constexpr int kPriorityGreatest = -5;

bool flags_valid(unsigned flags) {
    const unsigned schedule = flags & CU_CTX_SCHED_MASK;
    return (flags & ~kFlagsKnown) == 0 &&
           (schedule == CU_CTX_SCHED_AUTO || schedule == CU_CTX_SCHED_SPIN ||
            schedule == CU_CTX_SCHED_YIELD || schedule == CU_CTX_SCHED_BLOCKING_SYNC);
}

/// Null means the current one.
CUresult context_or_current(CUcontext handle, std::shared_ptr<Context>& context) {
    if (handle == nullptr) {
        return softgpu::current_context_even_poisoned(context);
    }
    context = softgpu::find<Context>(handle);
    return context != nullptr && context->alive ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

void leave_everywhere(const std::shared_ptr<Context>& context) {
    auto& stack = thread_state().stack;
    if (!stack.empty() && stack.back() == context) {
        stack.pop_back();
    }
}

CUresult create(CUcontext* pctx, unsigned flags, CUdevice dev) {
    Device* device = device_of(dev);
    GANTRY_REFUSE_IF(pctx == nullptr || !flags_valid(flags), CUDA_ERROR_INVALID_VALUE);
    GANTRY_REFUSE_IF(device == nullptr, CUDA_ERROR_INVALID_DEVICE);
    GANTRY_CU(softgpu::poison());
    const auto context = std::make_shared<Context>(*device, flags, false);
    *pctx = softgpu::publish<CUcontext>(context);
    softgpu::start_context(*context);
    thread_state().stack.push_back(context);
    return CUDA_SUCCESS;
}

}  // namespace

CUresult cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) noexcept {
    Device* device = device_of(dev);
    if (pctx == nullptr || device == nullptr) {
        return pctx == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE;
    }
    const std::lock_guard lock(device->mutex);
    ++device->primary_retains;
    device->primary->flags = device->primary_flags;
    *pctx = device->primary->as<CUcontext>();
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) noexcept {
    Device* device = device_of(dev);
    GANTRY_REFUSE_IF(device == nullptr, CUDA_ERROR_INVALID_DEVICE);
    {
        const std::lock_guard lock(device->mutex);
        GANTRY_REFUSE_IF(device->primary_retains == 0, CUDA_ERROR_INVALID_CONTEXT);
        if (--device->primary_retains > 0) {
            return CUDA_SUCCESS;
        }
    }
    softgpu::reset_context(*device->primary);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags) noexcept {
    Device* device = device_of(dev);
    if (device == nullptr || !flags_valid(flags)) {
        return device == nullptr ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    }
    const std::lock_guard lock(device->mutex);
    device->primary_flags = flags;
    device->primary->flags = flags;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int* flags, int* active) noexcept {
    Device* device = device_of(dev);
    if (device == nullptr || flags == nullptr || active == nullptr) {
        return device == nullptr ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    }
    const std::lock_guard lock(device->mutex);
    *flags = device->primary_flags;
    *active = device->primary_retains > 0 ? 1 : 0;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) noexcept {
    Device* device = device_of(dev);
    GANTRY_REFUSE_IF(device == nullptr, CUDA_ERROR_INVALID_DEVICE);
    if (softgpu::poison() != CUDA_SUCCESS) {
        return CUDA_ERROR_NOT_PERMITTED;  // As seen on hardware: the error stays.
    }
    {
        const std::lock_guard lock(device->mutex);
        device->primary_retains = 0;
    }
    softgpu::reset_context(*device->primary);
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext* pctx, unsigned int flags, CUdevice dev) noexcept {
    return create(pctx, flags, dev);
}

CUresult cuCtxCreate_v3(CUcontext* pctx, CUexecAffinityParam*, int numParams, unsigned int flags,
                        CUdevice dev) noexcept {
    return numParams != 0 ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY : create(pctx, flags, dev);
}

CUresult cuCtxCreate_v4(CUcontext* pctx, CUctxCreateParams* ctxCreateParams, unsigned int flags,
                        CUdevice dev) noexcept {
    GANTRY_REFUSE_IF(ctxCreateParams != nullptr && ctxCreateParams->numExecAffinityParams != 0,
                     CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
    GANTRY_REFUSE_IF(ctxCreateParams != nullptr && ctxCreateParams->cigParams != nullptr,
                     CUDA_ERROR_NOT_SUPPORTED);
    return create(pctx, flags, dev);
}

CUresult cuCtxDestroy_v2(CUcontext ctx) noexcept {
    const auto context = softgpu::find<Context>(ctx);
    GANTRY_REFUSE_IF(context == nullptr || context->primary, CUDA_ERROR_INVALID_CONTEXT);
    softgpu::reset_context(*context);
    context->alive = false;
    leave_everywhere(context);
    softgpu::retract(*context);
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx) noexcept {
    const auto context = softgpu::find<Context>(ctx);
    GANTRY_REFUSE_IF(context == nullptr, CUDA_ERROR_INVALID_CONTEXT);
    thread_state().stack.push_back(context);
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext* pctx) noexcept {
    auto& stack = thread_state().stack;
    GANTRY_REFUSE_IF(stack.empty(), CUDA_ERROR_INVALID_CONTEXT);
    if (pctx != nullptr) {
        *pctx = stack.back() != nullptr ? stack.back()->as<CUcontext>() : nullptr;
    }
    stack.pop_back();
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext ctx) noexcept {
    auto& stack = thread_state().stack;
    if (ctx == nullptr) {
        if (!stack.empty()) {
            stack.pop_back();
        }
        return CUDA_SUCCESS;
    }
    const auto context = softgpu::find<Context>(ctx);
    GANTRY_REFUSE_IF(context == nullptr, CUDA_ERROR_INVALID_CONTEXT);
    if (stack.empty()) {
        stack.push_back(context);
    } else {
        stack.back() = context;
    }
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* pctx) noexcept {
    GANTRY_REFUSE_IF(pctx == nullptr, CUDA_ERROR_INVALID_VALUE);
    const auto& stack = thread_state().stack;
    *pctx = stack.empty() || stack.back() == nullptr ? nullptr : stack.back()->as<CUcontext>();
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) noexcept { return cuCtxGetDevice_v2(device, nullptr); }

CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext ctx) noexcept {
    std::shared_ptr<Context> context;
    GANTRY_CU(context_or_current(ctx, context));
    GANTRY_REFUSE_IF(device == nullptr, CUDA_ERROR_INVALID_VALUE);
    *device = context->device.ordinal;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext ctx, unsigned long long* ctxId) noexcept {
    std::shared_ptr<Context> context;
    GANTRY_CU(context_or_current(ctx, context));
    GANTRY_REFUSE_IF(ctxId == nullptr, CUDA_ERROR_INVALID_VALUE);
    *ctxId = context->id;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned int* flags) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_REFUSE_IF(flags == nullptr, CUDA_ERROR_INVALID_VALUE);
    *flags = context->flags | CU_CTX_MAP_HOST;  // Always on, as on hardware.
    return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned int flags) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_REFUSE_IF(!flags_valid(flags), CUDA_ERROR_INVALID_VALUE);
    context->flags = flags;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() noexcept { return cuCtxSynchronize_v2(nullptr); }

CUresult cuCtxSynchronize_v2(CUcontext ctx) noexcept {
    std::shared_ptr<Context> context;
    GANTRY_CU(context_or_current(ctx, context));
    GANTRY_REFUSE_IF(thread_state().in_host_callback, CUDA_ERROR_NOT_PERMITTED);
    GANTRY_CU(softgpu::refuse_context_during_capture(context));
    Scheduler::instance().wait(Scheduler::instance().points_of(*context));
    softgpu::DeviceOutput::instance().flush();
    return softgpu::take_error(*context);
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_REFUSE_IF(limit < 0 || limit >= CU_LIMIT_MAX, CUDA_ERROR_INVALID_VALUE);
    const bool settable = limit < CU_LIMIT_SHMEM_SIZE;
    GANTRY_REFUSE_IF(!settable || limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH,
                     CUDA_ERROR_UNSUPPORTED_LIMIT);
    GANTRY_CU(softgpu::refuse_during_capture());
    const std::lock_guard lock(context->mutex);
    const bool heap_in_use = limit == CU_LIMIT_MALLOC_HEAP_SIZE && context->heap.bytes() != 0;
    const bool fifo_in_use = limit == CU_LIMIT_PRINTF_FIFO_SIZE && context->printf_used;
    GANTRY_REFUSE_IF(heap_in_use || fifo_in_use, CUDA_ERROR_INVALID_VALUE);
    if (limit == CU_LIMIT_STACK_SIZE) {
        constexpr std::uint64_t kStackBytesMax = std::uint64_t{512} << 10;
        GANTRY_REFUSE_IF(value > kStackBytesMax, CUDA_ERROR_INVALID_VALUE);
        value = (value + 15) / 16 * 16;
    }
    context->limits[limit] = value;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t* pvalue, CUlimit limit) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_REFUSE_IF(pvalue == nullptr || limit < 0 || limit >= CU_LIMIT_MAX,
                     CUDA_ERROR_INVALID_VALUE);
    const bool known = limit <= CU_LIMIT_CIG_ENABLED;
    GANTRY_REFUSE_IF(!known || limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH,
                     CUDA_ERROR_UNSUPPORTED_LIMIT);
    const std::lock_guard lock(context->mutex);
    *pvalue = context->limits[limit];
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache* pconfig) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_REFUSE_IF(pconfig == nullptr, CUDA_ERROR_INVALID_VALUE);
    const std::lock_guard lock(context->mutex);
    *pconfig = context->cache_config;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_REFUSE_IF(config < 0 || config > CU_FUNC_CACHE_PREFER_EQUAL, CUDA_ERROR_INVALID_VALUE);
    const std::lock_guard lock(context->mutex);
    context->cache_config = config;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig* pConfig) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_REFUSE_IF(pConfig == nullptr, CUDA_ERROR_INVALID_VALUE);
    *pConfig = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;  // Fixed since Maxwell.
    return CUDA_SUCCESS;
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config) noexcept {
    GANTRY_CURRENT(context);
    return config < 0 || config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE
               ? CUDA_ERROR_INVALID_VALUE
               : CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int* version) noexcept {
    std::shared_ptr<Context> context;
    GANTRY_CU(context_or_current(ctx, context));
    GANTRY_REFUSE_IF(version == nullptr, CUDA_ERROR_INVALID_VALUE);
    *version = kApiVersion;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int* leastPriority, int* greatestPriority) noexcept {
    GANTRY_CURRENT(context);
    if (leastPriority != nullptr) {
        *leastPriority = 0;
    }
    if (greatestPriority != nullptr) {
        *greatestPriority = kPriorityGreatest;
    }
    return CUDA_SUCCESS;
}

CUresult cuCtxResetPersistingL2Cache() noexcept {
    GANTRY_CURRENT(context);
    return CUDA_SUCCESS;
}

CUresult cuCtxAttach(CUcontext* pctx, unsigned int flags) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_REFUSE_IF(pctx == nullptr || flags != 0, CUDA_ERROR_INVALID_VALUE);
    const std::lock_guard lock(context->mutex);
    ++context->attach_count;
    *pctx = context->as<CUcontext>();
    return CUDA_SUCCESS;
}

CUresult cuCtxDetach(CUcontext ctx) noexcept {
    const auto context = softgpu::find<Context>(ctx);
    GANTRY_REFUSE_IF(context == nullptr, CUDA_ERROR_INVALID_CONTEXT);
    {
        const std::lock_guard lock(context->mutex);
        if (--context->attach_count > 0) {
            return CUDA_SUCCESS;
        }
    }
    return cuCtxDestroy_v2(ctx);
}

CUresult cuCtxGetExecAffinity(CUexecAffinityParam*, CUexecAffinityType) noexcept {
    return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
}

CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags) noexcept {
    GANTRY_CURRENT(context);
    const auto peer = softgpu::find<Context>(peerContext);
    GANTRY_REFUSE_IF(Flags != 0, CUDA_ERROR_INVALID_VALUE);
    GANTRY_REFUSE_IF(peer == nullptr, CUDA_ERROR_INVALID_CONTEXT);
    GANTRY_REFUSE_IF(&peer->device == &context->device, CUDA_ERROR_INVALID_DEVICE);
    const std::lock_guard lock(context->mutex);
    auto& peers = context->peers;
    GANTRY_REFUSE_IF(std::find(peers.begin(), peers.end(), peer.get()) != peers.end(),
                     CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    peers.push_back(peer.get());
    return CUDA_SUCCESS;
}

CUresult cuCtxDisablePeerAccess(CUcontext peerContext) noexcept {
    GANTRY_CURRENT(context);
    const auto peer = softgpu::find<Context>(peerContext);
    GANTRY_REFUSE_IF(peer == nullptr, CUDA_ERROR_INVALID_CONTEXT);
    const std::lock_guard lock(context->mutex);
    return std::erase(context->peers, peer.get()) != 0 ? CUDA_SUCCESS
                                                       : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

}  // namespace gantry::cuda_impl
