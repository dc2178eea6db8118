// Virtual memory management: address ranges, physical allocations, and mappings between them.
#include <cstring>

#include "guest-shim/driver/core/objects.h"
#include "guest-shim/driver/core/ranges.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/wire_structs.h"

namespace gantry::cuda_impl {

using namespace gantry::shim;

namespace {

bool is_allocation(CUmemGenericAllocationHandle handle) {
    return cuda::handle_kind(handle) == HandleKind::kVmmAllocation;
}

}  // namespace

CUresult cuMemAddressReserve(CUdeviceptr* ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags) noexcept {
    if (ptr == nullptr || size == 0 || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const cuda::wire::cuMemAddressReserve_call arguments{size, alignment, addr, flags};
    cuda::wire::cuMemAddressReserve_reply reply{};
    const CUresult result = call_reply(cuda::Op::cuMemAddressReserve, arguments, &reply);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    Range range{};
    range.address = reply.ptr;
    range.bytes = size;
    range.kind = RangeKind::kReserved;
    range.device = current_device();
    add_range(&range);
    *ptr = reply.ptr;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) noexcept {
    const cuda::wire::cuMemAddressFree_call arguments{ptr, size};
    const CUresult result = call_status(cuda::Op::cuMemAddressFree, arguments);
    Range range{};
    if (result == CUDA_SUCCESS && find_range(ptr, &range) && range.kind == RangeKind::kReserved) {
        remove_range(ptr, &range);
    }
    return result;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                     const CUmemAllocationProp* prop, unsigned long long flags) noexcept {
    if (handle == nullptr || prop == nullptr || size == 0 || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // A descriptor may be asked for in advance (PyTorch does); exporting one is refused by name.
    if (prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE &&
        prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    cuda::wire::cuMemCreate_call arguments{};
    arguments.handle = session::mint(HandleKind::kVmmAllocation);
    arguments.size = size;
    arguments.prop = *prop;
    arguments.prop.win32HandleMetaData = nullptr;
    const CUresult result = call_status(cuda::Op::cuMemCreate, arguments);
    if (result == CUDA_SUCCESS) {
        *handle = arguments.handle;
    }
    return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) noexcept {
    return is_allocation(handle)
               ? call_status(cuda::Op::cuMemRelease, cuda::wire::cuMemRelease_call{handle})
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) noexcept {
    if (!is_allocation(handle) || flags != 0 || offset != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const CUresult result = call_status(
        cuda::Op::cuMemMap, cuda::wire::cuMemMap_call{ptr, size, offset, handle, flags});
    Range mapping{};
    if (result == CUDA_SUCCESS && find_range(ptr, &mapping)) {
        mapping.address = ptr;
        mapping.bytes = size;
        add_mapping(&mapping);
    }
    return result;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) noexcept {
    const CUresult result =
        call_status(cuda::Op::cuMemUnmap, cuda::wire::cuMemUnmap_call{ptr, size});
    if (result == CUDA_SUCCESS) {
        remove_mappings(ptr, size);
    }
    return result;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc,
                        size_t count) noexcept {
    if (desc == nullptr || count == 0 || count > 64) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const cuda::wire::cuMemSetAccess_call arguments{ptr, size, count};
    return session::call(cuda::Op::cuMemSetAccess, &arguments, sizeof(arguments), desc,
                         static_cast<std::uint32_t>(count * sizeof(*desc)), nullptr, 0, nullptr, 0,
                         nullptr);
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                        CUdeviceptr ptr) noexcept {
    if (flags == nullptr || location == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    cuda::wire::cuMemGetAccess_reply reply{};
    const CUresult result = call_reply(cuda::Op::cuMemGetAccess,
                                       cuda::wire::cuMemGetAccess_call{*location, ptr}, &reply);
    if (result == CUDA_SUCCESS) {
        *flags = reply.flags;
    }
    return result;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                CUmemGenericAllocationHandle handle) noexcept {
    if (prop == nullptr || !is_allocation(handle)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    cuda::wire::cuMemGetAllocationPropertiesFromHandle_reply reply{};
    const CUresult result =
        call_reply(cuda::Op::cuMemGetAllocationPropertiesFromHandle,
                   cuda::wire::cuMemGetAllocationPropertiesFromHandle_call{handle}, &reply);
    if (result == CUDA_SUCCESS) {
        *prop = reply.prop;
    }
    return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* addr) noexcept {
    if (handle == nullptr || addr == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const cuda::wire::cuMemRetainAllocationHandle_call arguments{
        session::mint(HandleKind::kVmmAllocation), bits(addr)};
    const CUresult result = call_status(cuda::Op::cuMemRetainAllocationHandle, arguments);
    if (result == CUDA_SUCCESS) {
        *handle = arguments.handle;
    }
    return result;
}

}  // namespace gantry::cuda_impl
