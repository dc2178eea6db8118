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

}  // namespace

/// What the guest's handle of an allocation stands for is its home in the arena.
namespace served {

CUresult cuMemAddressReserve(CallContext& context, CUdeviceptr* address, std::size_t bytes,
                             std::size_t alignment, CUdeviceptr, unsigned long long) {
    // A wished address is a hint, and the arena's order is what a move reproduces.
    const bool power = (alignment & (alignment - 1)) == 0;
    if (bytes == 0 || !is_granular(bytes) || !power || alignment > gantry::wire::kArenaBytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto made = as_call(context).process().memory.device.reserve(
        bytes, std::max<std::uint64_t>(alignment, kGranule));
    if (!made.ok()) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *address = made->value;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CallContext& context, CUdeviceptr address, std::size_t bytes) {
    return as_call(context).process().memory.device.release_reservation(DeviceVa{address}, bytes)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemCreate(CallContext& context, CUmemGenericAllocationHandle* home, std::size_t bytes,
                     const CUmemAllocationProp* wanted, unsigned long long flags) {
    Call& call = as_call(context);
    if (bytes == 0 || !is_granular(bytes) || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUmemAllocationProp properties = *wanted;
    properties.win32HandleMetaData = nullptr;
    CUresult result = check_properties(properties);
    std::uint64_t made = 0;
    if (result == CUDA_SUCCESS) {
        result = call.process().memory.ranges.create(properties, bytes, &made);
    }
    if (result == CUDA_ERROR_OUT_OF_MEMORY && call.process().memory.device.has_parked()) {
        if (!call.may_wait()) {
            call.defer();
            return result;
        }
        call.process().streams.synchronise_device();
        call.process().memory.device.reap(true);
        result = call.process().memory.ranges.create(properties, bytes, &made);
    }
    *home = made;
    return result;
}

CUresult cuMemRelease(CallContext& context, CUmemGenericAllocationHandle home) {
    GuestProcess& process = as_call(context).process();
    const CUresult result = process.memory.ranges.release(home);
    process.schedule_reap();
    return result;
}

CUresult cuMemMap(CallContext& context, CUdeviceptr address, std::size_t bytes, std::size_t offset,
                  CUmemGenericAllocationHandle home, unsigned long long flags) {
    if (offset != 0 || flags != 0 || !is_granular(address) || !is_granular(bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return as_call(context).process().memory.ranges.map(address, bytes, home);
}

CUresult cuMemUnmap(CallContext& context, CUdeviceptr address, std::size_t bytes) {
    GuestProcess& process = as_call(context).process();
    if (bytes > gantry::wire::kArenaBytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const CUresult result = process.memory.ranges.unmap(address, bytes);
    process.schedule_reap();
    return result;
}

CUresult cuMemSetAccess(CallContext& context, CUdeviceptr address, std::size_t bytes,
                        const CUmemAccessDesc* descriptions, std::size_t count) {
    if (bytes > gantry::wire::kArenaBytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    for (const CUmemAccessDesc& description : std::span(descriptions, count)) {
        const auto flags = static_cast<std::uint32_t>(description.flags);
        if (!is_our_device(description.location) ||
            (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
             flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        result = as_call(context).process().memory.ranges.set_access(address, bytes, flags);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    return result;
}

CUresult cuMemGetAccess(CallContext& context, unsigned long long* flags,
                        const CUmemLocation* location, CUdeviceptr address) {
    const auto mapping = as_call(context).process().memory.ranges.find(address);
    if (!mapping || !is_our_device(*location)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *flags = mapping->access;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(CallContext&, std::size_t* granularity,
                                       const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags) {
    *granularity = kGranule;
    return check_properties(*properties);
}

CUresult cuMemGetAllocationPropertiesFromHandle(CallContext& context,
                                                CUmemAllocationProp* properties,
                                                CUmemGenericAllocationHandle home) {
    const auto physical = as_call(context).process().memory.ranges.physical(home);
    if (!physical) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *properties = physical->properties;
    return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CallContext& context, CUmemGenericAllocationHandle* home,
                                     void* address) {
    std::uint64_t found = 0;
    const CUresult result = as_call(context).process().memory.ranges.retain(
        reinterpret_cast<std::uint64_t>(address), &found);
    *home = found;
    return result;
}

}  // namespace served

}  // namespace gantry::worker
