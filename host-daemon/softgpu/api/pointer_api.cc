// What a program can ask about an address.
#include <cstring>

#include "host-daemon/softgpu/core/context.h"
#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/core/thread_state.h"
#include "host-daemon/softgpu/memory/arena.h"
#include "host-daemon/softgpu/memory/map.h"
#include "host-daemon/softgpu/memory/physical.h"
#include "proto/cuda/gen/impl.h"

namespace gantry::cuda_impl {
namespace {

using softgpu::MemoryKind;
using softgpu::MemoryMap;
using softgpu::MemoryRange;

template <typename T>
CUresult put(void* out, T value) {
    std::memcpy(out, &value, sizeof value);
    return CUDA_SUCCESS;
}

bool host_accessible(const MemoryRange& range) {
    return range.on_host() || range.kind == MemoryKind::kManaged;
}

/// Not to a context.
bool belongs_to_device(const MemoryRange& range) {
    return range.kind == MemoryKind::kPooled || range.kind == MemoryKind::kMapped;
}

CUresult attribute(void* out, CUpointer_attribute id, std::uint64_t address,
                   const MemoryRange& range) {
    const bool is_mapped = range.kind == MemoryKind::kMapped;
    switch (id) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            return put(out, belongs_to_device(range) ? nullptr : range.context);
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            return put(out, static_cast<unsigned>(range.on_host() ? CU_MEMORYTYPE_HOST
                                                                  : CU_MEMORYTYPE_DEVICE));
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return put(out, address);
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            return host_accessible(range) ? put(out, address) : CUDA_ERROR_INVALID_VALUE;
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: return put(out, range.sync_memops ? 1U : 0U);
        case CU_POINTER_ATTRIBUTE_BUFFER_ID: return put(out, range.id);
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            return put(out, static_cast<unsigned>(range.kind == MemoryKind::kManaged));
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return put(out, range.device);
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
            return put(out, range.kind == MemoryKind::kDevice);
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            return put(out, is_mapped ? range.reserved_base : range.base);
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            return put(out, is_mapped ? range.reserved_bytes : range.bytes);
        case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: return put(out, range.base);
        case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: return put(out, range.bytes);
        case CU_POINTER_ATTRIBUTE_MAPPED: return put(out, range.access != 0);
        case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: {
            std::uint64_t types = CU_MEM_HANDLE_TYPE_NONE;
            if (is_mapped) {
                types = std::static_pointer_cast<softgpu::PhysicalMemory>(range.owner)
                            ->prop.requestedHandleTypes;
            }
            return put(out, types);
        }
        case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: return put(out, false);
        case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: return put(out, range.access);
        case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: {
            void* pool = nullptr;
            if (range.kind == MemoryKind::kPooled && range.owner != nullptr) {
                pool = std::static_pointer_cast<softgpu::Object>(range.owner)->handle();
            }
            return put(out, pool);
        }
        case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: return put(out, range.id);
        case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: return put(out, false);
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

/// Zero of the attribute's own size: what the plural form gives for unknown addresses.
void put_nothing(void* out, CUpointer_attribute id) {
    switch (id) {
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        case CU_POINTER_ATTRIBUTE_MAPPED:
        case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: put(out, false); return;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: put(out, 0U); return;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: put(out, CU_DEVICE_INVALID); return;
        default: put(out, std::uint64_t{0}); return;
    }
}

bool known(CUpointer_attribute id) {
    return id >= CU_POINTER_ATTRIBUTE_CONTEXT &&
           id <= CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE &&
           id != CU_POINTER_ATTRIBUTE_P2P_TOKENS;
}

std::optional<MemoryRange> visible_range(std::uint64_t address) {
    auto range = MemoryMap::instance().find(address);
    return range && range->kind != MemoryKind::kDriver ? range : std::nullopt;
}

}  // namespace

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute_id,
                               CUdeviceptr ptr) noexcept {
    GANTRY_CURRENT(context);
    const auto range = visible_range(ptr);
    GANTRY_REFUSE_IF(data == nullptr || !known(attribute_id) || !range, CUDA_ERROR_INVALID_VALUE);
    return attribute(data, attribute_id, ptr, *range);
}

CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute* attributes,
                                void** data, CUdeviceptr ptr) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_REFUSE_IF(numAttributes == 0 || attributes == nullptr || data == nullptr,
                     CUDA_ERROR_INVALID_VALUE);
    const auto range = visible_range(ptr);
    for (unsigned i = 0; i < numAttributes; ++i) {
        GANTRY_REFUSE_IF(data[i] == nullptr || !known(attributes[i]), CUDA_ERROR_INVALID_VALUE);
        if (!range || attribute(data[i], attributes[i], ptr, *range) != CUDA_SUCCESS) {
            put_nothing(data[i], attributes[i]);
        }
    }
    return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute_id,
                               CUdeviceptr ptr) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_REFUSE_IF(value == nullptr || attribute_id != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
                     CUDA_ERROR_INVALID_VALUE);
    unsigned on = 0;
    std::memcpy(&on, value, sizeof on);
    const bool found = MemoryMap::instance().update(
        ptr, [on](MemoryRange& range) { range.sync_memops = on != 0; });
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemRangeGetAttribute(void* data, size_t dataSize, CUmem_range_attribute attribute_id,
                                CUdeviceptr devPtr, size_t count) noexcept {
    GANTRY_CURRENT(context);
    const auto range = MemoryMap::instance().find(devPtr);
    if (data == nullptr || dataSize < sizeof(int) || !range ||
        range->kind != MemoryKind::kManaged || !MemoryMap::instance().covers(devPtr, count)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::memset(data, 0, dataSize);
    switch (attribute_id) {
        case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY: return put(data, 0);
        case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
        case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION: return put(data, CU_DEVICE_INVALID);
        case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
            for (size_t at = 0; at + sizeof(int) <= dataSize; at += sizeof(int)) {
                put(static_cast<char*>(data) + at, CU_DEVICE_INVALID);
            }
            return CUDA_SUCCESS;
        case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
        case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
            return put(data, CU_MEM_LOCATION_TYPE_INVALID);
        case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
        case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID: return put(data, 0);
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuMemRangeGetAttributes(void** data, size_t* dataSizes, CUmem_range_attribute* attributes,
                                 size_t numAttributes, CUdeviceptr devPtr, size_t count) noexcept {
    GANTRY_REFUSE_IF(
        data == nullptr || dataSizes == nullptr || attributes == nullptr || numAttributes == 0,
        CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < numAttributes; ++i) {
        GANTRY_CU(cuMemRangeGetAttribute(data[i], dataSizes[i], attributes[i], devPtr, count));
    }
    return CUDA_SUCCESS;
}

}  // namespace gantry::cuda_impl
