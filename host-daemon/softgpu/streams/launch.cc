#include "host-daemon/softgpu/streams/launch.h"

#include <algorithm>
#include <cstring>

#include "host-daemon/softgpu/core/errors.h"

namespace gantry::softgpu {
namespace {

constexpr std::uint32_t kGridXMax = 2147483647;
constexpr std::uint32_t kGridYzMax = 65535;
constexpr std::uint32_t kBlockXyMax = 1024;
constexpr std::uint32_t kBlockZMax = 64;
constexpr std::uint64_t kPortableClusterMax = 8;
constexpr std::uint64_t kClusterMax = 16;
constexpr int kNoAttribute = 15;  ///< An id that CUDA 13.0 leaves out.

CUresult pack_extra(const KernelInfo& kernel, void** extra, std::vector<std::byte>& packed) {
    const void* buffer = nullptr;
    const std::size_t* size = nullptr;
    for (std::size_t i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
        GANTRY_REFUSE_IF(i > 8, CUDA_ERROR_INVALID_VALUE);
        if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
            buffer = extra[i + 1];
        } else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
            size = static_cast<const std::size_t*>(extra[i + 1]);
        } else {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    if (buffer == nullptr || size == nullptr || *size < kernel.parameter_bytes) {
        return kernel.parameter_bytes == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    std::memcpy(packed.data(), buffer, kernel.parameter_bytes);
    return CUDA_SUCCESS;
}

bool shape_in_range(const LaunchShape& shape, const DeviceProfile& profile) {
    const Dim3& grid = shape.grid;
    const Dim3& block = shape.block;
    return grid.x >= 1 && grid.x <= kGridXMax && grid.y >= 1 && grid.y <= kGridYzMax &&
           grid.z >= 1 && grid.z <= kGridYzMax && block.x >= 1 && block.x <= kBlockXyMax &&
           block.y >= 1 && block.y <= kBlockXyMax && block.z >= 1 && block.z <= kBlockZMax &&
           block.count() <= profile.max_threads_per_block;
}

CUresult check_shape(const Function& function, const LaunchShape& shape) {
    const DeviceProfile& profile = function.device.profile.engine;
    const KernelInfo& kernel = function.info();
    GANTRY_REFUSE_IF(!shape_in_range(shape, profile), CUDA_ERROR_INVALID_VALUE);
    const Dim3& wanted = kernel.req_ntid;
    const bool other_block =
        wanted.x != 0 && (wanted.x != shape.block.x || std::max(wanted.y, 1U) != shape.block.y ||
                          std::max(wanted.z, 1U) != shape.block.z);
    GANTRY_REFUSE_IF(other_block || shape.block.count() > kernel.max_threads_per_block,
                     CUDA_ERROR_INVALID_VALUE);
    int threads_max = 0;
    function.attribute(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, threads_max);
    GANTRY_REFUSE_IF(shape.block.count() > static_cast<std::uint64_t>(threads_max),
                     CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    const std::uint64_t most = static_cast<std::uint64_t>(function.max_dynamic_shared.load());
    return shape.dynamic_shared_bytes > most ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult check_cluster(const Function& function, const LaunchShape& shape, Dim3& cluster,
                       bool given) {
    if (!given && function.cluster[0] > 0) {
        const auto axis = [&](std::size_t i) {
            return static_cast<std::uint32_t>(std::max(function.cluster[i].load(), 1));
        };
        cluster = {axis(0), axis(1), axis(2)};
    }
    const std::uint64_t most =
        function.nonportable_cluster != 0 ? kClusterMax : kPortableClusterMax;
    GANTRY_REFUSE_IF(cluster.count() == 0 || cluster.count() > most,
                     CUDA_ERROR_INVALID_CLUSTER_SIZE);
    const bool divides = shape.grid.x % cluster.x == 0 && shape.grid.y % cluster.y == 0 &&
                         shape.grid.z % cluster.z == 0;
    GANTRY_REFUSE_IF(!divides, CUDA_ERROR_INVALID_VALUE);
    return cluster.count() > 1 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;  // As the device tells.
}

}  // namespace

CUresult pack_parameters(const KernelInfo& kernel, void** kernel_params, void** extra,
                         std::vector<std::byte>& packed) {
    packed.assign(kernel.parameter_bytes, std::byte{0});
    GANTRY_REFUSE_IF(kernel_params != nullptr && extra != nullptr, CUDA_ERROR_INVALID_VALUE);
    if (extra != nullptr) {
        return pack_extra(kernel, extra, packed);
    }
    if (kernel.parameters.empty()) {
        return CUDA_SUCCESS;
    }
    GANTRY_REFUSE_IF(kernel_params == nullptr, CUDA_ERROR_INVALID_VALUE);
    for (std::size_t i = 0; i < kernel.parameters.size(); ++i) {
        const ParameterInfo& parameter = kernel.parameters[i];
        GANTRY_REFUSE_IF(kernel_params[i] == nullptr, CUDA_ERROR_INVALID_VALUE);
        std::memcpy(packed.data() + parameter.offset_bytes, kernel_params[i], parameter.size_bytes);
    }
    return CUDA_SUCCESS;
}

int resident_blocks(const Function& function, std::uint32_t threads, std::uint64_t dynamic_bytes) {
    const DeviceProfile& profile = function.device.residency();
    if (dynamic_bytes > profile.shared_bytes_per_sm) {
        return 0;
    }
    return static_cast<int>(max_blocks_per_sm(function.info(), threads,
                                              static_cast<std::uint32_t>(dynamic_bytes), profile));
}

CUresult check_attribute(const CUlaunchAttribute& attribute) {
    const CUlaunchAttributeValue& value = attribute.value;
    switch (static_cast<int>(attribute.id)) {
        case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:  // Of streams only.
        case kNoAttribute: return CUDA_ERROR_INVALID_VALUE;
        case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE: return CUDA_ERROR_NOT_SUPPORTED;
        case CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING:
            return value.nvlinkUtilCentricScheduling > 1 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
        default:
            return attribute.id < 0 || attribute.id >= CU_LAUNCH_ATTRIBUTE_MAX
                       ? CUDA_ERROR_INVALID_VALUE
                       : CUDA_SUCCESS;
    }
}

CUresult make_launch(const std::shared_ptr<Context>& context, const void* function_handle,
                     const LaunchShape& shape, void** kernel_params, void** extra,
                     const CUlaunchAttribute* attributes, unsigned attribute_count,
                     std::shared_ptr<KernelOperation>& operation) {
    operation = std::make_shared<KernelOperation>();
    GANTRY_CU(resolve_function(context, function_handle, operation->function));
    const Function& function = *operation->function;
    GANTRY_REFUSE_IF(&function.device != &context->device, CUDA_ERROR_INVALID_HANDLE);
    GANTRY_CU(check_shape(function, shape));
    bool cluster_given = false;
    for (unsigned i = 0; i < attribute_count; ++i) {
        const CUlaunchAttribute& attribute = attributes[i];
        if (attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) {
            operation->cooperative = attribute.value.cooperative != 0;
        } else if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
            const auto& dim = attribute.value.clusterDim;
            operation->cluster = {dim.x, dim.y, dim.z};
            cluster_given = true;
        } else {
            GANTRY_CU(check_attribute(attribute));
        }
        operation->attributes.push_back(attribute);
    }
    GANTRY_CU(check_cluster(function, shape, operation->cluster, cluster_given));
    if (operation->cooperative) {
        const auto per_sm = static_cast<std::uint64_t>(resident_blocks(
            function, static_cast<std::uint32_t>(shape.block.count()), shape.dynamic_shared_bytes));
        GANTRY_REFUSE_IF(shape.grid.count() > per_sm * context->device.residency().sm_count,
                         CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    }
    GANTRY_CU(pack_parameters(function.info(), kernel_params, extra, operation->params));
    operation->context = context;
    operation->handle = const_cast<void*>(function_handle);
    operation->grid = shape.grid;
    operation->block = shape.block;
    operation->dynamic_shared_bytes = shape.dynamic_shared_bytes;
    return CUDA_SUCCESS;
}

}  // namespace gantry::softgpu
