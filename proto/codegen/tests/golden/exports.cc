// Generated from proto/cuda/driver_api by proto/codegen; do not edit.
// The exported CUDA ABI: checks that the library is usable, then calls cuda_impl.

#include "cuda_impl_hooks.h"
#include "proto/cuda/gen/exports.h"
#include "proto/cuda/gen/impl.h"

// cuda_impl_hooks.h comes from the library being built and defines, inline,
// `CUresult gantry::cuda_impl::enter(cuda::Op)`: the check made before every call.
#define GANTRY_CUDA_EXPORT __attribute__((visibility("default")))

using gantry::cuda::Op;
using gantry::cuda_impl::DefaultStream;
using gantry::cuda_impl::enter;

extern "C" {

GANTRY_CUDA_EXPORT CUresult cuInit(unsigned int Flags) noexcept {
    if (const CUresult status = enter(Op::cuInit); status != CUDA_SUCCESS) {
        return status;
    }
    return gantry::cuda_impl::cuInit(Flags);
}

GANTRY_CUDA_EXPORT CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags) noexcept {
    if (const CUresult status = enter(Op::cuStreamCreate); status != CUDA_SUCCESS) {
        return status;
    }
    return gantry::cuda_impl::cuStreamCreate(phStream, Flags);
}

GANTRY_CUDA_EXPORT CUresult cuStreamDestroy_v2(CUstream hStream) noexcept {
    if (const CUresult status = enter(Op::cuStreamDestroy_v2); status != CUDA_SUCCESS) {
        return status;
    }
    return gantry::cuda_impl::cuStreamDestroy_v2(hStream);
}

GANTRY_CUDA_EXPORT CUresult cuStreamDestroy(CUstream hStream) noexcept {
    if (const CUresult status = enter(Op::cuStreamDestroy); status != CUDA_SUCCESS) {
        return status;
    }
    return gantry::cuda_impl::cuStreamDestroy_v2(hStream);
}

GANTRY_CUDA_EXPORT CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N,
    CUstream hStream) noexcept {
    if (const CUresult status = enter(Op::cuMemsetD8Async); status != CUDA_SUCCESS) {
        return status;
    }
    return gantry::cuda_impl::cuMemsetD8Async(dstDevice, uc, N, hStream);
}

GANTRY_CUDA_EXPORT CUresult cuMemsetD8Async_ptsz(CUdeviceptr dstDevice, unsigned char uc, size_t N,
    CUstream hStream) noexcept {
    if (const CUresult status = enter(Op::cuMemsetD8Async); status != CUDA_SUCCESS) {
        return status;
    }
    if (hStream == nullptr) {
        hStream = CU_STREAM_PER_THREAD;
    }
    return gantry::cuda_impl::cuMemsetD8Async(dstDevice, uc, N, hStream);
}

GANTRY_CUDA_EXPORT CUresult cuMemsetD8_v2(CUdeviceptr dstDevice, unsigned char uc,
    size_t N) noexcept {
    if (const CUresult status = enter(Op::cuMemsetD8_v2); status != CUDA_SUCCESS) {
        return status;
    }
    return gantry::cuda_impl::cuMemsetD8_v2(DefaultStream::kLegacy, dstDevice, uc, N);
}

GANTRY_CUDA_EXPORT CUresult cuMemsetD8_v2_ptds(CUdeviceptr dstDevice, unsigned char uc,
    size_t N) noexcept {
    if (const CUresult status = enter(Op::cuMemsetD8_v2); status != CUDA_SUCCESS) {
        return status;
    }
    return gantry::cuda_impl::cuMemsetD8_v2(DefaultStream::kPerThread, dstDevice, uc, N);
}

GANTRY_CUDA_EXPORT CUresult cuGraphAddMemsetNode(CUgraphNode *phGraphNode, CUgraph hGraph,
    const CUgraphNode *dependencies, size_t numDependencies,
    const CUDA_MEMSET_NODE_PARAMS_v1 *memsetParams, CUcontext ctx) noexcept {
    if (const CUresult status = enter(Op::cuGraphAddMemsetNode); status != CUDA_SUCCESS) {
        return status;
    }
    return gantry::cuda_impl::cuGraphAddMemsetNode(phGraphNode, hGraph, dependencies,
        numDependencies, memsetParams, ctx);
}

GANTRY_CUDA_EXPORT CUresult cuMemRangeGetAttribute(void *data, size_t dataSize,
    CUmem_range_attribute attribute, CUdeviceptr devPtr, size_t count) noexcept {
    if (const CUresult status = enter(Op::cuMemRangeGetAttribute); status != CUDA_SUCCESS) {
        return status;
    }
    return gantry::cuda_impl::cuMemRangeGetAttribute(data, dataSize, attribute, devPtr, count);
}

GANTRY_CUDA_EXPORT CUresult cuLaunchKernel(CUfunction f, CUstream hStream,
    void **kernelParams) noexcept {
    if (const CUresult status = enter(Op::cuLaunchKernel); status != CUDA_SUCCESS) {
        return status;
    }
    return gantry::cuda_impl::cuLaunchKernel(f, hStream, kernelParams);
}

GANTRY_CUDA_EXPORT CUresult cuLaunchKernel_ptsz(CUfunction f, CUstream hStream,
    void **kernelParams) noexcept {
    if (const CUresult status = enter(Op::cuLaunchKernel); status != CUDA_SUCCESS) {
        return status;
    }
    if (hStream == nullptr) {
        hStream = CU_STREAM_PER_THREAD;
    }
    return gantry::cuda_impl::cuLaunchKernel(f, hStream, kernelParams);
}

GANTRY_CUDA_EXPORT CUresult cuGetProcAddress_v2(const char *symbol, cuuint64_t flags) noexcept {
    if (const CUresult status = enter(Op::cuGetProcAddress_v2); status != CUDA_SUCCESS) {
        return status;
    }
    return gantry::cuda_impl::cuGetProcAddress_v2(symbol, flags);
}

GANTRY_CUDA_EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle_v1 *pHandle,
    CUdeviceptr dptr) noexcept {
    if (const CUresult status = enter(Op::cuIpcGetMemHandle); status != CUDA_SUCCESS) {
        return status;
    }
    return gantry::cuda_impl::cuIpcGetMemHandle(pHandle, dptr);
}

GANTRY_CUDA_EXPORT CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule hmod) noexcept {
    if (const CUresult status = enter(Op::cuModuleGetFunctionCount); status != CUDA_SUCCESS) {
        return status;
    }
    return gantry::cuda_impl::cuModuleGetFunctionCount(count, hmod);
}

GANTRY_CUDA_EXPORT CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart) noexcept {
    if (const CUresult status = enter(Op::cuEventElapsedTime); status != CUDA_SUCCESS) {
        return status;
    }
    return gantry::cuda_impl::cuEventElapsedTime(pMilliseconds, hStart);
}

GANTRY_CUDA_EXPORT CUresult cuLinkName(const char *name, const CUuuid *uuid,
    CUstreamCaptureMode *mode, CUmemLocation location, CUevent *event, unsigned int *values,
    unsigned int count, unsigned int rank, const cuuint64_t *strides) noexcept {
    if (const CUresult status = enter(Op::cuLinkName); status != CUDA_SUCCESS) {
        return status;
    }
    return gantry::cuda_impl::cuLinkName(name, uuid, mode, location, event, values, count, rank,
        strides);
}

}  // extern "C"
