// Stream-ordered allocation and memory pools.
#include "host-daemon/execution/dispatch/handlers.h"

#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry::worker {
namespace {

CUresult allocate_from(Call& call, std::uint64_t pool, std::uint64_t bytes, std::uint64_t stream,
                       std::uint64_t* address) {
    PoolBook& pools = call.process().memory.pools;
    CUstream native = nullptr;
    if (const CUresult result = call.stream(stream, &native); result != CUDA_SUCCESS) {
        return result;
    }
    if (call.process().graphs.captures.is_capturing(native)) {
        return allocate_in_capture(call, bytes, stream, address);
    }
    if (!pools.has_room(pool, bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const CUresult result = allocate_memory(call, bytes, address);
    if (result == CUDA_SUCCESS && !call.is_deferred()) {
        pools.allocated(pool, *address, bytes);
    }
    return result;
}

bool is_our_device(const CUmemLocation& location) {
    return location.type == CU_MEM_LOCATION_TYPE_DEVICE && location.id == 0;
}

/// The worker's value of a pool is the guest's handle: the arena is behind every pool.
std::uint64_t handle_of(CUmemoryPool pool) { return reinterpret_cast<std::uint64_t>(pool); }

void note_pool(Call& call, std::uint64_t handle, const CUmemPoolProps& properties,
               bool is_default) {
    PoolBook::Pool pool;
    pool.handle = handle;
    pool.is_default = is_default;
    pool.properties = properties;
    call.process().memory.pools.add(std::move(pool));
}

CUresult name_default_pool(Call& call, std::uint64_t handle, std::int32_t device) {
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    if (device != 0) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    CUresult result = call.reserve(HandleKind::kMemPool, handle);
    if (result == CUDA_SUCCESS) {
        result = call.add_object(handle, handle);
    }
    if (result == CUDA_SUCCESS) {
        note_pool(call, handle, properties, true);
    }
    return result;
}

}  // namespace

CUresult on_cuMemAllocAsync(CallContext& context, const wire::cuMemAllocAsync_call& wanted,
                            std::span<const std::byte>, Reply& reply) {
    wire::cuMemAllocAsync_reply answer{};
    const CUresult result =
        allocate_from(as_call(context), 0, wanted.bytesize, wanted.hStream, &answer.dptr);
    reply.put(answer);
    return result;
}

CUresult on_cuMemAllocFromPoolAsync(CallContext& context,
                                    const wire::cuMemAllocFromPoolAsync_call& wanted,
                                    std::span<const std::byte>, Reply& reply) {
    Call& call = as_call(context);
    if (!call.process().memory.pools.contains(wanted.pool)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    wire::cuMemAllocFromPoolAsync_reply answer{};
    const CUresult result =
        allocate_from(call, wanted.pool, wanted.bytesize, wanted.hStream, &answer.dptr);
    reply.put(answer);
    return result;
}

CUresult on_cuMemFreeAsync(CallContext& context, const wire::cuMemFreeAsync_call& wanted,
                           std::span<const std::byte>, Reply&) {
    Call& call = as_call(context);
    CUstream stream = nullptr;
    if (const CUresult result = call.stream(wanted.hStream, &stream); result != CUDA_SUCCESS) {
        return result;
    }
    GuestProcess& process = call.process();
    if (process.graphs.captures.is_capturing(stream)) {
        return free_in_capture(call, wanted.dptr, wanted.hStream);
    }
    process.memory.device.reap(false);
    if (!process.memory.device.free_later(DeviceVa{wanted.dptr}, stream)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    process.memory.pools.freed(wanted.dptr);
    return CUDA_SUCCESS;
}

CUresult on_cuDeviceGetDefaultMemPool(CallContext& context,
                                      const wire::cuDeviceGetDefaultMemPool_call& get,
                                      std::span<const std::byte>, Reply&) {
    return name_default_pool(as_call(context), get.pool_out, get.dev);
}

namespace served {

CUresult cuDeviceSetMemPool(CallContext& context, CUdevice device, CUmemoryPool pool) {
    if (device != 0) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    return as_call(context).process().memory.pools.set_current(handle_of(pool))
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolCreate(CallContext& context, CUmemoryPool* pool,
                         const CUmemPoolProps* properties) {
    if (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!is_our_device(properties->location) ||
        properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    CUmemPoolProps kept = *properties;
    kept.win32SecurityAttributes = nullptr;
    note_pool(as_call(context), handle_of(*pool), kept, false);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CallContext& context, CUmemoryPool pool) {
    return as_call(context).process().memory.pools.remove(handle_of(pool))
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolTrimTo(CallContext& context, CUmemoryPool, std::size_t) {
    as_call(context).process().memory.device.reap(false);  // Nothing else is held back.
    return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CallContext& context, CUmemoryPool pool,
                               CUmemPool_attribute attribute, void* value) {
    return as_call(context).process().memory.pools.set_attribute(
        handle_of(pool), static_cast<std::uint32_t>(attribute),
        *static_cast<const std::uint64_t*>(value));
}

CUresult cuMemPoolGetAttribute(CallContext& context, CUmemoryPool pool,
                               CUmemPool_attribute attribute, void* value) {
    return as_call(context).process().memory.pools.get_attribute(
        handle_of(pool), static_cast<std::uint32_t>(attribute), static_cast<std::uint64_t*>(value));
}

CUresult cuMemPoolSetAccess(CallContext&, CUmemoryPool, const CUmemAccessDesc* descriptions,
                            std::size_t count) {
    for (const CUmemAccessDesc& description : std::span(descriptions, count)) {
        // The device's own access cannot be taken away, and there is no other device.
        if (!is_our_device(description.location)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (description.flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
            return CUDA_ERROR_INVALID_DEVICE;
        }
    }
    return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAccess(CallContext&, CUmemAccess_flags* flags, CUmemoryPool,
                            CUmemLocation* location) {
    *flags = is_our_device(*location) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                      : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

}  // namespace served

}  // namespace gantry::worker
