// Graph construction: graphs, nodes of each kind, and their parameters.
#include <algorithm>

#include "host-daemon/softgpu/api/graph_common.h"
#include "host-daemon/softgpu/graph/graph_memory.h"
#include "host-daemon/softgpu/graph/make_operation.h"
#include "host-daemon/softgpu/run/driver.h"
#include "proto/cuda/gen/impl.h"

namespace gantry::cuda_impl {

using softgpu::add_node;
using softgpu::find_node;
using softgpu::Graph;
using softgpu::graph_mutex;
using softgpu::GraphNode;
using softgpu::OperationPtr;
using softgpu::replace_operation;

CUresult cuGraphCreate(CUgraph* phGraph, unsigned int flags) noexcept {
    GANTRY_CU(softgpu::poison());
    if (phGraph == nullptr || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *phGraph = softgpu::publish<CUgraph>(std::make_shared<Graph>());
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph hGraph) noexcept {
    const auto graph = softgpu::find<Graph>(hGraph);
    if (graph == nullptr || graph->is_child) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    graph->retire();
    softgpu::retract(*graph);
    return CUDA_SUCCESS;
}

CUresult cuGraphClone(CUgraph* phGraphClone, CUgraph originalGraph) noexcept {
    const auto graph = softgpu::find<Graph>(originalGraph);
    if (phGraphClone == nullptr || graph == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *phGraphClone = graph->clone()->as<CUgraph>();
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeFindInClone(CUgraphNode* phNode, CUgraphNode hOriginalNode,
                                CUgraph hClonedGraph) noexcept {
    const auto original = softgpu::find<GraphNode>(hOriginalNode);
    const auto clone = softgpu::find<Graph>(hClonedGraph);
    if (phNode == nullptr || original == nullptr || clone == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::lock_guard lock(graph_mutex());
    for (const auto& node : clone->nodes) {
        if (node->clone_of == original.get()) {
            *phNode = node->as<CUgraphNode>();
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

// ---- kernels ------------------------------------------------------------------------------------

CUresult cuGraphAddKernelNode_v2(CUgraphNode* phGraphNode, CUgraph hGraph,
                                 const CUgraphNode* dependencies, size_t numDependencies,
                                 const CUDA_KERNEL_NODE_PARAMS_v2* nodeParams) noexcept {
    GANTRY_CURRENT(context);
    if (nodeParams == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    OperationPtr operation;
    GANTRY_CU(softgpu::make_kernel_operation(context, *nodeParams, {}, operation));
    return add_node(phGraphNode, hGraph, dependencies, nullptr, numDependencies, operation);
}

CUresult cuGraphAddKernelNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                              const CUgraphNode* dependencies, size_t numDependencies,
                              const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) noexcept {
    if (nodeParams == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const CUDA_KERNEL_NODE_PARAMS_v2 wide = softgpu::widen(*nodeParams);
    return cuGraphAddKernelNode_v2(phGraphNode, hGraph, dependencies, numDependencies, &wide);
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode hNode,
                                       CUDA_KERNEL_NODE_PARAMS_v2* nodeParams) noexcept {
    const std::lock_guard lock(graph_mutex());
    const auto node = softgpu::find<GraphNode>(hNode);
    const auto* kernel =
        node == nullptr
            ? nullptr
            : node->operation_as<softgpu::KernelOperation>(CU_GRAPH_NODE_TYPE_KERNEL);
    if (nodeParams == nullptr || kernel == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // The program may read and even write the values through these pointers until the node's
    // parameters are set again; the operation's own bytes are what they point to.
    auto* bytes = const_cast<std::byte*>(kernel->params.data());
    node->parameter_pointers.clear();
    for (const softgpu::ParameterInfo& parameter : kernel->function->info().parameters) {
        node->parameter_pointers.push_back(bytes + parameter.offset_bytes);
    }
    *nodeParams = {};
    const bool is_kernel = softgpu::HandleTable::instance().kind_of(kernel->handle) ==
                           softgpu::ObjectKind::kKernel;
    nodeParams->func = is_kernel ? kernel->function->as<CUfunction>()
                                 : static_cast<CUfunction>(kernel->handle);
    nodeParams->kern = is_kernel ? static_cast<CUkernel>(kernel->handle) : nullptr;
    nodeParams->ctx = kernel->context->as<CUcontext>();
    nodeParams->gridDimX = kernel->grid.x;
    nodeParams->gridDimY = kernel->grid.y;
    nodeParams->gridDimZ = kernel->grid.z;
    nodeParams->blockDimX = kernel->block.x;
    nodeParams->blockDimY = kernel->block.y;
    nodeParams->blockDimZ = kernel->block.z;
    nodeParams->sharedMemBytes = kernel->dynamic_shared_bytes;
    nodeParams->kernelParams =
        node->parameter_pointers.empty() ? nullptr : node->parameter_pointers.data();
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode hNode,
                                    CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) noexcept {
    CUDA_KERNEL_NODE_PARAMS_v2 wide;
    if (nodeParams == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    GANTRY_CU(cuGraphKernelNodeGetParams_v2(hNode, &wide));
    *nodeParams = {wide.func,      wide.gridDimX,  wide.gridDimY,  wide.gridDimZ,
                   wide.blockDimX, wide.blockDimY, wide.blockDimZ, wide.sharedMemBytes,
                   wide.kernelParams, wide.extra};
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode hNode,
                                       const CUDA_KERNEL_NODE_PARAMS_v2* nodeParams) noexcept {
    GANTRY_CURRENT(context);
    const std::lock_guard lock(graph_mutex());
    const auto node = find_node(hNode, CU_GRAPH_NODE_TYPE_KERNEL);
    if (nodeParams == nullptr || node == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto* old = node->operation_as<softgpu::KernelOperation>(CU_GRAPH_NODE_TYPE_KERNEL);
    OperationPtr operation;
    GANTRY_CU(softgpu::make_kernel_operation(context, *nodeParams, old->attributes, operation));
    node->operation = std::move(operation);
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode hNode,
                                    const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) noexcept {
    if (nodeParams == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const CUDA_KERNEL_NODE_PARAMS_v2 wide = softgpu::widen(*nodeParams);
    return cuGraphKernelNodeSetParams_v2(hNode, &wide);
}

namespace {

/// A copy of a kernel operation with one attribute changed.
std::shared_ptr<softgpu::KernelOperation> with_attribute(const softgpu::KernelOperation& old,
                                                         const CUlaunchAttribute& attribute) {
    auto changed = std::make_shared<softgpu::KernelOperation>(old);
    std::erase_if(changed->attributes,
                  [&](const CUlaunchAttribute& each) { return each.id == attribute.id; });
    changed->attributes.push_back(attribute);
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) {
        changed->cooperative = attribute.value.cooperative != 0;
    } else if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
        const auto& dim = attribute.value.clusterDim;
        changed->cluster = {dim.x, dim.y, dim.z};
    }
    return changed;
}

}  // namespace

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                       const CUkernelNodeAttrValue_v1* value) noexcept {
    const std::lock_guard lock(graph_mutex());
    const auto node = find_node(hNode, CU_GRAPH_NODE_TYPE_KERNEL);
    if (node == nullptr || value == nullptr || attr < 0 || attr >= CU_LAUNCH_ATTRIBUTE_MAX) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUlaunchAttribute attribute{};
    attribute.id = attr;
    attribute.value = *value;
    node->operation = with_attribute(
        *node->operation_as<softgpu::KernelOperation>(CU_GRAPH_NODE_TYPE_KERNEL), attribute);
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                       CUkernelNodeAttrValue_v1* value_out) noexcept {
    const std::lock_guard lock(graph_mutex());
    const auto node = find_node(hNode, CU_GRAPH_NODE_TYPE_KERNEL);
    if (node == nullptr || value_out == nullptr || attr < 0 || attr >= CU_LAUNCH_ATTRIBUTE_MAX) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *value_out = {};
    const auto* kernel = node->operation_as<softgpu::KernelOperation>(CU_GRAPH_NODE_TYPE_KERNEL);
    for (const CUlaunchAttribute& attribute : kernel->attributes) {
        if (attribute.id == attr) {
            *value_out = attribute.value;
        }
    }
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode dst, CUgraphNode src) noexcept {
    const std::lock_guard lock(graph_mutex());
    const auto to = find_node(dst, CU_GRAPH_NODE_TYPE_KERNEL);
    const auto from = find_node(src, CU_GRAPH_NODE_TYPE_KERNEL);
    if (to == nullptr || from == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto* kernel = from->operation_as<softgpu::KernelOperation>(CU_GRAPH_NODE_TYPE_KERNEL);
    for (const CUlaunchAttribute& attribute : kernel->attributes) {
        to->operation = with_attribute(
            *to->operation_as<softgpu::KernelOperation>(CU_GRAPH_NODE_TYPE_KERNEL), attribute);
    }
    return CUDA_SUCCESS;
}

// ---- copies, fills, host functions --------------------------------------------------------------

CUresult cuGraphAddMemcpyNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                              const CUgraphNode* dependencies, size_t numDependencies,
                              const CUDA_MEMCPY3D_v2* copyParams, CUcontext) noexcept {
    GANTRY_CU(softgpu::poison());
    if (copyParams == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    OperationPtr operation;
    GANTRY_CU(softgpu::make_memcpy_operation(*copyParams, operation));
    return add_node(phGraphNode, hGraph, dependencies, nullptr, numDependencies, operation);
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode hNode, CUDA_MEMCPY3D_v2* nodeParams) noexcept {
    const std::lock_guard lock(graph_mutex());
    const auto node = find_node(hNode, CU_GRAPH_NODE_TYPE_MEMCPY);
    if (node == nullptr || nodeParams == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *nodeParams = node->operation_as<softgpu::CopyOperation>(CU_GRAPH_NODE_TYPE_MEMCPY)->params;
    return CUDA_SUCCESS;
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode hNode,
                                    const CUDA_MEMCPY3D_v2* nodeParams) noexcept {
    if (nodeParams == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    OperationPtr operation;
    GANTRY_CU(softgpu::make_memcpy_operation(*nodeParams, operation));
    return replace_operation(hNode, operation);
}

CUresult cuGraphAddMemsetNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                              const CUgraphNode* dependencies, size_t numDependencies,
                              const CUDA_MEMSET_NODE_PARAMS_v1* memsetParams, CUcontext) noexcept {
    GANTRY_CU(softgpu::poison());
    if (memsetParams == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    OperationPtr operation;
    GANTRY_CU(softgpu::make_memset_operation(*memsetParams, operation));
    return add_node(phGraphNode, hGraph, dependencies, nullptr, numDependencies, operation);
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode hNode,
                                    CUDA_MEMSET_NODE_PARAMS_v1* nodeParams) noexcept {
    const std::lock_guard lock(graph_mutex());
    const auto node = find_node(hNode, CU_GRAPH_NODE_TYPE_MEMSET);
    if (node == nullptr || nodeParams == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *nodeParams = node->operation_as<softgpu::MemsetOperation>(CU_GRAPH_NODE_TYPE_MEMSET)->params;
    return CUDA_SUCCESS;
}

CUresult cuGraphMemsetNodeSetParams(CUgraphNode hNode,
                                    const CUDA_MEMSET_NODE_PARAMS_v1* nodeParams) noexcept {
    if (nodeParams == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    OperationPtr operation;
    GANTRY_CU(softgpu::make_memset_operation(*nodeParams, operation));
    return replace_operation(hNode, operation);
}

CUresult cuGraphAddHostNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                            const CUgraphNode* dependencies, size_t numDependencies,
                            const CUDA_HOST_NODE_PARAMS_v1* nodeParams) noexcept {
    GANTRY_CU(softgpu::poison());
    if (nodeParams == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    OperationPtr operation;
    GANTRY_CU(softgpu::make_host_operation(*nodeParams, operation));
    return add_node(phGraphNode, hGraph, dependencies, nullptr, numDependencies, operation);
}

CUresult cuGraphHostNodeGetParams(CUgraphNode hNode,
                                  CUDA_HOST_NODE_PARAMS_v1* nodeParams) noexcept {
    const std::lock_guard lock(graph_mutex());
    const auto node = find_node(hNode, CU_GRAPH_NODE_TYPE_HOST);
    if (node == nullptr || nodeParams == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *nodeParams = node->operation_as<softgpu::HostOperation>(CU_GRAPH_NODE_TYPE_HOST)->params;
    return CUDA_SUCCESS;
}

CUresult cuGraphHostNodeSetParams(CUgraphNode hNode,
                                  const CUDA_HOST_NODE_PARAMS_v1* nodeParams) noexcept {
    if (nodeParams == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    OperationPtr operation;
    GANTRY_CU(softgpu::make_host_operation(*nodeParams, operation));
    return replace_operation(hNode, operation);
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
    const std::lock_guard lock(graph_mutex());
    const auto node = find_node(hNode, CU_GRAPH_NODE_TYPE_GRAPH);
    if (node == nullptr || phGraph == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *phGraph = node->operation_as<softgpu::ChildGraphOperation>(CU_GRAPH_NODE_TYPE_GRAPH)
                   ->graph->as<CUgraph>();
    return CUDA_SUCCESS;
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
    const std::lock_guard lock(graph_mutex());
    const auto node = find_node(handle, type);
    if (node == nullptr || event == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *event = node->operation_as<softgpu::EventOperation>(type)->event->as<CUevent>();
    return CUDA_SUCCESS;
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
    GANTRY_CU(softgpu::poison());
    if (nodeParams == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    OperationPtr operation;
    GANTRY_CU(softgpu::make_batch_operation(*nodeParams, operation));
    return add_node(phGraphNode, hGraph, dependencies, nullptr, numDependencies, operation);
}

CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode hNode,
                                        CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams_out) noexcept {
    const std::lock_guard lock(graph_mutex());
    const auto node = find_node(hNode, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
    if (node == nullptr || nodeParams_out == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto* batch =
        node->operation_as<softgpu::BatchMemoryOperation>(CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
    *nodeParams_out = {batch->context, static_cast<unsigned>(batch->steps.size()),
                       const_cast<CUstreamBatchMemOpParams*>(batch->steps.data()), batch->flags};
    return CUDA_SUCCESS;
}

CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode hNode,
                                        const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) noexcept {
    if (nodeParams == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    OperationPtr operation;
    GANTRY_CU(softgpu::make_batch_operation(*nodeParams, operation));
    return replace_operation(hNode, operation);
}

// ---- memory nodes -------------------------------------------------------------------------------

CUresult cuGraphAddMemAllocNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                const CUgraphNode* dependencies, size_t numDependencies,
                                CUDA_MEM_ALLOC_NODE_PARAMS* nodeParams) noexcept {
    GANTRY_CURRENT(context);
    if (nodeParams == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    OperationPtr operation;
    GANTRY_CU(softgpu::make_alloc_operation(*context, *nodeParams, operation));
    return add_node(phGraphNode, hGraph, dependencies, nullptr, numDependencies, operation);
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode hNode,
                                      CUDA_MEM_ALLOC_NODE_PARAMS* params_out) noexcept {
    const std::lock_guard lock(graph_mutex());
    const auto node = find_node(hNode, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    if (node == nullptr || params_out == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *params_out =
        node->operation_as<softgpu::AllocOperation>(CU_GRAPH_NODE_TYPE_MEM_ALLOC)->params;
    return CUDA_SUCCESS;
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
    const std::lock_guard lock(graph_mutex());
    const auto node = find_node(hNode, CU_GRAPH_NODE_TYPE_MEM_FREE);
    if (node == nullptr || dptr_out == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *dptr_out = node->operation_as<softgpu::FreeOperation>(CU_GRAPH_NODE_TYPE_MEM_FREE)->address;
    return CUDA_SUCCESS;
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
    const bool high = attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH ||
                      attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
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
    if (nodeParams == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    OperationPtr operation;
    GANTRY_CU(softgpu::make_operation(context, *nodeParams, operation));
    return add_node(phGraphNode, hGraph, dependencies, dependencyData, numDependencies,
                    operation);
}

CUresult cuGraphAddNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                        size_t numDependencies, CUgraphNodeParams* nodeParams) noexcept {
    return cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, nullptr, numDependencies,
                             nodeParams);
}

CUresult cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams* nodeParams) noexcept {
    GANTRY_CURRENT(context);
    if (nodeParams == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    OperationPtr operation;
    GANTRY_CU(softgpu::make_operation(context, *nodeParams, operation));
    return replace_operation(hNode, operation);
}

}  // namespace gantry::cuda_impl
