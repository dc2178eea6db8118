// Device queries, all answered from the facts that were read at start.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "guest-shim/driver/core/objects.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/refuse_if.h"
#include "proto/wire/control_ops.h"

namespace gantry::cuda_impl {
namespace {

const wire::DeviceFacts* facts_of(CUdevice device) { return session::device_facts(device); }

/// Abilities that end at the border between guest and host, whatever the device could do: the host
/// cannot reach pageable memory of the guest, nor share descriptors with it. And those whose calls
/// are refused, for programs that ask before they call.
bool is_cut_at_the_border(int attribute) {
    switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
        case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
        case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
        case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES:
        case CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST:
        case CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES:
        case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS:
        case CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK:
        case CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_MAXIMUM_LENGTH:
        case CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_HOST_NUMA_MULTINODE_IPC_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED: return true;
        default: return false;
    }
}

int attribute_of(const wire::DeviceFacts& facts, int attribute) {
    return is_cut_at_the_border(attribute) ? 0 : facts.attributes[attribute];
}

}  // namespace

CUresult cuDeviceGetCount(int* count) noexcept {
    GANTRY_REFUSE_IF(count == nullptr, CUDA_ERROR_INVALID_VALUE);
    *count = static_cast<int>(session::device_count());
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) noexcept {
    GANTRY_REFUSE_IF(device == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_REFUSE_IF(facts_of(ordinal) == nullptr, CUDA_ERROR_INVALID_DEVICE);
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int len, CUdevice dev) noexcept {
    GANTRY_REFUSE_IF(name == nullptr || len <= 0, CUDA_ERROR_INVALID_VALUE);
    const wire::DeviceFacts* facts = facts_of(dev);
    GANTRY_REFUSE_IF(facts == nullptr, CUDA_ERROR_INVALID_DEVICE);
    std::snprintf(name, static_cast<std::size_t>(len), "%.255s", facts->name);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice dev) noexcept {
    GANTRY_REFUSE_IF(uuid == nullptr, CUDA_ERROR_INVALID_VALUE);
    const wire::DeviceFacts* facts = facts_of(dev);
    GANTRY_REFUSE_IF(facts == nullptr, CUDA_ERROR_INVALID_DEVICE);
    std::memcpy(uuid, facts->uuid, sizeof(facts->uuid));
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetLuid(char*, unsigned int*, CUdevice) noexcept {
    return CUDA_ERROR_NOT_SUPPORTED;  // LUIDs are another operating system's.
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice dev) noexcept {
    GANTRY_REFUSE_IF(bytes == nullptr, CUDA_ERROR_INVALID_VALUE);
    const wire::DeviceFacts* facts = facts_of(dev);
    GANTRY_REFUSE_IF(facts == nullptr, CUDA_ERROR_INVALID_DEVICE);
    *bytes = facts->total_memory_bytes;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* pi, CUdevice_attribute attrib, CUdevice dev) noexcept {
    const int number = attrib;
    if (pi == nullptr || number <= 0 ||
        static_cast<std::uint32_t>(number) >= wire::kMaxDeviceAttributes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const wire::DeviceFacts* facts = facts_of(dev);
    GANTRY_REFUSE_IF(facts == nullptr, CUDA_ERROR_INVALID_DEVICE);
    if (facts->attribute_status[number] != CUDA_SUCCESS) {
        return static_cast<CUresult>(facts->attribute_status[number]);
    }
    *pi = attribute_of(*facts, number);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetProperties(CUdevprop_v1* prop, CUdevice dev) noexcept {
    GANTRY_REFUSE_IF(prop == nullptr, CUDA_ERROR_INVALID_VALUE);
    const wire::DeviceFacts* facts = facts_of(dev);
    GANTRY_REFUSE_IF(facts == nullptr, CUDA_ERROR_INVALID_DEVICE);
    const std::int32_t* attributes = facts->attributes;
    prop->maxThreadsPerBlock = attributes[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK];
    for (int axis = 0; axis < 3; ++axis) {
        prop->maxThreadsDim[axis] = attributes[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + axis];
        prop->maxGridSize[axis] = attributes[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + axis];
    }
    prop->sharedMemPerBlock = attributes[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK];
    prop->totalConstantMemory = attributes[CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY];
    prop->SIMDWidth = attributes[CU_DEVICE_ATTRIBUTE_WARP_SIZE];
    prop->memPitch = attributes[CU_DEVICE_ATTRIBUTE_MAX_PITCH];
    prop->regsPerBlock = attributes[CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK];
    prop->clockRate = attributes[CU_DEVICE_ATTRIBUTE_CLOCK_RATE];
    prop->textureAlign = attributes[CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT];
    return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice dev) noexcept {
    GANTRY_REFUSE_IF(major == nullptr || minor == nullptr, CUDA_ERROR_INVALID_VALUE);
    const wire::DeviceFacts* facts = facts_of(dev);
    GANTRY_REFUSE_IF(facts == nullptr, CUDA_ERROR_INVALID_DEVICE);
    *major = facts->attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR];
    *minor = facts->attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR];
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* pciBusId, int len, CUdevice dev) noexcept {
    GANTRY_REFUSE_IF(pciBusId == nullptr || len <= 0, CUDA_ERROR_INVALID_VALUE);
    const wire::DeviceFacts* facts = facts_of(dev);
    GANTRY_REFUSE_IF(facts == nullptr, CUDA_ERROR_INVALID_DEVICE);
    const int needed =
        std::snprintf(pciBusId, static_cast<std::size_t>(len), "%.31s", facts->pci_bus_id);
    return needed < len ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetByPCIBusId(CUdevice* dev, const char* pciBusId) noexcept {
    GANTRY_REFUSE_IF(dev == nullptr || pciBusId == nullptr, CUDA_ERROR_INVALID_VALUE);
    // [domain:]bus:device[.function], hexadecimal.
    unsigned part[3] = {0, 0, 0};
    if (std::sscanf(pciBusId, "%x:%x:%x", &part[0], &part[1], &part[2]) != 3) {
        part[0] = 0;
        GANTRY_REFUSE_IF(std::sscanf(pciBusId, "%x:%x", &part[1], &part[2]) != 2,
                         CUDA_ERROR_INVALID_VALUE);
    }
    for (int device = 0; device < static_cast<int>(session::device_count()); ++device) {
        const std::int32_t* attributes = facts_of(device)->attributes;
        if (attributes[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID] == static_cast<int>(part[0]) &&
            attributes[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID] == static_cast<int>(part[1]) &&
            attributes[CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID] == static_cast<int>(part[2])) {
            *dev = device;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceCanAccessPeer(int* canAccessPeer, CUdevice dev, CUdevice peerDev) noexcept {
    GANTRY_REFUSE_IF(canAccessPeer == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_REFUSE_IF(facts_of(dev) == nullptr || facts_of(peerDev) == nullptr,
                     CUDA_ERROR_INVALID_DEVICE);
    *canAccessPeer = 0;  // A worker has one device.
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute, CUdevice srcDevice,
                                 CUdevice dstDevice) noexcept {
    GANTRY_REFUSE_IF(value == nullptr, CUDA_ERROR_INVALID_VALUE);
    if (facts_of(srcDevice) == nullptr || facts_of(dstDevice) == nullptr ||
        srcDevice == dstDevice) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *value = 0;
    return CUDA_SUCCESS;
}

}  // namespace gantry::cuda_impl
