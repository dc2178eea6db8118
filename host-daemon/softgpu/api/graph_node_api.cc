// Graph construction: graphs, nodes of each kind but kernels, and their parameters.
#include "host-daemon/softgpu/api/graph_common.h"
#include "host-daemon/softgpu/core/driver.h"
#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/core/thread_state.h"
#include "host-daemon/softgpu/graph/graph_memory.h"
#include "host-daemon/softgpu/graph/make_operation.h"
#include "proto/cuda/gen/impl.h"

namespace gantry::cuda_impl {

using softgpu::add_node;
using softgpu::find_node;
using softgpu::Graph;
using softgpu::GraphLock;
using softgpu::GraphNode;
using softgpu::OperationPtr;
using softgpu::replace_operation;

namespace {

/// Makes an operation of a node's parameters.
template <typename Params>
using Maker = CUresult (*)(const Params&, OperationPtr&);

/// Adds a node that does what `make` makes of the parameters.
template <typename Params>
CUresult add_made(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                  std::size_t count, const Params* params, Maker<Params> make) {
    GANTRY_CU(softgpu::poison());
    GANTRY_REFUSE_IF(params == nullptr, CUDA_ERROR_INVALID_VALUE);
    OperationPtr operation;
    GANTRY_CU(make(*params, operation));
    return add_node(out, graph, dependencies, nullptr, count, operation);
}

/// Lets a node do what `make` makes of other parameters.
template <typename Params>
CUresult replace_made(CUgraphNode node, const Params* params, Maker<Params> make) {
    GANTRY_REFUSE_IF(params == nullptr, CUDA_ERROR_INVALID_VALUE);
    OperationPtr operation;
    GANTRY_CU(make(*params, operation));
    return replace_operation(node, operation);
}

/// Stores what `read` finds in the operation of a node, which must be of this type.
template <typename Operation, typename Out, typename Read>
CUresult read_node(CUgraphNode handle, CUgraphNodeType type, Out* out, Read read) {
    const GraphLock lock;
    const auto node = find_node(handle, type);
    GANTRY_REFUSE_IF(node == nullptr || out == nullptr, CUDA_ERROR_INVALID_VALUE);
    *out = read(*node->template operation_as<Operation>(type));
    return CUDA_SUCCESS;
}

constexpr auto kParamsOf = [](const auto& operation) { return operation.params; };

}  // namespace

CUresult cuGraphCreate(CUgraph* phGraph, unsigned int flags) noexcept {
    GANTRY_CU(softgpu::poison());
    GANTRY_REFUSE_IF(phGraph == nullptr || flags != 0, CUDA_ERROR_INVALID_VALUE);
    *phGraph = softgpu::publish<CUgraph>(std::make_shared<Graph>());
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph hGraph) noexcept {
    const auto graph = softgpu::find<Graph>(hGraph);
    GANTRY_REFUSE_IF(graph == nullptr || graph->is_child, CUDA_ERROR_INVALID_VALUE);
    {
        const GraphLock lock;
        graph->end_handles(lock);
    }
    softgpu::retract(*graph);
    return CUDA_SUCCESS;
}

CUresult cuGraphClone(CUgraph* phGraphClone, CUgraph originalGraph) noexcept {
    const auto graph = softgpu::find<Graph>(originalGraph);
    GANTRY_REFUSE_IF(phGraphClone == nullptr || graph == nullptr, CUDA_ERROR_INVALID_VALUE);
    const GraphLock lock;
    GANTRY_REFUSE_IF(graph->is_conditional(lock), CUDA_ERROR_NOT_SUPPORTED);
    *phGraphClone = graph->clone(lock)->as<CUgraph>();
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeFindInClone(CUgraphNode* phNode, CUgraphNode hOriginalNode,
                                CUgraph hClonedGraph) noexcept {
    const auto original = softgpu::find<GraphNode>(hOriginalNode);
    const auto clone = softgpu::find<Graph>(hClonedGraph);
    GANTRY_REFUSE_IF(phNode == nullptr || original == nullptr || clone == nullptr,
                     CUDA_ERROR_INVALID_VALUE);
    const GraphLock lock;
    for (const auto& node : clone->nodes) {
        if (node->clone_of == original.get()) {
            *phNode = node->as<CUgraphNode>();
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

// ---- copies, fills, host functions --------------------------------------------------------------

CUresult cuGraphAddMemcpyNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                              const CUgraphNode* dependencies, size_t numDependencies,
                              const CUDA_MEMCPY3D_v2* copyParams, CUcontext) noexcept {
    return add_made(phGraphNode, hGraph, dependencies, numDependencies, copyParams,
                    softgpu::make_memcpy_operation);
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode hNode, CUDA_MEMCPY3D_v2* nodeParams) noexcept {
    return read_node<softgpu::CopyOperation>(hNode, CU_GRAPH_NODE_TYPE_MEMCPY, nodeParams,
                                             kParamsOf);
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode hNode,
                                    const CUDA_MEMCPY3D_v2* nodeParams) noexcept {
    return replace_made(hNode, nodeParams, softgpu::make_memcpy_operation);
}

CUresult cuGraphAddMemsetNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                              const CUgraphNode* dependencies, size_t numDependencies,
                              const CUDA_MEMSET_NODE_PARAMS_v1* memsetParams, CUcontext) noexcept {
    return add_made(phGraphNode, hGraph, dependencies, numDependencies, memsetParams,
                    softgpu::make_memset_operation);
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode hNode,
                                    CUDA_MEMSET_NODE_PARAMS_v1* nodeParams) noexcept {
    return read_node<softgpu::MemsetOperation>(hNode, CU_GRAPH_NODE_TYPE_MEMSET, nodeParams,
                                               kParamsOf);
}

CUresult cuGraphMemsetNodeSetParams(CUgraphNode hNode,
                                    const CUDA_MEMSET_NODE_PARAMS_v1* nodeParams) noexcept {
    return replace_made(hNode, nodeParams, softgpu::make_memset_operation);
}

CUresult cuGraphAddHostNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                            const CUgraphNode* dependencies, size_t numDependencies,
                            const CUDA_HOST_NODE_PARAMS_v1* nodeParams) noexcept {
    return add_made(phGraphNode, hGraph, dependencies, numDependencies, nodeParams,
                    softgpu::make_host_operation);
}

CUresult cuGraphHostNodeGetParams(CUgraphNode hNode,
                                  CUDA_HOST_NODE_PARAMS_v1* nodeParams) noexcept {
    return read_node<softgpu::HostOperation>(hNode, CU_GRAPH_NODE_TYPE_HOST, nodeParams, kParamsOf);
}

CUresult cuGraphHostNodeSetParams(CUgraphNode hNode,
                                  const CUDA_HOST_NODE_PARAMS_v1* nodeParams) noexcept {
    return replace_made(hNode, nodeParams, softgpu::make_host_operation);
}

// ---- child graphs, empty nodes, events, memory operations ---------------------------------------

CUresult cuGraphAddChildGraphNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                  const CUgraphNode* dependencies, size_t numDependencies,
                                  CUgraph childGraph) noexcept {
    GANTRY_CU(softgpu::poison());
    OperationPtr operation;
    GANTRY_CU(softgpu::make_child_operation(childGraph, operation));
    return add_node(phGraphNode, hGraph, dependencies, nullptr, numDependencies, operation);
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, CUgraph* phGraph) noexcept {
    return read_node<softgpu::ChildGraphOperation>(
        hNode, CU_GRAPH_NODE_TYPE_GRAPH, phGraph,
        [](const softgpu::ChildGraphOperation& child) { return child.graph->as<CUgraph>(); });
}

CUresult cuGraphAddEmptyNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                             const CUgraphNode* dependencies, size_t numDependencies) noexcept {
    GANTRY_CU(softgpu::poison());
    return add_node(phGraphNode, hGraph, dependencies, nullptr, numDependencies,
                    std::make_shared<softgpu::EmptyOperation>());
}

