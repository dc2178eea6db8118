// Stream-ordered allocation and memory pools.
#include "guest-shim/driver/core/call_rules.h"
#include "guest-shim/driver/core/objects.h"
#include "guest-shim/driver/core/ranges.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/wire_structs.h"
#include "proto/cuda/refuse_if.h"

namespace gantry::shim {
namespace {

constinit session::FutexMutex g_mutex;
// Named when first asked for.
std::uint64_t g_default_pools[kMaxDevices] GANTRY_GUARDED_BY(g_mutex);
std::atomic<std::uint64_t> g_current_pools[kMaxDevices];  // 0: the default one.

void note(std::uint64_t address, std::uint64_t bytes, std::uint64_t pool) {
    Range range{};
    range.address = address;
    range.bytes = bytes;
    range.kind = RangeKind::kDeviceAsync;
    range.context = session::current_context();
    range.device = current_device();
    range.owner = pool;
    add_range(&range);
}

CUresult default_pool(int device, std::uint64_t* pool) {
    GANTRY_REFUSE_IF(session::device_facts(device) == nullptr, CUDA_ERROR_INVALID_DEVICE);
    session::Guard guard(g_mutex);
    if (g_default_pools[device] == 0) {
        const std::uint64_t handle = session::mint(HandleKind::kMemPool);
        const cuda::wire::cuDeviceGetDefaultMemPool_call arguments{handle, device, 0};
        const CUresult result = call_status(cuda::Op::cuDeviceGetDefaultMemPool, arguments);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        g_default_pools[device] = handle;
    }
    *pool = g_default_pools[device];
    return CUDA_SUCCESS;
}

CUresult give_pool(CUmemoryPool* out, CUresult result, std::uint64_t pool) {
    if (result == CUDA_SUCCESS) {
        *out = reinterpret_cast<CUmemoryPool>(pool);
    }
    return result;
}

bool is_pool(CUmemoryPool pool) { return cuda::handle_kind(bits(pool)) == HandleKind::kMemPool; }

bool is_device_location(const CUmemLocation* location, CUmemAllocationType type) {
    return location != nullptr && location->type == CU_MEM_LOCATION_TYPE_DEVICE &&
           type == CU_MEM_ALLOCATION_TYPE_PINNED;
}

}  // namespace
}  // namespace gantry::shim

namespace gantry::shim::rules {

void pool_chosen(CUdevice device, CUmemoryPool pool) noexcept {
    if (device >= 0 && device < kMaxDevices) {
        g_current_pools[device] = bits(pool);
    }
}

void pool_ended(CUmemoryPool pool) noexcept {
    for (std::atomic<std::uint64_t>& current_pool : g_current_pools) {
        std::uint64_t ended = bits(pool);
        current_pool.compare_exchange_strong(ended, 0);
    }
}

}  // namespace gantry::shim::rules

namespace gantry::cuda_impl {

using namespace gantry::shim;

CUresult cuMemAllocAsync(CUdeviceptr* dptr, size_t bytesize, CUstream hStream) noexcept {
    GANTRY_REFUSE_IF(dptr == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_REFUSE_IF(!is_stream(hStream), CUDA_ERROR_INVALID_HANDLE);
    if (bytesize == 0) {
        *dptr = 0;
        return CUDA_SUCCESS;
    }
    cuda::wire::cuMemAllocAsync_reply reply{};
    const cuda::wire::cuMemAllocAsync_call arguments{bytesize, bits(hStream)};
    const CUresult result = call_reply(cuda::Op::cuMemAllocAsync, arguments, &reply);
    if (result == CUDA_SUCCESS) {
        note(reply.dptr, bytesize, g_current_pools[current_device()]);
        *dptr = reply.dptr;
    }
    return result;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* dptr, size_t bytesize, CUmemoryPool pool,
                                 CUstream hStream) noexcept {
    GANTRY_REFUSE_IF(dptr == nullptr || !is_pool(pool), CUDA_ERROR_INVALID_VALUE);
    GANTRY_REFUSE_IF(!is_stream(hStream), CUDA_ERROR_INVALID_HANDLE);
    if (bytesize == 0) {
        *dptr = 0;
        return CUDA_SUCCESS;
    }
    cuda::wire::cuMemAllocFromPoolAsync_reply reply{};
    const cuda::wire::cuMemAllocFromPoolAsync_call arguments{bytesize, bits(pool), bits(hStream)};
    const CUresult result = call_reply(cuda::Op::cuMemAllocFromPoolAsync, arguments, &reply);
    if (result == CUDA_SUCCESS) {
        note(reply.dptr, bytesize, bits(pool));
        *dptr = reply.dptr;
    }
    return result;
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) noexcept {
    GANTRY_REFUSE_IF(!is_stream(hStream), CUDA_ERROR_INVALID_HANDLE);
    if (dptr == 0) {
        return CUDA_SUCCESS;
    }
    Range range{};
    if (!remove_range(dptr, &range)) {
        // Not known here: an allocation that a graph made, or one freed before. The host knows.
        return is_in_arena(dptr) && !is_in_pool(dptr)
                   ? call_status(cuda::Op::cuMemFreeAsync,
                                 cuda::wire::cuMemFreeAsync_call{dptr, bits(hStream)})
                   : CUDA_ERROR_INVALID_VALUE;
    }
    if (range.kind != RangeKind::kDevice && range.kind != RangeKind::kDeviceAsync) {
        add_range(&range);
        return CUDA_ERROR_INVALID_VALUE;
    }
    return post_args(cuda::Op::cuMemFreeAsync,
                     cuda::wire::cuMemFreeAsync_call{dptr, bits(hStream)});
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool_out, CUdevice dev) noexcept {
    GANTRY_REFUSE_IF(pool_out == nullptr, CUDA_ERROR_INVALID_VALUE);
    std::uint64_t pool = 0;
    const CUresult result = default_pool(dev, &pool);
    return give_pool(pool_out, result, pool);
}

CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice dev) noexcept {
    if (pool == nullptr || session::device_facts(dev) == nullptr) {
        return pool == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE;
    }
    if (const std::uint64_t current_pool = g_current_pools[dev]; current_pool != 0) {
        return give_pool(pool, CUDA_SUCCESS, current_pool);
    }
    return cuDeviceGetDefaultMemPool(pool, dev);
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool_out, CUmemLocation* location,
                                CUmemAllocationType type) noexcept {
    return is_device_location(location, type) ? cuDeviceGetDefaultMemPool(pool_out, location->id)
                                              : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation* location,
                         CUmemAllocationType type) noexcept {
    return is_device_location(location, type) ? cuDeviceGetMemPool(pool, location->id)
                                              : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type,
                         CUmemoryPool pool) noexcept {
    return is_device_location(location, type) ? cuDeviceSetMemPool(location->id, pool)
                                              : CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace gantry::cuda_impl
