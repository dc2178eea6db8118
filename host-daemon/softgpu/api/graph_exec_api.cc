// Executable graphs: instantiation, launch, update.
#include <array>
#include <cstring>

#include "host-daemon/softgpu/api/graph_common.h"
#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/core/thread_state.h"
#include "host-daemon/softgpu/graph/capture.h"
#include "host-daemon/softgpu/graph/make_operation.h"
#include "host-daemon/softgpu/memory/map.h"
#include "host-daemon/softgpu/streams/enqueue.h"
#include "host-daemon/softgpu/streams/stream.h"
#include "proto/cuda/gen/impl.h"

namespace gantry::cuda_impl {
namespace {

using softgpu::ExecStep;
using softgpu::Graph;
using softgpu::GraphExec;
using softgpu::GraphLock;
using softgpu::OperationPtr;

constexpr unsigned long long kFlagsKnown =
    CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
    CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;

/// What a launch of the exec that is captured puts into the graph: neither it nor its nodes have
/// handles, which only the graph's own destruction would end.
std::shared_ptr<Graph> hidden_copy(const GraphLock& lock, const Graph& graph) {
    auto copy = graph.clone(lock);
    copy->end_handles(lock);
    softgpu::retract(*copy);
    return copy;
}

/// It has no nodes, and holds what the graph holds.
std::shared_ptr<Graph> shell_of(const Graph& graph) {
    auto shell = std::make_shared<Graph>();
    shell->hold_as(graph);
    return shell;
}

/// A child graph for a capture of the exec's launch.
std::shared_ptr<Graph> copy_of_source(const GraphExec& exec) {
    const GraphLock lock;
    auto copy = exec.source->clone(lock);
    copy->is_child = true;
    return copy;
}

CUresult instantiate(CUgraphExec* out, CUgraph handle, unsigned long long flags) {
    GANTRY_CU(softgpu::poison());
    const auto graph = softgpu::find<Graph>(handle);
    GANTRY_REFUSE_IF(out == nullptr || graph == nullptr || (flags & ~kFlagsKnown) != 0,
                     CUDA_ERROR_INVALID_VALUE);
    GANTRY_REFUSE_IF((flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0,
                     CUDA_ERROR_NOT_SUPPORTED);
    GANTRY_CU(softgpu::refuse_during_capture());
    const GraphLock lock;
    const bool is_conditional = graph->is_conditional(lock);
    if (is_conditional && !graph->exec.expired()) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    for (const auto& condition : graph->conditions) {
        GANTRY_REFUSE_IF(!condition->is_claimed(), CUDA_ERROR_INVALID_VALUE);
    }
    auto exec = std::make_shared<GraphExec>();
    exec->steps = std::make_shared<std::vector<ExecStep>>();
    if (!GraphExec::flatten(lock, *graph, *exec->steps)) {
        return CUDA_ERROR_INVALID_VALUE;  // A cycle.
    }
    exec->flags = flags;
    exec->is_conditional = is_conditional;
    exec->source = is_conditional ? shell_of(*graph) : hidden_copy(lock, *graph);
    graph->exec = exec;
    *out = softgpu::publish<CUgraphExec>(exec);
    return CUDA_SUCCESS;
}

/// As NVIDIA's driver sees it (580.159): mapped memory and that of pools has no context.
bool has_context(std::uint64_t address) {
    const auto range = softgpu::MemoryMap::instance().find(address);
    return !range || (range->kind != softgpu::MemoryKind::kMapped &&
                      range->kind != softgpu::MemoryKind::kPooled);
}

/// The ends of a copy that are addresses, each an address or 0, and a memset's target.
std::array<CUdeviceptr, 2> addresses_of(const softgpu::Operation& operation) {
    const auto address = [](CUmemorytype type, CUdeviceptr value) {
        return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED ? value : 0;
    };
    if (operation.type() == CU_GRAPH_NODE_TYPE_MEMCPY) {
        const auto& params = static_cast<const softgpu::CopyOperation&>(operation).params;
        return {address(params.srcMemoryType, params.srcDevice),
                address(params.dstMemoryType, params.dstDevice)};
    }
    if (operation.type() == CU_GRAPH_NODE_TYPE_MEMSET) {
        return {static_cast<const softgpu::MemsetOperation&>(operation).params.dst, 0};
    }
    return {0, 0};
}

/// A copy or memset of an exec cannot change from memory with a context to such without one, nor
/// the other way.
bool is_of_same_kind(const softgpu::Operation& now, const softgpu::Operation& wanted) {
    const auto old_ends = addresses_of(now);
    const auto new_ends = addresses_of(wanted);
    for (std::size_t i = 0; i < old_ends.size(); ++i) {
        if (old_ends[i] != 0 && new_ends[i] != 0 &&
            has_context(old_ends[i]) != has_context(new_ends[i])) {
            return false;
        }
    }
    return true;
}

/// Puts a new operation into the step of a node, if it fits.
CUresult set_step(CUgraphExec exec_handle, CUgraphNode node, const OperationPtr& operation) {
    const auto exec = softgpu::find<GraphExec>(exec_handle);
    GANTRY_REFUSE_IF(exec == nullptr, CUDA_ERROR_INVALID_VALUE);
    const std::lock_guard lock(exec->mutex);
    ExecStep* step = exec->step_of(node);
    GANTRY_REFUSE_IF(step == nullptr || step->operation->type() != operation->type() ||
                         !is_of_same_kind(*step->operation, *operation),
                     CUDA_ERROR_INVALID_VALUE);
    step->operation = operation;
    return CUDA_SUCCESS;
}

CUgraphExecUpdateResult update_problem(const std::vector<ExecStep>& now,
                                       const std::vector<ExecStep>& wanted, std::size_t& where) {
    if (now.size() != wanted.size()) {
        return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    }
    for (where = 0; where < now.size(); ++where) {
        if (now[where].operation->type() != wanted[where].operation->type()) {
            return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        }
        if (now[where].needs != wanted[where].needs) {
            return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        }
        const CUgraphNodeType type = now[where].operation->type();
        if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
            return CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
        }
        if (now[where].bodies.size() != wanted[where].bodies.size()) {
            return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        }
        for (std::size_t i = 0; i < now[where].bodies.size(); ++i) {
            std::size_t inner = 0;
            const CUgraphExecUpdateResult problem =
                update_problem(now[where].bodies[i], wanted[where].bodies[i], inner);
            if (problem != CU_GRAPH_EXEC_UPDATE_SUCCESS) {
                return problem;
            }
        }
    }
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

}  // namespace

CUresult cuGraphInstantiateWithFlags(CUgraphExec* phGraphExec, CUgraph hGraph,
                                     unsigned long long flags) noexcept {
    return instantiate(phGraphExec, hGraph, flags);
}

CUresult cuGraphInstantiate(CUgraphExec* phGraphExec, CUgraph hGraph, CUgraphNode* phErrorNode,
                            char* logBuffer, size_t bufferSize) noexcept {
    if (phErrorNode != nullptr) {
        *phErrorNode = nullptr;
    }
    if (logBuffer != nullptr && bufferSize > 0) {
        logBuffer[0] = '\0';
    }
    return instantiate(phGraphExec, hGraph, 0);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec* phGraphExec, CUgraph hGraph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* instantiateParams) noexcept {
    GANTRY_REFUSE_IF(instantiateParams == nullptr, CUDA_ERROR_INVALID_VALUE);
    const CUresult error = instantiate(phGraphExec, hGraph, instantiateParams->flags);
    instantiateParams->hErrNode_out = nullptr;
    instantiateParams->result_out =
        error == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return error;
}

CUresult cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t* flags) noexcept {
    const auto exec = softgpu::find<GraphExec>(hGraphExec);
    GANTRY_REFUSE_IF(exec == nullptr || flags == nullptr, CUDA_ERROR_INVALID_VALUE);
    *flags = exec->flags;
    return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec) noexcept {
    const auto exec = softgpu::find<GraphExec>(hGraphExec);
    GANTRY_REFUSE_IF(exec == nullptr, CUDA_ERROR_INVALID_VALUE);
    softgpu::retract(*exec);
    return CUDA_SUCCESS;
}

CUresult cuGraphUpload(CUgraphExec hGraph, CUstream hStream) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, hStream);
    return softgpu::find<GraphExec>(hGraph) == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec hGraph, CUstream hStream) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_STREAM(stream, context, hStream);
    const auto exec = softgpu::find<GraphExec>(hGraph);
    GANTRY_REFUSE_IF(exec == nullptr, CUDA_ERROR_INVALID_VALUE);
    if (softgpu::capturing(stream)) {
        GANTRY_REFUSE_IF(exec->is_conditional, CUDA_ERROR_NOT_SUPPORTED);
        auto copy = copy_of_source(*exec);
        return softgpu::enqueue(stream,
                                std::make_shared<softgpu::ChildGraphOperation>(std::move(copy)));
    }
    GANTRY_CU(softgpu::refuse_legacy_during_capture(stream));
    return softgpu::launched(softgpu::launch_graph(exec, stream), stream, *context);
}