namespace {

CUresult add_event_node(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                        size_t count, CUgraphNodeType type, CUevent event) {
    GANTRY_CU(softgpu::poison());
    OperationPtr operation;
    GANTRY_CU(softgpu::make_event_operation(type, event, operation));
    return add_node(out, graph, dependencies, nullptr, count, operation);
}

CUresult event_of_node(CUgraphNode handle, CUgraphNodeType type, CUevent* event) {
    return read_node<softgpu::EventOperation>(
        handle, type, event,
        [](const softgpu::EventOperation& operation) { return operation.event->as<CUevent>(); });
}

CUresult set_event_of_node(CUgraphNode handle, CUgraphNodeType type, CUevent event) {
    OperationPtr operation;
    GANTRY_CU(softgpu::make_event_operation(type, event, operation));
    return replace_operation(handle, operation);
}

}  // namespace

CUresult cuGraphAddEventRecordNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                   const CUgraphNode* dependencies, size_t numDependencies,
                                   CUevent event) noexcept {
    return add_event_node(phGraphNode, hGraph, dependencies, numDependencies,
                          CU_GRAPH_NODE_TYPE_EVENT_RECORD, event);
}

CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode hNode, CUevent* event_out) noexcept {
    return event_of_node(hNode, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event_out);
}

CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode hNode, CUevent event) noexcept {
    return set_event_of_node(hNode, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event);
}

CUresult cuGraphAddEventWaitNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                 const CUgraphNode* dependencies, size_t numDependencies,
                                 CUevent event) noexcept {
    return add_event_node(phGraphNode, hGraph, dependencies, numDependencies,
                          CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
}

CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode hNode, CUevent* event_out) noexcept {
    return event_of_node(hNode, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event_out);
}

CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode hNode, CUevent event) noexcept {
    return set_event_of_node(hNode, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
}

CUresult cuGraphAddBatchMemOpNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                  const CUgraphNode* dependencies, size_t numDependencies,
                                  const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) noexcept {
    return add_made(phGraphNode, hGraph, dependencies, numDependencies, nodeParams,
                    softgpu::make_batch_operation);
}

CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode hNode,
                                        CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams_out) noexcept {
    return read_node<softgpu::BatchMemoryOperation>(
        hNode, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, nodeParams_out,
        [](const softgpu::BatchMemoryOperation& batch) {
            return CUDA_BATCH_MEM_OP_NODE_PARAMS{
                batch.context, static_cast<unsigned>(batch.steps.size()),
                const_cast<CUstreamBatchMemOpParams*>(batch.steps.data()), batch.flags};
        });
}

CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode hNode,
                                        const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) noexcept {
    return replace_made(hNode, nodeParams, softgpu::make_batch_operation);
}

// ---- memory nodes -------------------------------------------------------------------------------

CUresult cuGraphAddMemAllocNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                const CUgraphNode* dependencies, size_t numDependencies,
                                CUDA_MEM_ALLOC_NODE_PARAMS* nodeParams) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_REFUSE_IF(nodeParams == nullptr, CUDA_ERROR_INVALID_VALUE);
    OperationPtr operation;
    GANTRY_CU(softgpu::make_alloc_operation(*context, *nodeParams, operation));
    return add_node(phGraphNode, hGraph, dependencies, nullptr, numDependencies, operation);
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode hNode,
                                      CUDA_MEM_ALLOC_NODE_PARAMS* params_out) noexcept {
    return read_node<softgpu::AllocOperation>(hNode, CU_GRAPH_NODE_TYPE_MEM_ALLOC, params_out,
                                              kParamsOf);
}

CUresult cuGraphAddMemFreeNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                               const CUgraphNode* dependencies, size_t numDependencies,
                               CUdeviceptr dptr) noexcept {
    GANTRY_CU(softgpu::poison());
    OperationPtr operation;
    GANTRY_CU(softgpu::make_free_operation(dptr, operation));
    return add_node(phGraphNode, hGraph, dependencies, nullptr, numDependencies, operation);
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode hNode, CUdeviceptr* dptr_out) noexcept {
    return read_node<softgpu::FreeOperation>(
        hNode, CU_GRAPH_NODE_TYPE_MEM_FREE, dptr_out,
        [](const softgpu::FreeOperation& operation) { return operation.address; });
}

CUresult cuDeviceGraphMemTrim(CUdevice device) noexcept {
    return softgpu::device_of(device) == nullptr ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr,
                                      void* value) noexcept {
    if (softgpu::device_of(device) == nullptr || value == nullptr) {
        return value == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE;
    }
    const softgpu::GraphMemoryUse use = softgpu::graph_memory_use(device);
    auto* out = static_cast<cuuint64_t*>(value);
    switch (attr) {
        case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: *out = use.used; return CUDA_SUCCESS;
        case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: *out = use.used_high; return CUDA_SUCCESS;
        case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: *out = use.reserved; return CUDA_SUCCESS;
        case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: *out = use.reserved_high; return CUDA_SUCCESS;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr,
                                      void* value) noexcept {
    const bool high =
        attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
    if (softgpu::device_of(device) == nullptr || value == nullptr || !high ||
        *static_cast<cuuint64_t*>(value) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    softgpu::reset_graph_memory_high(device, attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH);
    return CUDA_SUCCESS;
}

// ---- any kind -----------------------------------------------------------------------------------

CUresult cuGraphAddNode_v2(CUgraphNode* phGraphNode, CUgraph hGraph,
                           const CUgraphNode* dependencies, const CUgraphEdgeData* dependencyData,
                           size_t numDependencies, CUgraphNodeParams* nodeParams) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_REFUSE_IF(nodeParams == nullptr, CUDA_ERROR_INVALID_VALUE);
    OperationPtr operation;
    GANTRY_CU(softgpu::make_operation(context, *nodeParams, operation));
    return add_node(phGraphNode, hGraph, dependencies, dependencyData, numDependencies, operation);
}

CUresult cuGraphAddNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                        size_t numDependencies, CUgraphNodeParams* nodeParams) noexcept {
    return cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, nullptr, numDependencies,
                             nodeParams);
}

CUresult cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams* nodeParams) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_REFUSE_IF(nodeParams == nullptr, CUDA_ERROR_INVALID_VALUE);
    OperationPtr operation;
    GANTRY_CU(softgpu::make_operation(context, *nodeParams, operation));
    return replace_operation(hNode, operation);
}

}  // namespace gantry::cuda_impl
