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

CUresult name_pool(Call& call, std::uint64_t handle, const CUmemPoolProps& properties,
                   bool is_default) {
    if (const CUresult result = call.reserve(HandleKind::kMemPool, handle);
        result != CUDA_SUCCESS) {
        return result;
    }
    constexpr std::uint64_t kNoNative = 1;  // The arena is behind every pool.
    const CUresult result = call.add_object(handle, kNoNative);
    if (result == CUDA_SUCCESS) {
        PoolBook::Pool pool;
        pool.handle = handle;
        pool.is_default = is_default;
        pool.properties = properties;
        call.process().memory.pools.add(std::move(pool));
    }
    return result;
}

CUresult name_default_pool(Call& call, std::uint64_t handle, std::int32_t device) {
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return device == 0 ? name_pool(call, handle, properties, true) : CUDA_ERROR_INVALID_DEVICE;
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

CUresult on_cuDeviceSetMemPool(CallContext& context, const wire::cuDeviceSetMemPool_call& set,
                               std::span<const std::byte>, Reply&) {
    if (set.dev != 0) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    return as_call(context).process().memory.pools.set_current(set.pool) ? CUDA_SUCCESS
                                                                         : CUDA_ERROR_INVALID_VALUE;
}

CUresult on_cuMemPoolCreate(CallContext& context, const wire::cuMemPoolCreate_call& create,
                            std::span<const std::byte>, Reply&) {
    const CUmemPoolProps& properties = create.poolProps;
    if (properties.allocType != CU_MEM_ALLOCATION_TYPE_PINNED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!is_our_device(properties.location) || properties.handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return name_pool(as_call(context), create.pool, properties, false);
}

CUresult on_cuMemPoolDestroy(CallContext& context, const wire::cuMemPoolDestroy_call& destroy,
                             std::span<const std::byte>, Reply&) {
    GuestProcess& process = as_call(context).process();
    if (!process.memory.pools.remove(destroy.pool)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    process.objects.erase(destroy.pool);
    return CUDA_SUCCESS;
}

CUresult on_cuMemPoolTrimTo(CallContext& context, const wire::cuMemPoolTrimTo_call& trim,
                            std::span<const std::byte>, Reply&) {
    GuestProcess& process = as_call(context).process();
    if (!process.memory.pools.contains(trim.pool)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    process.memory.device.reap(false);  // Nothing else is held back.
    return CUDA_SUCCESS;
}

CUresult on_cuMemPoolSetAttribute(CallContext& context, const wire::cuMemPoolSetAttribute_call& set,
                                  std::span<const std::byte>, Reply&) {
    return as_call(context).process().memory.pools.set_attribute(set.pool, set.attribute,
                                                                 set.value);
}

CUresult on_cuMemPoolGetAttribute(CallContext& context, const wire::cuMemPoolGetAttribute_call& get,
                                  std::span<const std::byte>, Reply& reply) {
    wire::cuMemPoolGetAttribute_reply answer{};
    const CUresult result = as_call(context).process().memory.pools.get_attribute(
        get.pool, get.attribute, &answer.value);
    reply.put(answer);
    return result;
}

CUresult on_cuMemPoolSetAccess(CallContext& context, const wire::cuMemPoolSetAccess_call& set,
                               std::span<const std::byte> trailing, Reply&) {
    Call& call = as_call(context);
    std::span<const std::byte> rest = trailing;
    const auto descriptions = Call::read_array<CUmemAccessDesc>(rest, set.count);
    if (!descriptions || !rest.empty()) {
        return call.malformed(call.op(), "descriptions longer than the command");
    }
    if (!call.process().memory.pools.contains(set.pool)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (const CUmemAccessDesc& description : *descriptions) {
        // The device's own access cannot be taken away, and there is no other device.
        if (!is_our_device(description.location) ||
            description.flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}

CUresult on_cuMemPoolGetAccess(CallContext& context, const wire::cuMemPoolGetAccess_call& get,
                               std::span<const std::byte>, Reply& reply) {
    if (!as_call(context).process().memory.pools.contains(get.memPool)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    wire::cuMemPoolGetAccess_reply answer{};
    answer.flags = is_our_device(get.location) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                               : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    reply.put(answer);
    return CUDA_SUCCESS;
}

}  // namespace gantry::worker