CUresult cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph,
                              CUgraphExecUpdateResultInfo* resultInfo) noexcept {
    const auto exec = softgpu::find<GraphExec>(hGraphExec);
    const auto graph = softgpu::find<Graph>(hGraph);
    GANTRY_REFUSE_IF(exec == nullptr || graph == nullptr, CUDA_ERROR_INVALID_VALUE);
    CUgraphExecUpdateResultInfo info{};
    std::vector<ExecStep> wanted;
    const GraphLock graphs;
    const bool sound = GraphExec::flatten(graphs, *graph, wanted);
    const std::lock_guard lock(exec->mutex);
    std::size_t where = 0;
    info.result = sound ? update_problem(*exec->steps, wanted, where)
                        : CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    if (info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS) {
        std::vector<ExecStep>& steps = exec->writable();
        for (std::size_t i = 0; i < steps.size(); ++i) {
            steps[i].operation = wanted[i].operation;
            steps[i].bodies = std::move(wanted[i].bodies);
        }
        exec->source =
            graph->is_conditional(graphs) ? shell_of(*graph) : hidden_copy(graphs, *graph);
    } else if (where < wanted.size()) {
        info.errorNode = static_cast<CUgraphNode>(wanted[where].node);
    }
    if (resultInfo != nullptr) {
        *resultInfo = info;
    }
    return info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_SUCCESS
                                                       : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

CUresult cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode* hErrorNode_out,
                           CUgraphExecUpdateResult* updateResult_out) noexcept {
    CUgraphExecUpdateResultInfo info{};
    const CUresult error = cuGraphExecUpdate_v2(hGraphExec, hGraph, &info);
    if (hErrorNode_out != nullptr) {
        *hErrorNode_out = info.errorNode;
    }
    if (updateResult_out != nullptr) {
        *updateResult_out = info.result;
    }
    return error;
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                           const CUDA_KERNEL_NODE_PARAMS_v2* nodeParams) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_REFUSE_IF(nodeParams == nullptr, CUDA_ERROR_INVALID_VALUE);
    OperationPtr operation;
    GANTRY_CU(softgpu::make_kernel_operation(context, *nodeParams, {}, operation));
    return set_step(hGraphExec, hNode, operation);
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) noexcept {
    GANTRY_REFUSE_IF(nodeParams == nullptr, CUDA_ERROR_INVALID_VALUE);
    const CUDA_KERNEL_NODE_PARAMS_v2 wide = softgpu::widen(*nodeParams);
    return cuGraphExecKernelNodeSetParams_v2(hGraphExec, hNode, &wide);
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_MEMCPY3D_v2* copyParams, CUcontext) noexcept {
    GANTRY_REFUSE_IF(copyParams == nullptr, CUDA_ERROR_INVALID_VALUE);
    OperationPtr operation;
    GANTRY_CU(softgpu::make_memcpy_operation(*copyParams, operation));
    return set_step(hGraphExec, hNode, operation);
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_MEMSET_NODE_PARAMS_v1* memsetParams,
                                        CUcontext) noexcept {
    GANTRY_REFUSE_IF(memsetParams == nullptr, CUDA_ERROR_INVALID_VALUE);
    OperationPtr operation;
    GANTRY_CU(softgpu::make_memset_operation(*memsetParams, operation));
    return set_step(hGraphExec, hNode, operation);
}

