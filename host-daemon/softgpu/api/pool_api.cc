// Stream-ordered allocation and memory pools.
#include <memory>
#include <mutex>
#include <unordered_set>

#include "host-daemon/softgpu/core/driver.h"
#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/core/thread_state.h"
#include "host-daemon/softgpu/graph/capture.h"
#include "host-daemon/softgpu/graph/graph_memory.h"
#include "host-daemon/softgpu/memory/allocate.h"
#include "host-daemon/softgpu/memory/pool.h"
#include "host-daemon/softgpu/streams/enqueue.h"
#include "host-daemon/softgpu/streams/operation.h"
#include "host-daemon/softgpu/streams/stream.h"
#include "proto/cuda/gen/impl.h"

namespace gantry::cuda_impl {
namespace {

using softgpu::Context;
using softgpu::Device;
using softgpu::MemoryKind;
using softgpu::MemoryMap;
using softgpu::MemoryPool;
using softgpu::Stream;

/// A free on its way through a stream: a second one of the same address is an error of its caller.
class PendingFree {
public:
    explicit PendingFree(std::uint64_t address) : address_(address) {}
    PendingFree(const PendingFree&) = delete;
    PendingFree& operator=(const PendingFree&) = delete;
    ~PendingFree() { end(); }  // Also of work that is dropped.

    /// Null when one is pending already.
    static std::shared_ptr<PendingFree> begin(std::uint64_t address) {
        const std::lock_guard lock(mutex());
        return addresses().insert(address).second ? std::make_shared<PendingFree>(address)
                                                  : nullptr;
    }

    /// Before the memory is free: its address may then be given out again.
    void end() {
        const std::lock_guard lock(mutex());
        if (!has_ended_) {
            has_ended_ = true;
            addresses().erase(address_);
        }
    }

private:
    static std::mutex& mutex() {
        static auto* const the_mutex = new std::mutex;
        return *the_mutex;
    }
    static std::unordered_set<std::uint64_t>& addresses() {
        static auto* const the_addresses = new std::unordered_set<std::uint64_t>;
        return *the_addresses;  // Never destroyed: work may be dropped while the process ends.
    }

    const std::uint64_t address_;
    bool has_ended_ = false;
};

/// A capturing stream allocates and frees by graph nodes.
CUresult capture_allocation(const std::shared_ptr<Stream>& stream, Context& context,
                            std::size_t bytes, CUdeviceptr* out) {
    auto operation = std::make_shared<softgpu::AllocOperation>();
    GANTRY_CU(softgpu::GraphAllocation::create(context, bytes, operation->allocation));
    operation->params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    operation->params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, context.device.ordinal};
    operation->params.bytesize = bytes;
    operation->params.dptr = operation->allocation->address;
    *out = operation->allocation->address;
    return softgpu::enqueue(stream, std::move(operation));
}

CUresult allocate(MemoryPool& pool, CUdeviceptr* dptr, std::size_t bytes, CUstream handle) {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, handle);
    GANTRY_REFUSE_IF(dptr == nullptr, CUDA_ERROR_INVALID_VALUE);
    if (bytes == 0) {
        *dptr = 0;
        return CUDA_SUCCESS;
    }
    if (softgpu::capturing(stream)) {
        return capture_allocation(stream, *context, bytes, dptr);
    }
    GANTRY_CU(softgpu::refuse_legacy_during_capture(stream));
    std::uint64_t address = 0;
    const CUresult error = pool.allocate(*context, bytes, address);
    if (error == CUDA_ERROR_OUT_OF_MEMORY) {
        // Frees may be on their way through the streams.
        softgpu::Scheduler::instance().wait(softgpu::Scheduler::instance().points_of(*context));
        GANTRY_CU(pool.allocate(*context, bytes, address));
    } else if (error != CUDA_SUCCESS) {
        return error;
    }
    *dptr = address;
    return CUDA_SUCCESS;
}

std::shared_ptr<MemoryPool> pool_at(const CUmemLocation* location) {
    Device* device = location != nullptr && location->type == CU_MEM_LOCATION_TYPE_DEVICE
                         ? softgpu::device_of(location->id)
                         : nullptr;
    return device == nullptr ? nullptr : softgpu::default_pool(*device);
}

}  // namespace

