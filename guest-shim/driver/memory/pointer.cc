// Pointer queries, answered from the range table.
#include <cstring>

#include "guest-shim/driver/core/objects.h"
#include "guest-shim/driver/core/ranges.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/refuse_if.h"

namespace gantry::shim {
namespace {

bool is_host_range(const Range& range) {
    return range.kind == RangeKind::kHost || range.kind == RangeKind::kRegistered ||
           range.kind == RangeKind::kManaged;
}

/// Not to a context: pools' memory and own mappings.
bool belongs_to_device(const Range& range) {
    return range.kind == RangeKind::kDeviceAsync || range.kind == RangeKind::kReserved;
}

template <typename T>
CUresult put(void* out, const T& value) {
    std::memcpy(out, &value, sizeof(value));
    return CUDA_SUCCESS;
}

/// The pool that memory is of: of the device's own one nobody may have asked the name yet.
CUresult put_pool(const Range& range, void* out) {
    if (range.kind != RangeKind::kDeviceAsync) {
        return put(out, 0ull);
    }
    if (range.owner != 0) {
        return put(out, range.owner);
    }
    CUmemoryPool pool = nullptr;
    const CUresult result = cuda_impl::cuDeviceGetDefaultMemPool(&pool, range.device);
    return result == CUDA_SUCCESS ? put(out, pool) : result;
}

/// One attribute of known memory.
CUresult put_attribute(const Memory& memory, std::uint64_t pointer, CUpointer_attribute attribute,
                       void* out) {
    const Range& range = memory.range;
    const bool host = range.kind == RangeKind::kHost || range.kind == RangeKind::kRegistered;
    const std::uint64_t device_pointer =
        range.kind == RangeKind::kRegistered ? range.alias + (pointer - range.address) : pointer;
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            return put(out, belongs_to_device(range) ? 0ull : range.context);
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            return put(out,
                       static_cast<unsigned>(host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE));
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return put(out, device_pointer);
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            return is_host_range(range) ? put(out, pointer) : CUDA_ERROR_INVALID_VALUE;
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
            return put(out, range.sync_memops || range.kind == RangeKind::kManaged ? 1u : 0u);
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
            return put(out, static_cast<unsigned long long>(memory.mapping.id));
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            return put(out, range.kind == RangeKind::kManaged ? 1u : 0u);
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return put(out, range.device);
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
            return put(out, range.kind == RangeKind::kDevice && range.owner == 0 ? 1u : 0u);
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return put(out, range.address);
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return put(out, range.bytes);
        case CU_POINTER_ATTRIBUTE_MAPPED: return put(out, 1u);
        case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: return put(out, 0ull);
        case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: return put(out, 0u);
        case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: return put(out, 3u);  // Read and write.
        case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: return put_pool(range, out);
        case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: return put(out, memory.mapping.bytes);
        case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: return put(out, memory.mapping.address);
        case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
            return put(out, static_cast<unsigned long long>(memory.mapping.id));
        case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: return put(out, 0u);
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

/// What the plural form says of an attribute of unknown memory, or of one that has no value.
void put_nothing(CUpointer_attribute attribute, void* out) {
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: put(out, -2); return;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        case CU_POINTER_ATTRIBUTE_MAPPED:
        case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: put(out, 0u); return;
        default: put(out, 0ull);
    }
}

bool is_known(CUpointer_attribute attribute) {
    return attribute >= CU_POINTER_ATTRIBUTE_CONTEXT &&
           attribute <= CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE &&
           attribute != CU_POINTER_ATTRIBUTE_P2P_TOKENS;
}

}  // namespace
}  // namespace gantry::shim

namespace gantry::cuda_impl {

using namespace gantry::shim;

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute,
                               CUdeviceptr ptr) noexcept {
    Memory memory{};
    GANTRY_REFUSE_IF(data == nullptr || !find_memory(ptr, &memory), CUDA_ERROR_INVALID_VALUE);
    return put_attribute(memory, ptr, attribute, data);
}

CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute* attributes,
                                void** data, CUdeviceptr ptr) noexcept {
    GANTRY_REFUSE_IF(numAttributes == 0 || attributes == nullptr || data == nullptr,
                     CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < numAttributes; ++i) {
        GANTRY_REFUSE_IF(!is_known(attributes[i]) || data[i] == nullptr, CUDA_ERROR_INVALID_VALUE);
    }
    Memory memory{};
    const bool known = find_memory(ptr, &memory);
    for (unsigned i = 0; i < numAttributes; ++i) {
        if (!known || put_attribute(memory, ptr, attributes[i], data[i]) != CUDA_SUCCESS) {
            put_nothing(attributes[i], data[i]);
        }
    }
    return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute,
                               CUdeviceptr ptr) noexcept {
    Memory memory{};
    if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ||
        !find_memory(ptr, &memory)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    unsigned is_on = 0;
    std::memcpy(&is_on, value, sizeof(is_on));
    // Copies are already as synchronous as the strictest setting asks: it is only told again.
    return set_sync_memops(ptr, is_on != 0) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace gantry::cuda_impl
