// Allocation, pinned and registered host memory, managed memory, address ranges.
#include <algorithm>

#include "host-daemon/softgpu/core/driver.h"
#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/core/thread_state.h"
#include "host-daemon/softgpu/engine/reach.h"
#include "host-daemon/softgpu/graph/capture.h"
#include "host-daemon/softgpu/graph/graph_memory.h"
#include "host-daemon/softgpu/image/readable.h"
#include "host-daemon/softgpu/memory/allocate.h"
#include "host-daemon/softgpu/memory/array.h"
#include "host-daemon/softgpu/memory/pool.h"
#include "host-daemon/softgpu/streams/stream.h"
#include "proto/cuda/gen/impl.h"

namespace gantry::cuda_impl {
namespace {

using softgpu::Context;
using softgpu::MemoryKind;
using softgpu::MemoryMap;
using softgpu::MemoryRange;
using softgpu::Scheduler;

constexpr std::size_t kPitchAlign = 512;

void drain(const std::shared_ptr<Context>& context) {
    Scheduler::instance().wait(Scheduler::instance().points_of(*context));
}

CUresult valid_location(const CUmemLocation& location) {
    switch (location.type) {
        case CU_MEM_LOCATION_TYPE_DEVICE:
            return softgpu::device_of(location.id) != nullptr ? CUDA_SUCCESS
                                                              : CUDA_ERROR_INVALID_DEVICE;
        case CU_MEM_LOCATION_TYPE_HOST:
        case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: return CUDA_SUCCESS;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult managed_range(CUdeviceptr address, size_t bytes) {
    const auto range = MemoryMap::instance().find(address);
    const bool good = range && range->kind == MemoryKind::kManaged && bytes != 0 &&
                      MemoryMap::instance().covers(address, bytes);
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) noexcept {
    GANTRY_CURRENT(context);
    const std::uint64_t all = context->device.profile.memory_bytes;
    if (free != nullptr) {
        *free = all - std::min(all, context->device.used_bytes.load());
    }
    if (total != nullptr) {
        *total = all;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr* dptr, size_t bytesize) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_CU(softgpu::refuse_during_capture());
    GANTRY_REFUSE_IF(dptr == nullptr || bytesize == 0, CUDA_ERROR_INVALID_VALUE);
    std::uint64_t address = 0;
    GANTRY_CU(
        softgpu::allocate_device(*context, MemoryKind::kDevice, bytesize, 0, nullptr, address));
    *dptr = address;
    return CUDA_SUCCESS;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* dptr, size_t* pPitch, size_t WidthInBytes, size_t Height,
                            unsigned int ElementSizeBytes) noexcept {
    const bool element = ElementSizeBytes == 4 || ElementSizeBytes == 8 || ElementSizeBytes == 16;
    GANTRY_REFUSE_IF(
        dptr == nullptr || pPitch == nullptr || WidthInBytes == 0 || Height == 0 || !element,
        CUDA_ERROR_INVALID_VALUE);
    constexpr size_t kPitchMax = 2147483647;
    const size_t pitch = (WidthInBytes + kPitchAlign - 1) / kPitchAlign * kPitchAlign;
    GANTRY_REFUSE_IF(WidthInBytes > kPitchMax || Height > ~size_t{0} / pitch,
                     CUDA_ERROR_INVALID_VALUE);
    GANTRY_CU(cuMemAlloc_v2(dptr, pitch * Height));
    *pPitch = pitch;
    return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr dptr) noexcept {
    GANTRY_CURRENT(context);
    if (dptr == 0) {
        return CUDA_SUCCESS;
    }
    GANTRY_CU(softgpu::refuse_during_capture());
    const auto range = MemoryMap::instance().find(dptr);
    GANTRY_REFUSE_IF(!range || range->base != dptr, CUDA_ERROR_INVALID_VALUE);
    drain(context);
    if (softgpu::free_graph_allocation(dptr)) {
        return CUDA_SUCCESS;
    }
    switch (range->kind) {
        case MemoryKind::kDevice:
        case MemoryKind::kManaged: return softgpu::free_device(dptr, range->kind);
        case MemoryKind::kPooled: return softgpu::free_pooled(dptr);
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* pbase, size_t* psize, CUdeviceptr dptr) noexcept {
    GANTRY_CURRENT(context);
    const auto range = MemoryMap::instance().find(dptr);
    GANTRY_REFUSE_IF(!range || range->kind == MemoryKind::kDriver, CUDA_ERROR_NOT_FOUND);
    if (pbase != nullptr) {
        *pbase = range->base;
    }
    if (psize != nullptr) {
        *psize = range->bytes;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void** pp, size_t bytesize, unsigned int Flags) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_CU(softgpu::refuse_during_capture());
    constexpr unsigned kKnown =
        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    GANTRY_REFUSE_IF(pp == nullptr || (Flags & ~kKnown) != 0, CUDA_ERROR_INVALID_VALUE);
    if (bytesize == 0) {
        *pp = nullptr;
        return CUDA_SUCCESS;
    }
    return softgpu::allocate_pinned(*context, bytesize, Flags | CU_MEMHOSTALLOC_DEVICEMAP, pp);
}

CUresult cuMemAllocHost_v2(void** pp, size_t bytesize) noexcept {
    return cuMemHostAlloc(pp, bytesize, 0);
}

CUresult cuMemFreeHost(void* p) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_REFUSE_IF(p == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_CU(softgpu::refuse_during_capture());
    drain(context);
    return softgpu::free_pinned(p);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* pdptr, void* p, unsigned int Flags) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_REFUSE_IF(pdptr == nullptr || Flags != 0, CUDA_ERROR_INVALID_VALUE);
    const auto range = MemoryMap::instance().find(reinterpret_cast<CUdeviceptr>(p));
    GANTRY_REFUSE_IF(!range || !range->on_host(), CUDA_ERROR_INVALID_VALUE);
    *pdptr = reinterpret_cast<CUdeviceptr>(p);
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int* pFlags, void* p) noexcept {
    GANTRY_CURRENT(context);
    const auto range = MemoryMap::instance().find(reinterpret_cast<CUdeviceptr>(p));
    GANTRY_REFUSE_IF(pFlags == nullptr || !range || range->kind != MemoryKind::kPinned,
                     CUDA_ERROR_INVALID_VALUE);
    *pFlags = range->flags;
    return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void* p, size_t bytesize, unsigned int Flags) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_CU(softgpu::refuse_during_capture());
    constexpr unsigned kKnown = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                                CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
    GANTRY_REFUSE_IF(p == nullptr || bytesize == 0 || (Flags & ~kKnown) != 0,
                     CUDA_ERROR_INVALID_VALUE);
    GANTRY_REFUSE_IF(softgpu::image::readable_bytes(p, bytesize) < bytesize,
                     CUDA_ERROR_INVALID_VALUE);
    MemoryRange range;
    range.base = reinterpret_cast<std::uint64_t>(p);
    range.bytes = bytesize;
    range.kind = MemoryKind::kRegistered;
    range.device = context->device.ordinal;
    range.context = context->handle();
    range.flags = Flags;
    return MemoryMap::instance().insert(range) ? CUDA_SUCCESS
                                               : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

CUresult cuMemHostUnregister(void* p) noexcept {
    GANTRY_CURRENT(context);
    drain(context);
    const auto range =
        MemoryMap::instance().erase(reinterpret_cast<std::uint64_t>(p), MemoryKind::kRegistered);
    GANTRY_REFUSE_IF(!range, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    softgpu::Reach::await_kernels();
    return CUDA_SUCCESS;
}

CUresult cuMemAllocManaged(CUdeviceptr* dptr, size_t bytesize, unsigned int flags) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_CU(softgpu::refuse_during_capture());
    const bool known = flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST;
    if (dptr != nullptr) {
        *dptr = 0;
    }
    GANTRY_REFUSE_IF(dptr == nullptr || bytesize == 0 || !known, CUDA_ERROR_INVALID_VALUE);
    std::uint64_t address = 0;
    GANTRY_CU(softgpu::allocate_device(*context, MemoryKind::kManaged, bytesize, flags, nullptr,
                                       address));
    *dptr = address;
    return CUDA_SUCCESS;
}

CUresult cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice,
                        CUmemLocation_v1 location) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_REFUSE_IF(
        advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY,
        CUDA_ERROR_INVALID_VALUE);
    const bool uses_location = advice >= CU_MEM_ADVISE_SET_PREFERRED_LOCATION &&
                               advice != CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION;
    if (uses_location) {
        GANTRY_CU(valid_location(location));
    }
    return managed_range(devPtr, count);
}

CUresult cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice,
                     CUdevice device) noexcept {
    const CUmemLocation location = {
        device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, device};
    return cuMemAdvise_v2(devPtr, count, advice, location);
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr devPtr, size_t count, CUmemLocation_v1 location,
                               unsigned int flags, CUstream hStream) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, hStream);
    GANTRY_REFUSE_IF(flags != 0, CUDA_ERROR_INVALID_VALUE);
    GANTRY_CU(valid_location(location));
    return managed_range(devPtr, count);  // One memory for both sides: nothing moves.
}

CUresult cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUdevice dstDevice,
                            CUstream hStream) noexcept {
    const CUmemLocation location = {
        dstDevice == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE,
        dstDevice};
    return cuMemPrefetchAsync_v2(devPtr, count, location, 0, hStream);
}

CUresult cuMemPrefetchBatchAsync(CUdeviceptr* dptrs, size_t* sizes, size_t count,
                                 CUmemLocation_v1* prefetchLocs, size_t* prefetchLocIdxs,
                                 size_t numPrefetchLocs, unsigned long long flags,
                                 CUstream hStream) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, hStream);
    if (dptrs == nullptr || sizes == nullptr || prefetchLocs == nullptr ||
        prefetchLocIdxs == nullptr || count == 0 || numPrefetchLocs == 0 || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; ++i) {
        GANTRY_CU(managed_range(dptrs[i], sizes[i]));
    }
    return CUDA_SUCCESS;
}

}  // namespace gantry::cuda_impl
