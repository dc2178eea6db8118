// Kernel nodes of graphs: their parameters and launch attributes.
#include <algorithm>

#include "host-daemon/softgpu/api/graph_common.h"
#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/core/thread_state.h"
#include "host-daemon/softgpu/graph/make_operation.h"
#include "host-daemon/softgpu/streams/launch.h"
#include "proto/cuda/gen/impl.h"

namespace gantry::cuda_impl {

using softgpu::add_node;
using softgpu::find_node;
using softgpu::GraphLock;
using softgpu::GraphNode;
using softgpu::OperationPtr;

CUresult cuGraphAddKernelNode_v2(CUgraphNode* phGraphNode, CUgraph hGraph,
                                 const CUgraphNode* dependencies, size_t numDependencies,
                                 const CUDA_KERNEL_NODE_PARAMS_v2* nodeParams) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_REFUSE_IF(nodeParams == nullptr, CUDA_ERROR_INVALID_VALUE);
    OperationPtr operation;
    GANTRY_CU(softgpu::make_kernel_operation(context, *nodeParams, {}, operation));
    return add_node(phGraphNode, hGraph, dependencies, nullptr, numDependencies, operation);
}

CUresult cuGraphAddKernelNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                              const CUgraphNode* dependencies, size_t numDependencies,
                              const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) noexcept {
    GANTRY_REFUSE_IF(nodeParams == nullptr, CUDA_ERROR_INVALID_VALUE);
    const CUDA_KERNEL_NODE_PARAMS_v2 wide = softgpu::widen(*nodeParams);
    return cuGraphAddKernelNode_v2(phGraphNode, hGraph, dependencies, numDependencies, &wide);
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode hNode,
                                       CUDA_KERNEL_NODE_PARAMS_v2* nodeParams) noexcept {
    const GraphLock lock;
    const auto node = softgpu::find<GraphNode>(hNode);
    const auto* kernel =
        node == nullptr ? nullptr
                        : node->operation_as<softgpu::KernelOperation>(CU_GRAPH_NODE_TYPE_KERNEL);
    GANTRY_REFUSE_IF(nodeParams == nullptr || kernel == nullptr, CUDA_ERROR_INVALID_VALUE);
    *nodeParams = {};
    nodeParams->func = kernel->function->as<CUfunction>();
    nodeParams->kern = kernel->function->library_kernel.load();
    nodeParams->ctx = kernel->context->as<CUcontext>();
    nodeParams->gridDimX = kernel->grid.x;
    nodeParams->gridDimY = kernel->grid.y;
    nodeParams->gridDimZ = kernel->grid.z;
    nodeParams->blockDimX = kernel->block.x;
    nodeParams->blockDimY = kernel->block.y;
    nodeParams->blockDimZ = kernel->block.z;
    nodeParams->sharedMemBytes = kernel->dynamic_shared_bytes;
    nodeParams->kernelParams = node->shown_arguments.show(*kernel);
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode hNode,
                                    CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) noexcept {
    CUDA_KERNEL_NODE_PARAMS_v2 wide;
    GANTRY_REFUSE_IF(nodeParams == nullptr, CUDA_ERROR_INVALID_VALUE);
    GANTRY_CU(cuGraphKernelNodeGetParams_v2(hNode, &wide));
    *nodeParams = {wide.func,         wide.gridDimX,  wide.gridDimY,  wide.gridDimZ,
                   wide.blockDimX,    wide.blockDimY, wide.blockDimZ, wide.sharedMemBytes,
                   wide.kernelParams, wide.extra};
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode hNode,
                                       const CUDA_KERNEL_NODE_PARAMS_v2* nodeParams) noexcept {
    GANTRY_CURRENT(context);
    const GraphLock lock;
    const auto node = find_node(hNode, CU_GRAPH_NODE_TYPE_KERNEL);
    GANTRY_REFUSE_IF(nodeParams == nullptr || node == nullptr, CUDA_ERROR_INVALID_VALUE);
    const auto* old = node->operation_as<softgpu::KernelOperation>(CU_GRAPH_NODE_TYPE_KERNEL);
    OperationPtr operation;
    GANTRY_CU(softgpu::make_kernel_operation(context, *nodeParams, old->attributes, operation));
    node->set_operation(lock, std::move(operation));
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode hNode,
                                    const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) noexcept {
    GANTRY_REFUSE_IF(nodeParams == nullptr, CUDA_ERROR_INVALID_VALUE);
    const CUDA_KERNEL_NODE_PARAMS_v2 wide = softgpu::widen(*nodeParams);
    return cuGraphKernelNodeSetParams_v2(hNode, &wide);
}

namespace {

/// Attributes of launches that a kernel node has too.
bool is_of_nodes(CUkernelNodeAttrID attr) {
    switch (static_cast<int>(attr)) {
        case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
        case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        case CU_LAUNCH_ATTRIBUTE_PRIORITY:
        case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
        case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
        case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
        case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
        case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        case CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING: return true;
        default: return false;
    }
}

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
    const GraphLock lock;
    const auto node = find_node(hNode, CU_GRAPH_NODE_TYPE_KERNEL);
    GANTRY_REFUSE_IF(node == nullptr || value == nullptr || !is_of_nodes(attr),
                     CUDA_ERROR_INVALID_VALUE);
    CUlaunchAttribute attribute{};
    attribute.id = attr;
    attribute.value = *value;
    if (attr == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE &&
        value->deviceUpdatableKernelNode.deviceUpdatable == 0) {
        return CUDA_SUCCESS;
    }
    GANTRY_CU(softgpu::check_attribute(attribute));
    const auto& dim = value->clusterDim;
    if (attr == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION && (dim.x != 1 || dim.y != 1 || dim.z != 1)) {
        return std::uint64_t{dim.x} * dim.y * dim.z == 0 ? CUDA_ERROR_INVALID_CLUSTER_SIZE
                                                         : CUDA_ERROR_NOT_SUPPORTED;
    }
    node->set_operation(
        lock,
        with_attribute(*node->operation_as<softgpu::KernelOperation>(CU_GRAPH_NODE_TYPE_KERNEL),
                       attribute));
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                       CUkernelNodeAttrValue_v1* value_out) noexcept {
    const GraphLock lock;
    const auto node = find_node(hNode, CU_GRAPH_NODE_TYPE_KERNEL);
    // NVLink scheduling is set and not told, as with driver 580 on an H100.
    if (node == nullptr || value_out == nullptr || !is_of_nodes(attr) ||
        attr == CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING) {
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
    const GraphLock lock;
    const auto to = find_node(dst, CU_GRAPH_NODE_TYPE_KERNEL);
    const auto from = find_node(src, CU_GRAPH_NODE_TYPE_KERNEL);
    GANTRY_REFUSE_IF(to == nullptr || from == nullptr, CUDA_ERROR_INVALID_VALUE);
    // By value: the two may be one node, whose operation the first attribute replaces.
    const std::vector<CUlaunchAttribute> attributes =
        from->operation_as<softgpu::KernelOperation>(CU_GRAPH_NODE_TYPE_KERNEL)->attributes;
    for (const CUlaunchAttribute& attribute : attributes) {
        to->set_operation(
            lock,
            with_attribute(*to->operation_as<softgpu::KernelOperation>(CU_GRAPH_NODE_TYPE_KERNEL),
                           attribute));
    }
    return CUDA_SUCCESS;
}

}  // namespace gantry::cuda_impl