CUresult cuMemAllocAsync(CUdeviceptr* dptr, size_t bytesize, CUstream hStream) noexcept {
    GANTRY_CURRENT(context);
    softgpu::default_pool(context->device);
    std::shared_ptr<MemoryPool> pool;
    {
        const std::lock_guard lock(context->device.mutex);
        pool = context->device.current_pool;
    }
    return allocate(*pool, dptr, bytesize, hStream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* dptr, size_t bytesize, CUmemoryPool pool,
                                 CUstream hStream) noexcept {
    const auto found = softgpu::find<MemoryPool>(pool);
    return found == nullptr ? CUDA_ERROR_INVALID_HANDLE : allocate(*found, dptr, bytesize, hStream);
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, hStream);
    if (dptr == 0) {
        return CUDA_SUCCESS;
    }
    if (softgpu::capturing(stream)) {
        auto operation = std::make_shared<softgpu::FreeOperation>();
        operation->address = dptr;
        return softgpu::enqueue(stream, std::move(operation));
    }
    const auto range = MemoryMap::instance().find(dptr);
    if (!range || range->base != dptr ||
        (range->kind != MemoryKind::kPooled && range->kind != MemoryKind::kDevice)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::shared_ptr<PendingFree> pending;
    if (!softgpu::is_graph_allocation(dptr)) {  // That may be allocated anew in between.
        pending = PendingFree::begin(dptr);
        GANTRY_REFUSE_IF(pending == nullptr, CUDA_ERROR_INVALID_VALUE);
    }
    const MemoryKind kind = range->kind;
    softgpu::Scheduler::instance().submit(
        stream, std::make_unique<softgpu::FunctionWork>([dptr, kind, pending] {
            if (pending != nullptr) {
                pending->end();
            }
            if (softgpu::free_graph_allocation(dptr)) {
                return;
            }
            if (kind == MemoryKind::kPooled) {
                softgpu::free_pooled(dptr);
            } else {
                softgpu::free_device(dptr, kind);
            }
        }));
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool_out, CUdevice dev) noexcept {
    Device* device = softgpu::device_of(dev);
    if (pool_out == nullptr || device == nullptr) {
        return device == nullptr ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    }
    *pool_out = softgpu::default_pool(*device)->as<CUmemoryPool>();
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice dev) noexcept {
    Device* device = softgpu::device_of(dev);
    if (pool == nullptr || device == nullptr) {
        return device == nullptr ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    }
    softgpu::default_pool(*device);
    const std::lock_guard lock(device->mutex);
    *pool = device->current_pool->as<CUmemoryPool>();
    return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) noexcept {
    Device* device = softgpu::device_of(dev);
    const auto found = softgpu::find<MemoryPool>(pool);
    if (device == nullptr || found == nullptr || &found->device != device) {
        return device == nullptr ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    }
    softgpu::default_pool(*device);
    const std::lock_guard lock(device->mutex);
    device->current_pool = found;
    return CUDA_SUCCESS;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool_out, CUmemLocation* location,
                                CUmemAllocationType type) noexcept {
    const auto pool = pool_at(location);
    GANTRY_REFUSE_IF(pool_out == nullptr || pool == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_REFUSE_IF(type != CU_MEM_ALLOCATION_TYPE_PINNED, CUDA_ERROR_NOT_SUPPORTED);
    *pool_out = pool->as<CUmemoryPool>();
    return CUDA_SUCCESS;
}

CUresult cuMemGetMemPool(CUmemoryPool* pool_out, CUmemLocation* location,
                         CUmemAllocationType type) noexcept {
    GANTRY_REFUSE_IF(pool_at(location) == nullptr, CUDA_ERROR_INVALID_VALUE);
    return type == CU_MEM_ALLOCATION_TYPE_PINNED ? cuDeviceGetMemPool(pool_out, location->id)
                                                 : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type,
                         CUmemoryPool pool) noexcept {
    GANTRY_REFUSE_IF(pool_at(location) == nullptr, CUDA_ERROR_INVALID_VALUE);
    return type == CU_MEM_ALLOCATION_TYPE_PINNED ? cuDeviceSetMemPool(location->id, pool)
                                                 : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps_v1* poolProps) noexcept {
    GANTRY_CU(softgpu::poison());
    if (pool == nullptr || poolProps == nullptr ||
        poolProps->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    GANTRY_CU(softgpu::refuse_during_capture());
    if (poolProps->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        poolProps->handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    Device* device = softgpu::device_of(poolProps->location.id);
    GANTRY_REFUSE_IF(device == nullptr, CUDA_ERROR_INVALID_DEVICE);
    *pool = softgpu::publish<CUmemoryPool>(std::make_shared<MemoryPool>(*device, *poolProps));
    return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) noexcept {
    const auto found = softgpu::find<MemoryPool>(pool);
    GANTRY_REFUSE_IF(found == nullptr || found == softgpu::default_pool(found->device),
                     CUDA_ERROR_INVALID_VALUE);
    {
        const std::lock_guard lock(found->device.mutex);
        if (found->device.current_pool == found) {
            found->device.current_pool = found->device.default_pool;
        }
    }
    softgpu::retract(*found);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep) noexcept {
    const auto found = softgpu::find<MemoryPool>(pool);
    GANTRY_REFUSE_IF(found == nullptr, CUDA_ERROR_INVALID_HANDLE);
    GANTRY_CU(softgpu::refuse_during_capture());
    found->trim(minBytesToKeep);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) noexcept {
    const auto found = softgpu::find<MemoryPool>(pool);
    if (found == nullptr || value == nullptr) {
        return found == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    return found->set_attribute(attr, value);
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) noexcept {
    const auto found = softgpu::find<MemoryPool>(pool);
    if (found == nullptr || value == nullptr) {
        return found == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    return found->attribute(attr, value);
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc_v1* map,
                            size_t count) noexcept {
    const auto found = softgpu::find<MemoryPool>(pool);
    if (found == nullptr || (map == nullptr && count != 0)) {
        return found == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; ++i) {
        const bool own = map[i].location.id == found->device.ordinal;
        GANTRY_REFUSE_IF(softgpu::device_of(map[i].location.id) == nullptr,
                         CUDA_ERROR_INVALID_DEVICE);
        if (own && map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
            return CUDA_ERROR_INVALID_DEVICE;  // A pool's own device always has access.
        }
    }
    return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool memPool,
                            CUmemLocation_v1* location) noexcept {
    const auto found = softgpu::find<MemoryPool>(memPool);
    if (found == nullptr || flags == nullptr || location == nullptr) {
        return found == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;  // One address space serves all devices.
    return CUDA_SUCCESS;
}

}  // namespace gantry::cuda_impl
