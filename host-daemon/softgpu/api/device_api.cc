// cuDevice*: what the profile says.
#include "host-daemon/softgpu/core/device.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "host-daemon/softgpu/core/driver.h"
#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/memory/array.h"
#include "proto/cuda/gen/impl.h"

namespace gantry::cuda_impl {
namespace {

using softgpu::Device;
using softgpu::device_of;

int attribute_of(const Device& device, CUdevice_attribute attribute) {
    int value = 0;
    softgpu::device_attribute(device, attribute, value);
    return value;
}

std::string pci_id(const Device& device) {
    char text[32];
    std::snprintf(text, sizeof text, "%04X:%02X:%02X.0",
                  static_cast<unsigned>(device.profile.pci_domain),
                  static_cast<unsigned>(device.profile.pci_bus),
                  static_cast<unsigned>(device.profile.pci_device));
    return text;
}

}  // namespace

#define GANTRY_DEVICE(name, ordinal)         \
    Device* const name = device_of(ordinal); \
    if (name == nullptr) {                   \
        return CUDA_ERROR_INVALID_DEVICE;    \
    }

CUresult cuDeviceGet(CUdevice* device, int ordinal) noexcept {
    GANTRY_REFUSE_IF(device == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_DEVICE(found, ordinal);
    *device = found->ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) noexcept {
    GANTRY_REFUSE_IF(count == nullptr, CUDA_ERROR_INVALID_VALUE);
    *count = static_cast<int>(softgpu::driver().devices.size());
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int len, CUdevice dev) noexcept {
    GANTRY_REFUSE_IF(name == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_DEVICE(device, dev);
    GANTRY_REFUSE_IF(len <= 0, CUDA_ERROR_INVALID_VALUE);
    std::snprintf(name, static_cast<std::size_t>(len), "%s", device->profile.name.c_str());
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice dev) noexcept {
    GANTRY_REFUSE_IF(uuid == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_DEVICE(device, dev);
    std::memcpy(uuid->bytes, device->profile.uuid.data(), sizeof uuid->bytes);
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice dev) noexcept {
    GANTRY_REFUSE_IF(bytes == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_DEVICE(device, dev);
    *bytes = device->profile.memory_bytes;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t* maxWidthInElements, CUarray_format format,
                                            unsigned int numChannels, CUdevice dev) noexcept {
    GANTRY_REFUSE_IF(maxWidthInElements == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_DEVICE(device, dev);
    softgpu::TexelFormat texel;
    bool normalized = false;
    GANTRY_REFUSE_IF(!softgpu::texel_format(format, numChannels, texel, normalized),
                     CUDA_ERROR_INVALID_VALUE);
    constexpr std::size_t kLinearBytesMax = std::size_t{1} << 32;
    *maxWidthInElements = kLinearBytesMax / texel.texel_bytes();
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* pi, CUdevice_attribute attrib, CUdevice dev) noexcept {
    GANTRY_REFUSE_IF(pi == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_DEVICE(device, dev);
    return softgpu::device_attribute(*device, attrib, *pi) ? CUDA_SUCCESS
                                                           : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetHostAtomicCapabilities(unsigned int* capabilities,
                                           const CUatomicOperation* operations, unsigned int count,
                                           CUdevice dev) noexcept {
    GANTRY_REFUSE_IF(capabilities == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_REFUSE_IF(operations == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_DEVICE(device, dev);
    std::fill_n(capabilities, count, 0U);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAtomicCapabilities(unsigned int* capabilities,
                                          const CUatomicOperation* operations, unsigned int count,
                                          CUdevice srcDevice, CUdevice dstDevice) noexcept {
    GANTRY_DEVICE(peer, dstDevice);
    return cuDeviceGetHostAtomicCapabilities(capabilities, operations, count, srcDevice);
}

CUresult cuDeviceGetProperties(CUdevprop_v1* prop, CUdevice dev) noexcept {
    GANTRY_REFUSE_IF(prop == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_DEVICE(device, dev);
    const auto get = [device](CUdevice_attribute id) { return attribute_of(*device, id); };
    *prop = {};
    prop->maxThreadsPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    prop->maxThreadsDim[0] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X);
    prop->maxThreadsDim[1] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y);
    prop->maxThreadsDim[2] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z);
    prop->maxGridSize[0] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X);
    prop->maxGridSize[1] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y);
    prop->maxGridSize[2] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z);
    prop->sharedMemPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
    prop->totalConstantMemory = get(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY);
    prop->SIMDWidth = get(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
    prop->memPitch = get(CU_DEVICE_ATTRIBUTE_MAX_PITCH);
    prop->regsPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
    prop->clockRate = get(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
    prop->textureAlign = get(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
    return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice dev) noexcept {
    GANTRY_REFUSE_IF(major == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_REFUSE_IF(minor == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_DEVICE(device, dev);
    *major = device->profile.engine.compute_capability_major;
    *minor = device->profile.engine.compute_capability_minor;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetExecAffinitySupport(int* pi, CUexecAffinityType type, CUdevice dev) noexcept {
    GANTRY_REFUSE_IF(pi == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_DEVICE(device, dev);
    GANTRY_REFUSE_IF(type != CU_EXEC_AFFINITY_TYPE_SM_COUNT, CUDA_ERROR_INVALID_VALUE);
    *pi = 0;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice* dev, const char* pciBusId) noexcept {
    GANTRY_REFUSE_IF(dev == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_REFUSE_IF(pciBusId == nullptr, CUDA_ERROR_INVALID_VALUE);
    unsigned domain = 0;
    unsigned bus = 0;
    unsigned slot = 0;
    if (std::sscanf(pciBusId, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        GANTRY_REFUSE_IF(std::sscanf(pciBusId, "%x:%x", &bus, &slot) != 2,
                         CUDA_ERROR_INVALID_VALUE);
    }
    for (const auto& device : softgpu::driver().devices) {
        const auto& profile = device->profile;
        if (profile.pci_domain == static_cast<int>(domain) &&
            profile.pci_bus == static_cast<int>(bus) &&
            profile.pci_device == static_cast<int>(slot)) {
            *dev = device->ordinal;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetPCIBusId(char* pciBusId, int len, CUdevice dev) noexcept {
    GANTRY_REFUSE_IF(pciBusId == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_DEVICE(device, dev);
    const std::string text = pci_id(*device);
    GANTRY_REFUSE_IF(len <= 0 || static_cast<std::size_t>(len) <= text.size(),
                     CUDA_ERROR_INVALID_VALUE);
    std::memcpy(pciBusId, text.c_str(), text.size() + 1);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetLuid(char*, unsigned int*, CUdevice) noexcept {
    return CUDA_ERROR_NOT_SUPPORTED;  // Windows only.
}

CUresult cuDeviceCanAccessPeer(int* canAccessPeer, CUdevice dev, CUdevice peerDev) noexcept {
    GANTRY_REFUSE_IF(canAccessPeer == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_DEVICE(device, dev);
    GANTRY_DEVICE(peer, peerDev);
    *canAccessPeer = device != peer ? 1 : 0;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attrib, CUdevice srcDevice,
                                 CUdevice dstDevice) noexcept {
    GANTRY_REFUSE_IF(value == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_DEVICE(from, srcDevice);
    GANTRY_DEVICE(to, dstDevice);
    GANTRY_REFUSE_IF(from == to, CUDA_ERROR_INVALID_DEVICE);
    switch (attrib) {
        case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK: *value = 0; return CUDA_SUCCESS;
        case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
        case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
        case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED: *value = 1; return CUDA_SUCCESS;
        case CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED:
            *value = 0;
            return CUDA_SUCCESS;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget,
                                    CUflushGPUDirectRDMAWritesScope) noexcept {
    return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace gantry::cuda_impl
