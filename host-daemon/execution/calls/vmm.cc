// Virtual memory management: the guest's own reservations, allocations and mappings in the arena.
#include "host-daemon/execution/dispatch/handlers.h"

#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry::worker {
namespace {

constexpr std::uint64_t kGranule = ArenaAllocator::kGranuleBytes;

bool is_granular(std::uint64_t value) { return value % kGranule == 0; }

/// The guest's device 0, as the driver counts it; other places cannot be served.
bool is_our_device(const CUmemLocation& location) {
    return location.type == CU_MEM_LOCATION_TYPE_DEVICE && location.id == 0;
}

CUresult check_properties(const CUmemAllocationProp& properties) {
    if (properties.type != CU_MEM_ALLOCATION_TYPE_PINNED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE && properties.location.id != 0) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    const bool handle_type =
        properties.requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE ||
        properties.requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return is_our_device(properties.location) && handle_type ? CUDA_SUCCESS
                                                             : CUDA_ERROR_NOT_SUPPORTED;
}

/// The home of an allocation, by the guest's handle; 0 when there is none.
std::uint64_t home_of(Call& call, std::uint64_t handle) {
    return call.process().objects.native(handle, HandleKind::kVmmAllocation);
}

}  // namespace

CUresult on_cuMemAddressReserve(CallContext& context, const wire::cuMemAddressReserve_call& wanted,
                                std::span<const std::byte>, Reply& reply) {
    // A wished address is a hint, and the arena's order is what a move reproduces.
    const bool power = (wanted.alignment & (wanted.alignment - 1)) == 0;
    if (wanted.size == 0 || !is_granular(wanted.size) || !power ||
        wanted.alignment > gantry::wire::kArenaBytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto made = as_call(context).process().memory.device.reserve(
        wanted.size, std::max<std::uint64_t>(wanted.alignment, kGranule));
    if (!made.ok()) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    wire::cuMemAddressReserve_reply answer{};
    answer.ptr = made->value;
    reply.put(answer);
    return CUDA_SUCCESS;
}

CUresult on_cuMemAddressFree(CallContext& context, const wire::cuMemAddressFree_call& range,
                             std::span<const std::byte>, Reply&) {
    return as_call(context).process().memory.device.release_reservation(DeviceVa{range.ptr},
                                                                        range.size)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult on_cuMemCreate(CallContext& context, const wire::cuMemCreate_call& wanted,
                        std::span<const std::byte>, Reply&) {
    Call& call = as_call(context);
    if (wanted.size == 0 || !is_granular(wanted.size) || wanted.flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = check_properties(wanted.prop);
    if (result == CUDA_SUCCESS) {
        result = call.reserve(HandleKind::kVmmAllocation, wanted.handle);
    }
    std::uint64_t home = 0;
    if (result == CUDA_SUCCESS) {
        result = call.process().memory.ranges.create(wanted.prop, wanted.size, &home);
    }
    if (result == CUDA_ERROR_OUT_OF_MEMORY && call.process().memory.device.has_parked()) {
        if (!call.may_wait()) {
            call.defer();
            return CUDA_SUCCESS;
        }
        call.process().streams.synchronise_device();
        call.process().memory.device.reap(true);
        result = call.process().memory.ranges.create(wanted.prop, wanted.size, &home);
    }
    return result == CUDA_SUCCESS ? call.add_object(wanted.handle, home) : result;
}

CUresult on_cuMemRelease(CallContext& context, const wire::cuMemRelease_call& release,
                         std::span<const std::byte>, Reply&) {
    Call& call = as_call(context);
    const std::uint64_t home = home_of(call, release.handle);
    if (home == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    call.process().objects.erase(release.handle);
    const CUresult result = call.process().memory.ranges.release(home);
    call.process().schedule_reap();
    return result;
}

CUresult on_cuMemMap(CallContext& context, const wire::cuMemMap_call& map,
                     std::span<const std::byte>, Reply&) {
    Call& call = as_call(context);
    const std::uint64_t home = home_of(call, map.handle);
    if (home == 0 || map.offset != 0 || map.flags != 0 || !is_granular(map.ptr) ||
        !is_granular(map.size)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return call.process().memory.ranges.map(map.ptr, map.size, home);
}

CUresult on_cuMemUnmap(CallContext& context, const wire::cuMemUnmap_call& range,
                       std::span<const std::byte>, Reply&) {
    GuestProcess& process = as_call(context).process();
    if (range.size > gantry::wire::kArenaBytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const CUresult result = process.memory.ranges.unmap(range.ptr, range.size);
    process.schedule_reap();
    return result;
}

CUresult on_cuMemSetAccess(CallContext& context, const wire::cuMemSetAccess_call& access,
                           std::span<const std::byte> trailing, Reply&) {
    Call& call = as_call(context);
    std::span<const std::byte> rest = trailing;
    const auto descriptions = Call::read_array<CUmemAccessDesc>(rest, access.count);
    if (!descriptions || !rest.empty()) {
        return call.malformed(call.op(), "descriptions longer than the command");
    }
    if (access.size > gantry::wire::kArenaBytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    for (const CUmemAccessDesc& description : *descriptions) {
        const auto flags = static_cast<std::uint32_t>(description.flags);
        if (!is_our_device(description.location) ||
            (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
             flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        result = call.process().memory.ranges.set_access(access.ptr, access.size, flags);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    return result;
}

CUresult on_cuMemGetAccess(CallContext& context, const wire::cuMemGetAccess_call& query,
                           std::span<const std::byte>, Reply& reply) {
    const auto mapping = as_call(context).process().memory.ranges.find(query.ptr);
    if (!mapping || !is_our_device(query.location)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    wire::cuMemGetAccess_reply answer{};
    answer.flags = mapping->access;
    reply.put(answer);
    return CUDA_SUCCESS;
}

CUresult on_cuMemGetAllocationGranularity(CallContext&,
                                          const wire::cuMemGetAllocationGranularity_call& query,
                                          std::span<const std::byte>, Reply& reply) {
    if (const CUresult result = check_properties(query.prop); result != CUDA_SUCCESS) {
        return result;
    }
    wire::cuMemGetAllocationGranularity_reply answer{};
    answer.granularity = kGranule;
    reply.put(answer);
    return CUDA_SUCCESS;
}

CUresult on_cuMemGetAllocationPropertiesFromHandle(
    CallContext& context, const wire::cuMemGetAllocationPropertiesFromHandle_call& query,
    std::span<const std::byte>, Reply& reply) {
    Call& call = as_call(context);
    const auto physical = call.process().memory.ranges.physical(home_of(call, query.handle));
    if (!physical) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    wire::cuMemGetAllocationPropertiesFromHandle_reply answer{};
    answer.prop = physical->properties;
    reply.put(answer);
    return CUDA_SUCCESS;
}

CUresult on_cuMemRetainAllocationHandle(CallContext& context,
                                        const wire::cuMemRetainAllocationHandle_call& retain,
                                        std::span<const std::byte>, Reply&) {
    Call& call = as_call(context);
    std::uint64_t home = 0;
    CUresult result = call.reserve(HandleKind::kVmmAllocation, retain.handle);
    if (result == CUDA_SUCCESS) {
        result = call.process().memory.ranges.retain(retain.addr, &home);
    }
    return result == CUDA_SUCCESS ? call.add_object(retain.handle, home) : result;
}

}  // namespace gantry::worker
