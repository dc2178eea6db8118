#include <algorithm>

#include "host-daemon/softgpu/code/module.h"
#include "host-daemon/softgpu/core/errors.h"

namespace gantry::softgpu {

Function::Function(std::weak_ptr<Module> module_in, std::shared_ptr<Program> program_in,
                   std::uint32_t index_in, Device& device_in)
    : Object(kKind),
      module(std::move(module_in)),
      program(std::move(program_in)),
      index(index_in),
      device(device_in) {
    const DeviceProfile& profile = device.profile.engine;
    const auto statically = static_cast<int>(info().static_shared_bytes);
    max_dynamic_shared = std::max(0, static_cast<int>(profile.shared_bytes_per_block) - statically);
    const Dim3& wanted = info().req_cluster;
    cluster[0] = static_cast<int>(wanted.x);
    cluster[1] = static_cast<int>(wanted.y);
    cluster[2] = static_cast<int>(wanted.z);
    cluster_must_be_set = wanted.x != 0 ? 1 : 0;
}

bool Function::attribute(int attribute, int& value) const {
    const KernelInfo& kernel = info();
    const DeviceProfile& profile = device.profile.engine;
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: {
            const std::uint32_t by_registers =
                profile.registers_per_sm / std::max<std::uint32_t>(kernel.registers, 1) / 32 * 32;
            value = static_cast<int>(std::min(
                {kernel.max_threads_per_block, profile.max_threads_per_block, by_registers}));
            return true;
        }
        case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
            value = static_cast<int>(kernel.static_shared_bytes);
            return true;
        case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
            value = static_cast<int>(kernel.constant_bytes);
            return true;
        case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
            value = static_cast<int>(kernel.local_bytes);
            return true;
        case CU_FUNC_ATTRIBUTE_NUM_REGS: value = static_cast<int>(kernel.registers); return true;
        case CU_FUNC_ATTRIBUTE_PTX_VERSION: value = kernel.target_sm; return true;
        case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
            value = static_cast<int>(device.profile.capability());
            return true;
        case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA: value = 0; return true;
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
            value = max_dynamic_shared;
            return true;
        case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: value = carveout; return true;
        case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET: value = cluster_must_be_set; return true;
        case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH: value = cluster[0]; return true;
        case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT: value = cluster[1]; return true;
        case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH: value = cluster[2]; return true;
        case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
            value = nonportable_cluster;
            return true;
        case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
            value = cluster_policy;
            return true;
        default: return false;
    }
}

CUresult Function::set_attribute(int attribute, int value) {
    const DeviceProfile& profile = device.profile.engine;
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: {
            const auto most = static_cast<int>(profile.shared_bytes_per_block_optin) -
                              static_cast<int>(info().static_shared_bytes);
            GANTRY_REFUSE_IF(value < 0 || value > most, CUDA_ERROR_INVALID_VALUE);
            max_dynamic_shared = value;
            return CUDA_SUCCESS;
        }
        case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
            GANTRY_REFUSE_IF(value < -1 || value > 100, CUDA_ERROR_INVALID_VALUE);
            carveout = value;
            return CUDA_SUCCESS;
        case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
        case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
        case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH: {
            const auto axis =
                static_cast<std::size_t>(attribute - CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH);
            if (value < 0 || info().req_cluster.x != 0) {
                return value < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_PERMITTED;
            }
            cluster[axis] = value;
            return CUDA_SUCCESS;
        }
        case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
            nonportable_cluster = value != 0 ? 1 : 0;
            return CUDA_SUCCESS;
        case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
            GANTRY_REFUSE_IF(value < 0 || value > CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING,
                             CUDA_ERROR_INVALID_VALUE);
            cluster_policy = value;
            return CUDA_SUCCESS;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult resolve_function(const std::shared_ptr<Context>& context, const void* handle,
                          std::shared_ptr<Function>& function) {
    GANTRY_REFUSE_IF(handle == nullptr, CUDA_ERROR_INVALID_HANDLE);
    if ((function = find<Function>(handle)) != nullptr) {
        return CUDA_SUCCESS;
    }
    const auto kernel = find<Kernel>(handle);
    return kernel != nullptr ? kernel->function_in(context, function) : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace gantry::softgpu
