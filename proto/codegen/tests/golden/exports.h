// Generated from proto/cuda/driver_api by proto/codegen; do not edit.
// The exported CUDA ABI, as declared symbols.
#pragma once

#include "proto/cuda/abi.h"

extern "C" {

CUresult cuInit(unsigned int Flags) noexcept;
CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags) noexcept;
CUresult cuStreamDestroy_v2(CUstream hStream) noexcept;
CUresult cuStreamDestroy(CUstream hStream) noexcept;
CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N,
    CUstream hStream) noexcept;
CUresult cuMemsetD8Async_ptsz(CUdeviceptr dstDevice, unsigned char uc, size_t N,
    CUstream hStream) noexcept;
CUresult cuMemsetD8_v2(CUdeviceptr dstDevice, unsigned char uc, size_t N) noexcept;
CUresult cuMemsetD8_v2_ptds(CUdeviceptr dstDevice, unsigned char uc, size_t N) noexcept;
CUresult cuGraphAddMemsetNode(CUgraphNode *phGraphNode, CUgraph hGraph,
    const CUgraphNode *dependencies, size_t numDependencies,
    const CUDA_MEMSET_NODE_PARAMS_v1 *memsetParams, CUcontext ctx) noexcept;
CUresult cuMemRangeGetAttribute(void *data, size_t dataSize, CUmem_range_attribute attribute,
    CUdeviceptr devPtr, size_t count) noexcept;
CUresult cuLaunchKernel(CUfunction f, CUstream hStream, void **kernelParams) noexcept;
CUresult cuLaunchKernel_ptsz(CUfunction f, CUstream hStream, void **kernelParams) noexcept;
CUresult cuGetProcAddress_v2(const char *symbol, cuuint64_t flags) noexcept;
CUresult cuIpcGetMemHandle(CUipcMemHandle_v1 *pHandle, CUdeviceptr dptr) noexcept;
CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule hmod) noexcept;
CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart) noexcept;
CUresult cuLinkName(const char *name, const CUuuid *uuid, CUstreamCaptureMode *mode,
    CUmemLocation location, CUevent *event, unsigned int *values, unsigned int count,
    unsigned int rank, const cuuint64_t *strides) noexcept;

}  // extern "C"
