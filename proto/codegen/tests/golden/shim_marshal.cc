// Generated from proto/cuda/driver_api by proto/codegen; do not edit.
// Wire marshalling in the guest. Libc only.

#include <cstring>

#include "guest-shim/session/session.h"
#include "proto/cuda/convert.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/shim_marshal.h"
#include "proto/cuda/gen/wire_structs.h"
#include "proto/cuda/marshal_support.h"

namespace gantry::marshal {

using cuda::convert;
using cuda::Op;
using cuda::store;
namespace wire = cuda::wire;

namespace {

[[maybe_unused]] constexpr std::size_t kMostStringBytes = 1u << 16;
constexpr std::uint64_t kMostElements = 1u << 20;
constexpr std::uint64_t kMostReplyElements = 4096;

/// base - minus, or 0 where that would be negative.
[[maybe_unused]] constexpr std::uint64_t marshal_count(std::uint64_t base,
                                                       std::uint64_t minus) noexcept {
    return base > minus ? base - minus : 0;
}

}  // namespace

CUresult cuStreamCreate(std::uint64_t phStream, unsigned int Flags) noexcept {
    if ((Flags & ~static_cast<unsigned int>(0x1)) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    wire::cuStreamCreate_call call{};
    call.phStream = phStream;
    call.Flags = convert<std::uint32_t>(Flags);
    const CUresult status = session::post(Op::cuStreamCreate, &call, sizeof call, nullptr,
                                          0);
    return status;
}

CUresult cuStreamDestroy_v2(CUstream hStream) noexcept {
    if (convert<std::uint64_t>(hStream) == 0) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    wire::cuStreamDestroy_v2_call call{};
    call.hStream = convert<std::uint64_t>(hStream);
    const CUresult status = session::post(Op::cuStreamDestroy_v2, &call, sizeof call, nullptr,
                                          0);
    return status;
}

CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N,
    CUstream hStream) noexcept {
    wire::cuMemsetD8Async_call call{};
    call.dstDevice = convert<std::uint64_t>(dstDevice);
    call.uc = convert<std::uint8_t>(uc);
    call.N = convert<std::uint64_t>(N);
    call.hStream = convert<std::uint64_t>(hStream);
    const CUresult status = session::post(Op::cuMemsetD8Async, &call, sizeof call, nullptr,
                                          0);
    return status;
}

CUresult cuGraphAddMemsetNode(CUgraphNode *phGraphNode, CUgraph hGraph,
    const CUgraphNode *dependencies, size_t numDependencies,
    const CUDA_MEMSET_NODE_PARAMS_v1 *memsetParams, CUcontext ctx) noexcept {
    if (phGraphNode == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (convert<std::uint64_t>(hGraph) == 0) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (dependencies == nullptr && static_cast<std::uint64_t>(numDependencies) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (memsetParams == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (convert<std::uint64_t>(ctx) == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    wire::cuGraphAddMemsetNode_call call{};
    const std::uint64_t new_handle = session::mint(cuda::HandleKind::kGraphNode);
    call.phGraphNode = new_handle;
    call.hGraph = convert<std::uint64_t>(hGraph);
    call.numDependencies = convert<std::uint64_t>(numDependencies);
    call.memsetParams = *memsetParams;
    call.ctx = convert<std::uint64_t>(ctx);
    TrailingBuffer trailing;
    if (static_cast<std::uint64_t>(numDependencies) > kMostElements) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    trailing.append(dependencies, static_cast<std::uint64_t>(numDependencies) * 8);
    if (trailing.failed()) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const CUresult status =
        session::call(Op::cuGraphAddMemsetNode, &call, sizeof call, trailing.bytes(), trailing.size(),
                      nullptr, 0, nullptr, 0, nullptr);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    store(phGraphNode, new_handle);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule hmod) noexcept {
    if (count == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (convert<std::uint64_t>(hmod) == 0) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    wire::cuModuleGetFunctionCount_call call{};
    wire::cuModuleGetFunctionCount_reply reply{};
    call.hmod = convert<std::uint64_t>(hmod);
    const CUresult status =
        session::call(Op::cuModuleGetFunctionCount, &call, sizeof call, nullptr, 0,
                      &reply, sizeof reply, nullptr, 0, nullptr);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    store(count, reply.count);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart) noexcept {
    if (convert<std::uint64_t>(hStart) == 0) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    wire::cuEventElapsedTime_call call{};
    wire::cuEventElapsedTime_reply reply{};
    call.hStart = convert<std::uint64_t>(hStart);
    const CUresult status =
        session::call(Op::cuEventElapsedTime, &call, sizeof call, nullptr, 0,
                      &reply, sizeof reply, nullptr, 0, nullptr);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    if (pMilliseconds != nullptr) {
        store(pMilliseconds, reply.pMilliseconds);
    }
    return CUDA_SUCCESS;
}

CUresult cuLinkName(const char *name, const CUuuid *uuid, CUstreamCaptureMode *mode,
    CUmemLocation location, CUevent *event, unsigned int *values, unsigned int count,
    unsigned int rank, const cuuint64_t *strides) noexcept {
    if (name == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (mode == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (event == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (values == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (rank != 1 && rank != 3) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (strides == nullptr && marshal_count(rank, 1) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    wire::cuLinkName_call call{};
    wire::cuLinkName_reply reply{};
    const std::size_t name_length = std::strlen(name);
    if (name_length > kMostStringBytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    call.name_bytes = static_cast<std::uint32_t>(name_length);
    if (uuid != nullptr) {
        call.has_uuid = 1;
        call.uuid = *uuid;
    }
    call.mode = convert<std::uint32_t>(*mode);
    call.location = location;
    call.count = convert<std::uint32_t>(count);
    call.rank = convert<std::uint32_t>(rank);
    TrailingBuffer trailing;
    trailing.append(name, name_length);
    if (marshal_count(rank, 1) > kMostElements) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    trailing.append(strides, marshal_count(rank, 1) * 8);
    if (trailing.failed()) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (static_cast<std::uint64_t>(count) > kMostReplyElements) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::uint32_t reply_trailing_bytes = 0;
    const CUresult status =
        session::call(Op::cuLinkName, &call, sizeof call, trailing.bytes(), trailing.size(),
                      &reply, sizeof reply, values, static_cast<std::uint32_t>(static_cast<std::uint64_t>(count) * 4), &reply_trailing_bytes);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    store(mode, reply.mode);
    store(event, reply.event);
    return CUDA_SUCCESS;
}

}  // namespace gantry::marshal

namespace gantry::cuda_impl {

using cuda::convert;

CUresult cuStreamDestroy_v2(CUstream hStream) noexcept {
    return marshal::cuStreamDestroy_v2(hStream);
}

CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N,
    CUstream hStream) noexcept {
    return marshal::cuMemsetD8Async(dstDevice, uc, N, hStream);
}

CUresult cuGraphAddMemsetNode(CUgraphNode *phGraphNode, CUgraph hGraph,
    const CUgraphNode *dependencies, size_t numDependencies,
    const CUDA_MEMSET_NODE_PARAMS_v1 *memsetParams, CUcontext ctx) noexcept {
    return marshal::cuGraphAddMemsetNode(phGraphNode, hGraph, dependencies, numDependencies,
        memsetParams, ctx);
}

CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule hmod) noexcept {
    return marshal::cuModuleGetFunctionCount(count, hmod);
}

CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart) noexcept {
    return marshal::cuEventElapsedTime(pMilliseconds, hStart);
}

CUresult cuLinkName(const char *name, const CUuuid *uuid, CUstreamCaptureMode *mode,
    CUmemLocation location, CUevent *event, unsigned int *values, unsigned int count,
    unsigned int rank, const cuuint64_t *strides) noexcept {
    return marshal::cuLinkName(name, uuid, mode, location, event, values, count, rank, strides);
}

CUresult cuMemsetD8_v2(DefaultStream default_stream, CUdeviceptr dstDevice, unsigned char uc,
    size_t N) noexcept {
    return cuda_impl::cuMemsetD8Async(dstDevice, uc, N, default_stream_handle(default_stream));
}

}  // namespace gantry::cuda_impl
