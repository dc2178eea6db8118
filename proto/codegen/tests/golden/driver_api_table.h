// Generated from proto/cuda/driver_api by proto/codegen; do not edit.
// A loaded CUDA driver: one typed pointer per call, null where the driver has none.
#pragma once

#include <cstddef>

#include "proto/cuda/abi.h"

namespace gantry::driver {

struct DriverApi {
    /// Fills the table by dlsym of the exact symbol names from a dlopen handle; returns how many
    /// were found. The handle must outlive the table. Not thread-safe; call once.
    std::size_t load(void* library) noexcept;

    CUresult (*cuInit)(unsigned int) = nullptr;
    CUresult (*cuStreamCreate)(CUstream *, unsigned int) = nullptr;
    CUresult (*cuStreamDestroy_v2)(CUstream) = nullptr;
    CUresult (*cuMemsetD8Async)(CUdeviceptr, unsigned char, size_t, CUstream) = nullptr;
    CUresult (*cuMemsetD8_v2)(CUdeviceptr, unsigned char, size_t) = nullptr;
    CUresult (*cuGraphAddMemsetNode)(CUgraphNode *, CUgraph, const CUgraphNode *, size_t,
        const CUDA_MEMSET_NODE_PARAMS_v1 *, CUcontext) = nullptr;
    CUresult (*cuMemRangeGetAttribute)(void *, size_t, CUmem_range_attribute, CUdeviceptr,
        size_t) = nullptr;
    CUresult (*cuLaunchKernel)(CUfunction, CUstream, void **) = nullptr;
    CUresult (*cuGetProcAddress_v2)(const char *, cuuint64_t) = nullptr;
    CUresult (*cuIpcGetMemHandle)(CUipcMemHandle_v1 *, CUdeviceptr) = nullptr;
    CUresult (*cuModuleGetFunctionCount)(unsigned int *, CUmodule) = nullptr;
    CUresult (*cuEventElapsedTime)(float *, CUevent) = nullptr;
    CUresult (*cuLinkName)(const char *, const CUuuid *, CUstreamCaptureMode *, CUmemLocation,
        CUevent *, unsigned int *, unsigned int, unsigned int, const cuuint64_t *) = nullptr;
};

}  // namespace gantry::driver
