// Memory nodes of graphs, and what the device keeps for them.
#include "guest-shim/driver/core/ranges.h"
#include "guest-shim/driver/graph/graph_node.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/wire_structs.h"
#include "proto/cuda/refuse_if.h"

namespace gantry::shim {
namespace {

/// Memory of the device itself, read and written by nobody else.
CUresult check(const CUDA_MEM_ALLOC_NODE_PARAMS& params) {
    if (params.bytesize == 0 || params.poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        (params.accessDescCount != 0 && params.accessDescs == nullptr)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (params.poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        params.poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    GANTRY_REFUSE_IF(session::device_facts(params.poolProps.location.id) == nullptr,
                     CUDA_ERROR_INVALID_DEVICE);
    for (size_t i = 0; i < params.accessDescCount; ++i) {
        const CUmemLocation& location = params.accessDescs[i].location;
        if (location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
            location.id != params.poolProps.location.id) {
            return CUDA_ERROR_NOT_SUPPORTED;
        }
    }
    return CUDA_SUCCESS;
}

void note(std::uint64_t address, std::uint64_t bytes, int device) {
    Range range{};
    range.address = address;
    range.bytes = bytes;
    range.kind = RangeKind::kDeviceAsync;
    range.context = session::current_context();
    range.device = device;
    add_range(&range);
}

}  // namespace
}  // namespace gantry::shim

namespace gantry::cuda_impl {

using namespace gantry::shim;

CUresult cuGraphAddMemAllocNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                const CUgraphNode* dependencies, size_t numDependencies,
                                CUDA_MEM_ALLOC_NODE_PARAMS* nodeParams) noexcept {
    GANTRY_REFUSE_IF(nodeParams == nullptr, CUDA_ERROR_INVALID_VALUE);
    if (const CUresult result = check(*nodeParams); result != CUDA_SUCCESS) {
        return result;
    }
    return add_node(
        phGraphNode, hGraph, CU_GRAPH_NODE_TYPE_MEM_ALLOC, dependencies, numDependencies,
        [&](GraphNode* node) {
            const cuda::wire::cuGraphAddMemAllocNode_call call{
                node->handle, bits(hGraph), nodeParams->bytesize,
                static_cast<std::uint32_t>(numDependencies), 0};
            cuda::wire::cuGraphAddMemAllocNode_reply reply{};
            const CUresult result =
                session::call(cuda::Op::cuGraphAddMemAllocNode, &call, sizeof(call), dependencies,
                              static_cast<std::uint32_t>(numDependencies * sizeof(std::uint64_t)),
                              &reply, sizeof(reply), nullptr, 0, nullptr);
            if (result == CUDA_SUCCESS) {
                nodeParams->dptr = reply.address;
                node->alloc = *nodeParams;
                node->alloc.accessDescs = nullptr;
                node->alloc.accessDescCount = 0;
                note(reply.address, nodeParams->bytesize, nodeParams->poolProps.location.id);
            }
            return result;
        });
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode hNode,
                                      CUDA_MEM_ALLOC_NODE_PARAMS* params_out) noexcept {
    const GraphNode* node = known_node(hNode, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    GANTRY_REFUSE_IF(params_out == nullptr || node == nullptr, CUDA_ERROR_INVALID_VALUE);
    *params_out = node->alloc;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddMemFreeNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                               const CUgraphNode* dependencies, size_t numDependencies,
                               CUdeviceptr dptr) noexcept {
    return add_node(phGraphNode, hGraph, CU_GRAPH_NODE_TYPE_MEM_FREE, dependencies, numDependencies,
                    [&](GraphNode* node) {
                        node->freed = dptr;
                        const cuda::wire::cuGraphAddMemFreeNode_call call{
                            node->handle, bits(hGraph), dptr,
                            static_cast<std::uint32_t>(numDependencies), 0};
                        return session::call(
                            cuda::Op::cuGraphAddMemFreeNode, &call, sizeof(call), dependencies,
                            static_cast<std::uint32_t>(numDependencies * sizeof(std::uint64_t)),
                            nullptr, 0, nullptr, 0, nullptr);
                    });
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode hNode, CUdeviceptr* dptr_out) noexcept {
    const GraphNode* node = known_node(hNode, CU_GRAPH_NODE_TYPE_MEM_FREE);
    GANTRY_REFUSE_IF(dptr_out == nullptr || node == nullptr, CUDA_ERROR_INVALID_VALUE);
    *dptr_out = node->freed;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGraphMemTrim(CUdevice device) noexcept {
    // Memory of graphs is kept as long as they are, and no longer.
    return session::device_facts(device) == nullptr ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

}  // namespace gantry::cuda_impl
