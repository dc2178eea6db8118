// Generated from proto/cuda/driver_api by proto/codegen; do not edit.
// What an implementation of the CUDA driver API (shim or soft driver) defines.
#pragma once

#include "proto/cuda/abi.h"
#include "proto/cuda/gen/opcodes.h"

namespace gantry::cuda_impl {

/// Which default stream a call without a stream parameter means.
enum class DefaultStream { kLegacy, kPerThread };

/// The default stream as a handle: null (legacy) or CU_STREAM_PER_THREAD.
inline CUstream default_stream_handle(DefaultStream which) noexcept {
    return which == DefaultStream::kPerThread ? CU_STREAM_PER_THREAD : nullptr;
}

/// Counts the refusal and returns CUDA_ERROR_NOT_SUPPORTED. Defined by the implementation.
CUresult refused(cuda::Op op) noexcept;

CUresult cuInit(unsigned int Flags) noexcept;
CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags) noexcept;
CUresult cuStreamDestroy_v2(CUstream hStream) noexcept;
CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N,
    CUstream hStream) noexcept;
CUresult cuMemsetD8_v2(DefaultStream default_stream, CUdeviceptr dstDevice, unsigned char uc,
    size_t N) noexcept;
CUresult cuGraphAddMemsetNode(CUgraphNode *phGraphNode, CUgraph hGraph,
    const CUgraphNode *dependencies, size_t numDependencies,
    const CUDA_MEMSET_NODE_PARAMS_v1 *memsetParams, CUcontext ctx) noexcept;
CUresult cuMemRangeGetAttribute(void *data, size_t dataSize, CUmem_range_attribute attribute,
    CUdeviceptr devPtr, size_t count) noexcept;
CUresult cuLaunchKernel(CUfunction f, CUstream hStream, void **kernelParams) noexcept;
CUresult cuGetProcAddress_v2(const char *symbol, cuuint64_t flags) noexcept;
CUresult cuIpcGetMemHandle(CUipcMemHandle_v1 *pHandle, CUdeviceptr dptr) noexcept;
CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule hmod) noexcept;
CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart) noexcept;
CUresult cuLinkName(const char *name, const CUuuid *uuid, CUstreamCaptureMode *mode,
    CUmemLocation location, CUevent *event, unsigned int *values, unsigned int count,
    unsigned int rank, const cuuint64_t *strides) noexcept;

}  // namespace gantry::cuda_impl