CUresult cuGraphExecHostNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                      const CUDA_HOST_NODE_PARAMS_v1* nodeParams) noexcept {
    GANTRY_REFUSE_IF(nodeParams == nullptr, CUDA_ERROR_INVALID_VALUE);
    OperationPtr operation;
    GANTRY_CU(softgpu::make_host_operation(*nodeParams, operation));
    return set_step(hGraphExec, hNode, operation);
}

CUresult cuGraphExecBatchMemOpNodeSetParams(
    CUgraphExec graphExec, CUgraphNode node,
    const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) noexcept {
    GANTRY_REFUSE_IF(nodeParams == nullptr, CUDA_ERROR_INVALID_VALUE);
    OperationPtr operation;
    GANTRY_CU(softgpu::make_batch_operation(*nodeParams, operation));
    return set_step(graphExec, node, operation);
}

CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode,
                                            CUevent event) noexcept {
    OperationPtr operation;
    GANTRY_CU(softgpu::make_event_operation(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event, operation));
    return set_step(hGraphExec, hNode, operation);
}

CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode,
                                          CUevent event) noexcept {
    OperationPtr operation;
    GANTRY_CU(softgpu::make_event_operation(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event, operation));
    return set_step(hGraphExec, hNode, operation);
}

CUresult cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                  CUgraphNodeParams* nodeParams) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_REFUSE_IF(nodeParams == nullptr || nodeParams->type == CU_GRAPH_NODE_TYPE_GRAPH,
                     CUDA_ERROR_INVALID_VALUE);
    OperationPtr operation;
    GANTRY_CU(softgpu::make_operation(context, *nodeParams, operation));
    return set_step(hGraphExec, hNode, operation);
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                            CUgraph childGraph) noexcept {
    const auto exec = softgpu::find<GraphExec>(hGraphExec);
    const auto child = softgpu::find<Graph>(childGraph);
    GANTRY_REFUSE_IF(exec == nullptr || child == nullptr, CUDA_ERROR_INVALID_VALUE);
    const GraphLock graphs;
    std::vector<ExecStep> wanted;
    GANTRY_REFUSE_IF(!GraphExec::flatten(graphs, *child, wanted), CUDA_ERROR_INVALID_VALUE);
    const std::lock_guard lock(exec->mutex);
    const ExecStep* end = exec->step_of(hNode);
    std::vector<ExecStep>& steps = exec->writable();
    // The child's steps stand right before the step of the child node itself.
    const auto last = end == nullptr ? 0 : static_cast<std::size_t>(end - steps.data());
    if (end == nullptr || end->operation->type() != CU_GRAPH_NODE_TYPE_GRAPH ||
        wanted.size() > last) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        ExecStep& step = steps[last - wanted.size() + i];
        GANTRY_REFUSE_IF(step.operation->type() != wanted[i].operation->type(),
                         CUDA_ERROR_INVALID_VALUE);
        step.operation = wanted[i].operation;
    }
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeSetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode,
                               unsigned int isEnabled) noexcept {
    const auto exec = softgpu::find<GraphExec>(hGraphExec);
    GANTRY_REFUSE_IF(exec == nullptr, CUDA_ERROR_INVALID_VALUE);
    const std::lock_guard lock(exec->mutex);
    ExecStep* step = exec->step_of(hNode);
    const bool allowed = step != nullptr && (step->operation->type() == CU_GRAPH_NODE_TYPE_KERNEL ||
                                             step->operation->type() == CU_GRAPH_NODE_TYPE_MEMCPY ||
                                             step->operation->type() == CU_GRAPH_NODE_TYPE_MEMSET);
    GANTRY_REFUSE_IF(!allowed, CUDA_ERROR_INVALID_VALUE);
    step->enabled = isEnabled != 0;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode,
                               unsigned int* isEnabled) noexcept {
    const auto exec = softgpu::find<GraphExec>(hGraphExec);
    GANTRY_REFUSE_IF(exec == nullptr || isEnabled == nullptr, CUDA_ERROR_INVALID_VALUE);
    const std::lock_guard lock(exec->mutex);
    const ExecStep* step = exec->step_of(hNode);
    GANTRY_REFUSE_IF(step == nullptr, CUDA_ERROR_INVALID_VALUE);
    *isEnabled = step->enabled ? 1 : 0;
    return CUDA_SUCCESS;
}

}  // namespace gantry::cuda_impl
