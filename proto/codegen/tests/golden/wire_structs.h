// Generated from proto/cuda/driver_api by proto/codegen; do not edit.
// Fixed parts of commands and replies, little-endian, padding named.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "proto/cuda/abi.h"
#include "proto/cuda/wire_hand.h"

namespace gantry::cuda::wire {

/// For commands without arguments and replies without a fixed part: no bytes cross.
struct NoFields {};

/// Bytes that a fixed part takes on the wire.
template <typename T>
inline constexpr std::size_t kWireBytes = std::is_empty_v<T> ? 0 : sizeof(T);

static_assert(sizeof(CUDA_ARRAY3D_DESCRIPTOR_v2) == 40 && alignof(CUDA_ARRAY3D_DESCRIPTOR_v2) == 8);
static_assert(sizeof(CUDA_ARRAY_DESCRIPTOR_v2) == 24 && alignof(CUDA_ARRAY_DESCRIPTOR_v2) == 8);
static_assert(sizeof(CUDA_ARRAY_MEMORY_REQUIREMENTS_v1) == 32 && alignof(CUDA_ARRAY_MEMORY_REQUIREMENTS_v1) == 8);
static_assert(sizeof(CUDA_ARRAY_SPARSE_PROPERTIES_v1) == 48 && alignof(CUDA_ARRAY_SPARSE_PROPERTIES_v1) == 8);
static_assert(sizeof(CUDA_HOST_NODE_PARAMS_v1) == 16 && alignof(CUDA_HOST_NODE_PARAMS_v1) == 8);
static_assert(sizeof(CUDA_MEMCPY2D_v2) == 128 && alignof(CUDA_MEMCPY2D_v2) == 8);
static_assert(sizeof(CUDA_MEMCPY3D) == 200 && alignof(CUDA_MEMCPY3D) == 8);
static_assert(sizeof(CUDA_MEMCPY3D_PEER_v1) == 200 && alignof(CUDA_MEMCPY3D_PEER_v1) == 8);
static_assert(sizeof(CUDA_MEMCPY3D_v2) == 200 && alignof(CUDA_MEMCPY3D_v2) == 8);
static_assert(sizeof(CUDA_MEMSET_NODE_PARAMS_v1) == 40 && alignof(CUDA_MEMSET_NODE_PARAMS_v1) == 8);
static_assert(sizeof(CUDA_RESOURCE_DESC_v1) == 144 && alignof(CUDA_RESOURCE_DESC_v1) == 8);
static_assert(sizeof(CUDA_RESOURCE_VIEW_DESC_v1) == 112 && alignof(CUDA_RESOURCE_VIEW_DESC_v1) == 8);
static_assert(sizeof(CUDA_TEXTURE_DESC_v1) == 104 && alignof(CUDA_TEXTURE_DESC_v1) == 4);
static_assert(sizeof(CUdevResource) == 144 && alignof(CUdevResource) == 4);
static_assert(sizeof(CUexecAffinityParam) == 8 && alignof(CUexecAffinityParam) == 4);
static_assert(sizeof(CUgraphEdgeData) == 8 && alignof(CUgraphEdgeData) == 1);
static_assert(sizeof(CUgraphNodeParams) == 256 && alignof(CUgraphNodeParams) == 8);
static_assert(sizeof(CUkernelNodeAttrValue_v1) == 64 && alignof(CUkernelNodeAttrValue_v1) == 8);
static_assert(sizeof(CUmemAccessDesc_v1) == 12 && alignof(CUmemAccessDesc_v1) == 4);
static_assert(sizeof(CUmemAllocationProp_v1) == 32 && alignof(CUmemAllocationProp_v1) == 8);
static_assert(sizeof(CUmemLocation) == 8 && alignof(CUmemLocation) == 4);
static_assert(sizeof(CUmemLocation_v1) == 8 && alignof(CUmemLocation_v1) == 4);
static_assert(sizeof(CUmemPoolProps_v1) == 88 && alignof(CUmemPoolProps_v1) == 8);
static_assert(sizeof(CUstreamAttrValue_v1) == 64 && alignof(CUstreamAttrValue_v1) == 8);
static_assert(sizeof(CUstreamBatchMemOpParams) == 48 && alignof(CUstreamBatchMemOpParams) == 8);
static_assert(sizeof(CUuuid) == 16 && alignof(CUuuid) == 1);

// 65 cuStreamCreate (async)
struct cuStreamCreate_call {
    std::uint64_t phStream;
    std::uint32_t Flags;
    std::uint32_t pad_0;
};
static_assert(sizeof(cuStreamCreate_call) == 16);
static_assert(offsetof(cuStreamCreate_call, phStream) == 0);
static_assert(offsetof(cuStreamCreate_call, Flags) == 8);
static_assert(std::is_trivially_copyable_v<cuStreamCreate_call>);
using cuStreamCreate_reply = NoFields;

// 66 cuStreamDestroy_v2 (async)
struct cuStreamDestroy_v2_call {
    std::uint64_t hStream;
};
static_assert(sizeof(cuStreamDestroy_v2_call) == 8);
static_assert(offsetof(cuStreamDestroy_v2_call, hStream) == 0);
static_assert(std::is_trivially_copyable_v<cuStreamDestroy_v2_call>);
using cuStreamDestroy_v2_reply = NoFields;

// 68 cuMemsetD8Async (async)
struct cuMemsetD8Async_call {
    std::uint64_t dstDevice;
    std::uint8_t uc;
    std::uint8_t pad_0;
    std::uint8_t pad_1;
    std::uint8_t pad_2;
    std::uint32_t pad_3;
    std::uint64_t N;
    std::uint64_t hStream;
};
static_assert(sizeof(cuMemsetD8Async_call) == 32);
static_assert(offsetof(cuMemsetD8Async_call, dstDevice) == 0);
static_assert(offsetof(cuMemsetD8Async_call, uc) == 8);
static_assert(offsetof(cuMemsetD8Async_call, N) == 16);
static_assert(offsetof(cuMemsetD8Async_call, hStream) == 24);
static_assert(std::is_trivially_copyable_v<cuMemsetD8Async_call>);
using cuMemsetD8Async_reply = NoFields;

// 71 cuGraphAddMemsetNode (sync)
// Trails: dependencies, 8 bytes * numDependencies, padded to 8.
struct cuGraphAddMemsetNode_call {
    std::uint64_t phGraphNode;
    std::uint64_t hGraph;
    std::uint64_t numDependencies;
    CUDA_MEMSET_NODE_PARAMS_v1 memsetParams;
    std::uint64_t ctx;
};
static_assert(sizeof(cuGraphAddMemsetNode_call) == 72);
static_assert(offsetof(cuGraphAddMemsetNode_call, phGraphNode) == 0);
static_assert(offsetof(cuGraphAddMemsetNode_call, hGraph) == 8);
static_assert(offsetof(cuGraphAddMemsetNode_call, numDependencies) == 16);
static_assert(offsetof(cuGraphAddMemsetNode_call, memsetParams) == 24);
static_assert(offsetof(cuGraphAddMemsetNode_call, ctx) == 64);
static_assert(std::is_trivially_copyable_v<cuGraphAddMemsetNode_call>);
using cuGraphAddMemsetNode_reply = NoFields;

// 72 cuMemRangeGetAttribute (sync)
// Trails: data_bytes * 2: nothing that a real call has.
struct cuMemRangeGetAttribute_call {
    std::uint64_t devPtr;
    std::uint64_t count;
    std::uint32_t attribute;
    std::uint32_t data_bytes;
};
static_assert(sizeof(cuMemRangeGetAttribute_call) == 24);
static_assert(offsetof(cuMemRangeGetAttribute_call, devPtr) == 0);
static_assert(offsetof(cuMemRangeGetAttribute_call, count) == 8);
static_assert(offsetof(cuMemRangeGetAttribute_call, attribute) == 16);
static_assert(offsetof(cuMemRangeGetAttribute_call, data_bytes) == 20);
static_assert(std::is_trivially_copyable_v<cuMemRangeGetAttribute_call>);
// Reply trails: data_bytes bytes.
using cuMemRangeGetAttribute_reply = NoFields;

// 73 cuLaunchKernel (async): see proto/cuda/wire_hand.h
using cuLaunchKernel_call = wire_hand::LaunchCall;
using cuLaunchKernel_reply = NoFields;
static_assert(sizeof(cuLaunchKernel_call) % 8 == 0);

// 76 cuModuleGetFunctionCount (sync)
struct cuModuleGetFunctionCount_call {
    std::uint64_t hmod;
};
static_assert(sizeof(cuModuleGetFunctionCount_call) == 8);
static_assert(offsetof(cuModuleGetFunctionCount_call, hmod) == 0);
static_assert(std::is_trivially_copyable_v<cuModuleGetFunctionCount_call>);
struct cuModuleGetFunctionCount_reply {
    std::uint32_t count;
    std::uint32_t pad_0;
};
static_assert(sizeof(cuModuleGetFunctionCount_reply) == 8);
static_assert(offsetof(cuModuleGetFunctionCount_reply, count) == 0);
static_assert(std::is_trivially_copyable_v<cuModuleGetFunctionCount_reply>);

// 77 cuEventElapsedTime (sync)
struct cuEventElapsedTime_call {
    std::uint64_t hStart;
};
static_assert(sizeof(cuEventElapsedTime_call) == 8);
static_assert(offsetof(cuEventElapsedTime_call, hStart) == 0);
static_assert(std::is_trivially_copyable_v<cuEventElapsedTime_call>);
struct cuEventElapsedTime_reply {
    float pMilliseconds;
    std::uint32_t pad_0;
};
static_assert(sizeof(cuEventElapsedTime_reply) == 8);
static_assert(offsetof(cuEventElapsedTime_reply, pMilliseconds) == 0);
static_assert(std::is_trivially_copyable_v<cuEventElapsedTime_reply>);

// 78 cuLinkName (sync)
// Trails: name, 1 bytes * name_bytes, padded to 8.
// Trails: strides, 8 bytes * rank-1, padded to 8.
struct cuLinkName_call {
    std::uint32_t name_bytes;
    std::uint32_t has_uuid;
    CUuuid uuid;
    std::uint32_t mode;
    CUmemLocation location;
    std::uint32_t count;
    std::uint32_t rank;
    std::uint32_t pad_0;
};
static_assert(sizeof(cuLinkName_call) == 48);
static_assert(offsetof(cuLinkName_call, name_bytes) == 0);
static_assert(offsetof(cuLinkName_call, has_uuid) == 4);
static_assert(offsetof(cuLinkName_call, uuid) == 8);
static_assert(offsetof(cuLinkName_call, mode) == 24);
static_assert(offsetof(cuLinkName_call, location) == 28);
static_assert(offsetof(cuLinkName_call, count) == 36);
static_assert(offsetof(cuLinkName_call, rank) == 40);
static_assert(std::is_trivially_copyable_v<cuLinkName_call>);
// Reply trails: values, 4 bytes * count.
struct cuLinkName_reply {
    std::uint32_t mode;
    std::uint32_t pad_0;
    std::uint64_t event;
};
static_assert(sizeof(cuLinkName_reply) == 16);
static_assert(offsetof(cuLinkName_reply, mode) == 0);
static_assert(offsetof(cuLinkName_reply, event) == 8);
static_assert(std::is_trivially_copyable_v<cuLinkName_reply>);


}  // namespace gantry::cuda::wire
