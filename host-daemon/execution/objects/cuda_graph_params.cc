#include "host-daemon/execution/objects/cuda_graph_params.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace gantry::worker {
namespace {

constexpr std::size_t kMostParams = 4096;

/// Offset and size of each parameter; false when the driver does not tell.
bool read_layout(const driver::DriverApi& api, const CUDA_KERNEL_NODE_PARAMS_v2& params,
                 std::vector<std::pair<std::size_t, std::size_t>>* layout) {
    for (std::size_t i = 0; i < kMostParams; ++i) {
        std::size_t offset = 0;
        std::size_t bytes = 0;
        CUresult result = CUDA_ERROR_NOT_SUPPORTED;
        if (params.func != nullptr && api.cuFuncGetParamInfo != nullptr) {
            result = api.cuFuncGetParamInfo(params.func, i, &offset, &bytes);
        } else if (params.kern != nullptr && api.cuKernelGetParamInfo != nullptr) {
            result = api.cuKernelGetParamInfo(params.kern, i, &offset, &bytes);
        }
        if (result == CUDA_ERROR_INVALID_VALUE) {
            return true;
        }
        if (result != CUDA_SUCCESS) {
            return false;
        }
        layout->emplace_back(offset, bytes);
    }
    return false;
}

std::uint64_t address_of(CUmemorytype type, const void* host, CUdeviceptr device) {
    if (type == CU_MEMORYTYPE_ARRAY) {
        return 0;
    }
    return type == CU_MEMORYTYPE_HOST ? reinterpret_cast<std::uint64_t>(host) : device;
}

}  // namespace

CUfunction KernelNames::function_of(std::uint64_t kernel) const {
    const auto native = objects_.native_as<CUkernel>(kernel, HandleKind::kKernel);
    CUfunction function = nullptr;
    return native != nullptr && device_.api().cuKernelGetFunction(&function, native) == CUDA_SUCCESS
               ? function
               : nullptr;
}

std::uint64_t KernelNames::kernel_of(CUfunction function) {
    if (device_.api().cuKernelGetFunction == nullptr) {
        return 0;
    }
    MutexLock lock(mutex_);
    const auto known = kernels_.find(function);
    if (known != kernels_.end() && function_of(known->second) == function) {
        return known->second;
    }
    kernels_.clear();
    for (const Object& kernel : objects_.list_kind(HandleKind::kKernel)) {
        kernels_.emplace(function_of(kernel.handle), kernel.handle);
    }
    const auto found = kernels_.find(function);
    return found == kernels_.end() ? 0 : found->second;
}

std::uint64_t KernelNames::handle_of(const CUDA_KERNEL_NODE_PARAMS_v2& params) {
    const auto kernel = reinterpret_cast<std::uint64_t>(params.kern);
    const auto function = reinterpret_cast<std::uint64_t>(params.func);
    std::uint64_t handle = kernel != 0 ? objects_.handle_of(kernel, HandleKind::kKernel) : 0;
    if (handle != 0 || function == 0) {
        return handle;
    }
    for (const HandleKind kind : {HandleKind::kFunction, HandleKind::kKernel}) {
        handle = handle != 0 ? handle : objects_.handle_of(function, kind);
    }
    return handle != 0 ? handle : kernel_of(params.func);
}

bool pack_arguments(const driver::DriverApi& api, const CUDA_KERNEL_NODE_PARAMS_v2& params,
                    std::string* out) {
    if (params.kernelParams == nullptr && params.extra != nullptr) {
        const void* buffer = nullptr;
        std::size_t bytes = 0;
        for (void** at = params.extra; *at != CU_LAUNCH_PARAM_END; at += 2) {
            if (*at == CU_LAUNCH_PARAM_BUFFER_POINTER) {
                buffer = at[1];
            } else if (*at == CU_LAUNCH_PARAM_BUFFER_SIZE) {
                bytes = *static_cast<const std::size_t*>(at[1]);
            } else {
                return false;
            }
        }
        out->assign(static_cast<const char*>(buffer), buffer != nullptr ? bytes : 0);
        return true;
    }
    std::vector<std::pair<std::size_t, std::size_t>> layout;
    if (!read_layout(api, params, &layout) || (!layout.empty() && params.kernelParams == nullptr)) {
        return false;
    }
    for (std::size_t i = 0; i < layout.size(); ++i) {
        const auto [offset, bytes] = layout[i];
        out->resize(std::max(out->size(), offset + bytes));
        std::memcpy(out->data() + offset, params.kernelParams[i], bytes);
    }
    return true;
}

cuda::wire_hand::Copy3DCall describe_copy(const CUDA_MEMCPY3D_v2& params,
                                          const ObjectTable& objects) {
    const auto array = [&](CUmemorytype type, CUarray native) {
        return type == CU_MEMORYTYPE_ARRAY
                   ? objects.handle_of(reinterpret_cast<std::uint64_t>(native), HandleKind::kArray)
                   : 0;
    };
    const std::uint64_t from = array(params.srcMemoryType, params.srcArray);
    const std::uint64_t to = array(params.dstMemoryType, params.dstArray);
    cuda::wire_hand::Copy3DCall copy{};
    copy.source = {params.srcXInBytes,
                   params.srcY,
                   params.srcZ,
                   params.srcLOD,
                   address_of(params.srcMemoryType, params.srcHost, params.srcDevice),
                   from,
                   params.srcPitch,
                   params.srcHeight};
    copy.target = {params.dstXInBytes,
                   params.dstY,
                   params.dstZ,
                   params.dstLOD,
                   address_of(params.dstMemoryType, params.dstHost, params.dstDevice),
                   to,
                   params.dstPitch,
                   params.dstHeight};
    copy.width_bytes = params.WidthInBytes;
    copy.height = params.Height;
    copy.depth = params.Depth;
    return copy;
}

}  // namespace gantry::worker
