// Generated from proto/cuda/driver_api by proto/codegen; do not edit.
// Wire marshalling in the guest: fills a command, posts or calls it, stores outputs.
#pragma once

#include <cstdint>

#include "proto/cuda/abi.h"

namespace gantry::marshal {

// Calls with hand-written shim code take the new object's handle where the ABI has an
// output pointer.
// A leading `stream` is the default stream (0 or 2) of calls without a stream parameter.

CUresult cuStreamCreate(std::uint64_t phStream, unsigned int Flags) noexcept;
CUresult cuStreamDestroy_v2(CUstream hStream) noexcept;
CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N,
    CUstream hStream) noexcept;
CUresult cuGraphAddMemsetNode(CUgraphNode *phGraphNode, CUgraph hGraph,
    const CUgraphNode *dependencies, size_t numDependencies,
    const CUDA_MEMSET_NODE_PARAMS_v1 *memsetParams, CUcontext ctx) noexcept;
CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule hmod) noexcept;
CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart) noexcept;
CUresult cuLinkName(const char *name, const CUuuid *uuid, CUstreamCaptureMode *mode,
    CUmemLocation location, CUevent *event, unsigned int *values, unsigned int count,
    unsigned int rank, const cuuint64_t *strides) noexcept;

}  // namespace gantry::marshal
