// Graphs: lists of nodes and edges, instantiation and update in their older forms, and the generic
// node calls, which end in the calls of each type.
#include <cstdlib>
#include <cstring>

#include "guest-shim/driver/graph/graph_node.h"
#include "guest-shim/driver/memory/graph_copy.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/wire_structs.h"
#include "proto/cuda/refuse_if.h"

namespace gantry::shim {
namespace {

using cuda::wire_hand::GraphListCall;
using cuda::wire_hand::GraphListReply;

constexpr std::uint64_t kMaxListed = 1u << 16;

/// Asks for a list of handles; `rows` of them per entry (edges have two). Behind them, if wanted,
/// come the entries' edge data.
CUresult list(cuda::Op op, std::uint64_t of, std::uint64_t rows, std::uint64_t room,
              bool wants_edge_data, std::uint64_t** handles, std::uint64_t* count) {
    room = room < kMaxListed ? room : kMaxListed;
    // Every listed node may be one that a capture made and that has no name yet.
    const std::uint64_t names = kMaxListed * rows;
    GraphListCall call{};
    call.graph = of;
    call.first_new_handle = session::mint_many(HandleKind::kGraphNode, names);
    call.new_handle_count = names;
    call.capacity = room;
    call.wants_edge_data = wants_edge_data ? 1 : 0;
    const std::uint64_t bytes =
        room * (rows * sizeof(std::uint64_t) + (wants_edge_data ? sizeof(CUgraphEdgeData) : 0));
    *handles = static_cast<std::uint64_t*>(std::calloc(1, bytes + 8));
    GANTRY_REFUSE_IF(*handles == nullptr, CUDA_ERROR_OUT_OF_MEMORY);
    GraphListReply reply{};
    std::uint32_t got = 0;
    const CUresult result =
        session::call(op, &call, sizeof(call), nullptr, 0, &reply, sizeof(reply), *handles,
                      static_cast<std::uint32_t>(bytes), &got);
    *count = reply.count;
    if (result == CUDA_SUCCESS) {
        session::unmint(call.first_new_handle, names, reply.new_handles_used);
    }
    return result;
}

/// Fills the application's arrays in CUDA's way: with a null array only the number is told.
CUresult list_into(cuda::Op op, std::uint64_t of, CUgraphNode* first, CUgraphNode* second,
                   CUgraphEdgeData* edges, size_t* count) {
    GANTRY_REFUSE_IF(count == nullptr || (first != nullptr && *count == 0),
                     CUDA_ERROR_INVALID_VALUE);
    const std::uint64_t rows = op == cuda::Op::cuGraphGetEdges_v2 ? 2 : 1;
    const std::uint64_t room = first != nullptr ? *count : 0;
    std::uint64_t* handles = nullptr;
    std::uint64_t there = 0;
    const CUresult result = list(op, of, rows, room, edges != nullptr, &handles, &there);
    if (result == CUDA_SUCCESS && first != nullptr) {
        const std::uint64_t given = there < room ? there : room;
        std::memcpy(first, handles, given * sizeof(std::uint64_t));
        if (second != nullptr) {
            std::memcpy(second, handles + given, given * sizeof(std::uint64_t));
        }
        if (edges != nullptr) {
            std::memcpy(edges, handles + rows * given, given * sizeof(CUgraphEdgeData));
        }
        for (std::uint64_t i = given; i < room; ++i) {
            first[i] = nullptr;
        }
        there = given;
    }
    if (result == CUDA_SUCCESS) {
        *count = there;
    }
    std::free(handles);
    return result;
}

bool are_plain(const CUgraphEdgeData* edges, size_t count) {
    constexpr CUgraphEdgeData kPlain{};
    for (size_t i = 0; edges != nullptr && i < count; ++i) {
        if (std::memcmp(&edges[i], &kPlain, sizeof(kPlain)) != 0) {
            return false;
        }
    }
    return true;
}

CUDA_KERNEL_NODE_PARAMS_v2 kernel_params(const CUgraphNodeParams& params) {
    CUDA_KERNEL_NODE_PARAMS_v2 out{};
    static_assert(sizeof(out) == sizeof(params.kernel));
    std::memcpy(&out, &params.kernel, sizeof(out));
    return out;
}

CUDA_MEMSET_NODE_PARAMS_v1 memset_params(const CUgraphNodeParams& params) {
    CUDA_MEMSET_NODE_PARAMS_v1 out{};
    std::memcpy(&out, &params.memset, sizeof(out));
    return out;
}

CUDA_HOST_NODE_PARAMS host_params(const CUgraphNodeParams& params) {
    return CUDA_HOST_NODE_PARAMS{params.host.fn, params.host.userData};
}

CUcontext context_or_current(CUcontext context) {
    return context != nullptr ? context : reinterpret_cast<CUcontext>(session::current_context());
}

constexpr unsigned kMostBodies = 1u << 16;

/// A node that runs one of its graphs, or runs it again and again. The graphs are made with it.
CUresult add_conditional(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                         size_t count, CUDA_CONDITIONAL_NODE_PARAMS* params) {
    GANTRY_REFUSE_IF(params->size == 0 || params->size > kMostBodies, CUDA_ERROR_INVALID_VALUE);
    return add_node(
        out, graph, CU_GRAPH_NODE_TYPE_CONDITIONAL, dependencies, count, [&](GraphNode* node) {
            const size_t bytes = (count + params->size) * sizeof(std::uint64_t);
            auto* handles = static_cast<std::uint64_t*>(std::malloc(bytes));
            node->bodies = static_cast<CUgraph*>(std::calloc(params->size, sizeof(CUgraph)));
            node->body_count = node->bodies != nullptr ? params->size : 0;
            if (handles == nullptr || node->bodies == nullptr) {
                std::free(handles);
                return CUDA_ERROR_OUT_OF_MEMORY;
            }
            if (count != 0) {
                std::memcpy(handles, dependencies, count * sizeof(std::uint64_t));
            }
            for (unsigned i = 0; i < params->size; ++i) {
                handles[count + i] = session::mint(HandleKind::kGraph);
                node->bodies[i] = reinterpret_cast<CUgraph>(handles[count + i]);
            }
            cuda::wire_hand::GraphConditionalNodeCall call{};
            call.graph = bits(graph);
            call.node = node->handle;
            call.dependency_count = static_cast<std::uint32_t>(count);
            call.type = static_cast<std::uint32_t>(params->type);
            call.condition = params->handle;
            call.context = bits(params->ctx);
            call.size = params->size;
            const CUresult result =
                session::call(cuda::Op::cuGraphAddNode_v2, &call, sizeof(call), handles,
                              static_cast<std::uint32_t>(bytes), nullptr, 0, nullptr, 0, nullptr);
            std::free(handles);
            if (result == CUDA_SUCCESS) {
                params->phGraph_out = node->bodies;
            }
            return result;
        });
}

CUresult add_plain(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                   CUgraphNodeParams* params) {
    switch (params->type) {
        case CU_GRAPH_NODE_TYPE_KERNEL: {
            const CUDA_KERNEL_NODE_PARAMS_v2 kernel = kernel_params(*params);
            return cuda_impl::cuGraphAddKernelNode_v2(out, graph, dependencies, count, &kernel);
        }
        case CU_GRAPH_NODE_TYPE_MEMCPY:
            return cuda_impl::cuGraphAddMemcpyNode(out, graph, dependencies, count,
                                                   &params->memcpy.copyParams,
                                                   context_or_current(params->memcpy.copyCtx));
        case CU_GRAPH_NODE_TYPE_MEMSET: {
            const CUDA_MEMSET_NODE_PARAMS_v1 fill = memset_params(*params);
            return cuda_impl::cuGraphAddMemsetNode(out, graph, dependencies, count, &fill,
                                                   context_or_current(params->memset.ctx));
        }
        case CU_GRAPH_NODE_TYPE_HOST: {
            const CUDA_HOST_NODE_PARAMS host = host_params(*params);
            return cuda_impl::cuGraphAddHostNode(out, graph, dependencies, count, &host);
        }
        case CU_GRAPH_NODE_TYPE_GRAPH:
            return cuda_impl::cuGraphAddChildGraphNode(out, graph, dependencies, count,
                                                       params->graph.graph);
        case CU_GRAPH_NODE_TYPE_EMPTY:
            return cuda_impl::cuGraphAddEmptyNode(out, graph, dependencies, count);
        case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
            return cuda_impl::cuGraphAddEventWaitNode(out, graph, dependencies, count,
                                                      params->eventWait.event);
        case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
            return cuda_impl::cuGraphAddEventRecordNode(out, graph, dependencies, count,
                                                        params->eventRecord.event);
        case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
            CUDA_MEM_ALLOC_NODE_PARAMS alloc{};
            static_assert(sizeof(alloc) == sizeof(params->alloc));
            std::memcpy(&alloc, &params->alloc, sizeof(alloc));
            const CUresult result =
                cuda_impl::cuGraphAddMemAllocNode(out, graph, dependencies, count, &alloc);
            params->alloc.dptr = alloc.dptr;
            return result;
        }
        case CU_GRAPH_NODE_TYPE_MEM_FREE:
            return cuda_impl::cuGraphAddMemFreeNode(out, graph, dependencies, count,
                                                    params->free.dptr);
        case CU_GRAPH_NODE_TYPE_CONDITIONAL:
            return add_conditional(out, graph, dependencies, count, &params->conditional);
        default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

/// The edges to a new node, with their data.
CUresult add_edges(CUgraph graph, CUgraphNode node, const CUgraphNode* dependencies,
                   const CUgraphEdgeData* data, size_t count) {
    auto* to = static_cast<CUgraphNode*>(std::malloc(count * sizeof(CUgraphNode)));
    GANTRY_REFUSE_IF(to == nullptr, CUDA_ERROR_OUT_OF_MEMORY);
    for (size_t i = 0; i < count; ++i) {
        to[i] = node;
    }
    const CUresult result =
        cuda_impl::cuGraphAddDependencies_v2(graph, dependencies, to, data, count);
    std::free(to);
    return result;
}

}  // namespace
}  // namespace gantry::shim

namespace gantry::cuda_impl {

using namespace gantry::shim;

CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode* nodes, size_t* numNodes) noexcept {
    return list_into(cuda::Op::cuGraphGetNodes, bits(hGraph), nodes, nullptr, nullptr, numNodes);
}

CUresult cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode* rootNodes,
                             size_t* numRootNodes) noexcept {
    return list_into(cuda::Op::cuGraphGetRootNodes, bits(hGraph), rootNodes, nullptr, nullptr,
                     numRootNodes);
}

CUresult cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode* from, CUgraphNode* to,
                            CUgraphEdgeData* edgeData, size_t* numEdges) noexcept {
    GANTRY_REFUSE_IF((from == nullptr) != (to == nullptr), CUDA_ERROR_INVALID_VALUE);
    return list_into(cuda::Op::cuGraphGetEdges_v2, bits(hGraph), from, to, edgeData, numEdges);
}

CUresult cuGraphGetEdges(CUgraph hGraph, CUgraphNode* from, CUgraphNode* to,
                         size_t* numEdges) noexcept {
    return cuGraphGetEdges_v2(hGraph, from, to, nullptr, numEdges);
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode hNode, CUgraphNode* dependencies,
                                       CUgraphEdgeData* edgeData,
                                       size_t* numDependencies) noexcept {
    return list_into(cuda::Op::cuGraphNodeGetDependencies_v2, bits(hNode), dependencies, nullptr,
                     edgeData, numDependencies);
}

CUresult cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode* dependencies,
                                    size_t* numDependencies) noexcept {
    return cuGraphNodeGetDependencies_v2(hNode, dependencies, nullptr, numDependencies);
}

CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode hNode, CUgraphNode* dependentNodes,
                                         CUgraphEdgeData* edgeData,
                                         size_t* numDependentNodes) noexcept {
    return list_into(cuda::Op::cuGraphNodeGetDependentNodes_v2, bits(hNode), dependentNodes,
                     nullptr, edgeData, numDependentNodes);
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode hNode, CUgraphNode* dependentNodes,
                                      size_t* numDependentNodes) noexcept {
    return cuGraphNodeGetDependentNodes_v2(hNode, dependentNodes, nullptr, numDependentNodes);
}

CUresult cuGraphInstantiate(CUgraphExec* phGraphExec, CUgraph hGraph, CUgraphNode* phErrorNode,
                            char* logBuffer, size_t bufferSize) noexcept {
    if (phErrorNode != nullptr) {
        *phErrorNode = nullptr;
    }
    if (logBuffer != nullptr && bufferSize != 0) {
        logBuffer[0] = '\0';
    }
    return cuGraphInstantiateWithFlags(phGraphExec, hGraph, 0);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec* phGraphExec, CUgraph hGraph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* instantiateParams) noexcept {
    GANTRY_REFUSE_IF(phGraphExec == nullptr || instantiateParams == nullptr,
                     CUDA_ERROR_INVALID_VALUE);
    GANTRY_REFUSE_IF(!is_stream(instantiateParams->hUploadStream), CUDA_ERROR_INVALID_HANDLE);
    if ((instantiateParams->flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0) {
        return CUDA_ERROR_NOT_SUPPORTED;  // A kernel would be given the guest's handle.
    }
    cuda::wire::cuGraphInstantiateWithParams_call arguments{};
    GANTRY_REFUSE_IF(g_graph_execs.create(HandleKind::kGraphExec, &arguments.exec) == nullptr,
                     CUDA_ERROR_OUT_OF_MEMORY);
    arguments.graph = bits(hGraph);
    arguments.flags = instantiateParams->flags;
    arguments.upload_stream = bits(instantiateParams->hUploadStream);
    cuda::wire::cuGraphInstantiateWithParams_reply reply{};
    const CUresult result = call_reply(cuda::Op::cuGraphInstantiateWithParams, arguments, &reply);
    instantiateParams->hErrNode_out = reinterpret_cast<CUgraphNode>(reply.error_node);
    instantiateParams->result_out = static_cast<CUgraphInstantiateResult>(reply.result);
    if (result != CUDA_SUCCESS) {
        g_graph_execs.destroy(arguments.exec);
        return result;
    }
    inherit_copies(arguments.exec, arguments.graph);
    *phGraphExec = reinterpret_cast<CUgraphExec>(arguments.exec);
    return CUDA_SUCCESS;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph,
                              CUgraphExecUpdateResultInfo* resultInfo) noexcept {
    const cuda::wire::cuGraphExecUpdate_v2_call arguments{bits(hGraphExec), bits(hGraph)};
    cuda::wire::cuGraphExecUpdate_v2_reply reply{};
    const CUresult result = call_reply(cuda::Op::cuGraphExecUpdate_v2, arguments, &reply);
    if (result == CUDA_SUCCESS) {
        disown_copies(bits(hGraphExec));  // Every node has the graph's parameters now.
        inherit_copies(bits(hGraphExec), bits(hGraph));
    }
    if (resultInfo != nullptr) {
        resultInfo->result = static_cast<CUgraphExecUpdateResult>(reply.result);
        resultInfo->errorNode = reinterpret_cast<CUgraphNode>(reply.error_node);
        resultInfo->errorFromNode = reinterpret_cast<CUgraphNode>(reply.error_from_node);
    }
    return result;
}

CUresult cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode* hErrorNode_out,
                           CUgraphExecUpdateResult* updateResult_out) noexcept {
    CUgraphExecUpdateResultInfo info{};
    const CUresult result = cuGraphExecUpdate_v2(hGraphExec, hGraph, &info);
    if (hErrorNode_out != nullptr) {
        *hErrorNode_out = info.errorNode;
    }
    if (updateResult_out != nullptr) {
        *updateResult_out = info.result;
    }
    return result;
}

CUresult cuGraphAddNode_v2(CUgraphNode* phGraphNode, CUgraph hGraph,
                           const CUgraphNode* dependencies, const CUgraphEdgeData* dependencyData,
                           size_t numDependencies, CUgraphNodeParams* nodeParams) noexcept {
    GANTRY_REFUSE_IF(phGraphNode == nullptr || nodeParams == nullptr, CUDA_ERROR_INVALID_VALUE);
    if (are_plain(dependencyData, numDependencies)) {
        return add_plain(phGraphNode, hGraph, dependencies, numDependencies, nodeParams);
    }
    GANTRY_REFUSE_IF(!are_plausible(dependencies, numDependencies), CUDA_ERROR_INVALID_VALUE);
    // The calls of each type know no edge data: the edges come behind the node.
    CUgraphNode node = nullptr;
    CUresult result = add_plain(&node, hGraph, nullptr, 0, nodeParams);
    if (result == CUDA_SUCCESS) {
        result = add_edges(hGraph, node, dependencies, dependencyData, numDependencies);
        if (result == CUDA_SUCCESS) {
            *phGraphNode = node;
        } else {
            (void)cuGraphDestroyNode(node);
        }
    }
    return result;
}

CUresult cuGraphAddNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                        size_t numDependencies, CUgraphNodeParams* nodeParams) noexcept {
    return cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, nullptr, numDependencies,
                             nodeParams);
}

CUresult cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams* nodeParams) noexcept {
    GANTRY_REFUSE_IF(nodeParams == nullptr, CUDA_ERROR_INVALID_VALUE);
    switch (nodeParams->type) {
        case CU_GRAPH_NODE_TYPE_KERNEL: {
            const CUDA_KERNEL_NODE_PARAMS_v2 params = kernel_params(*nodeParams);
            return cuGraphKernelNodeSetParams_v2(hNode, &params);
        }
        case CU_GRAPH_NODE_TYPE_MEMCPY:
            return cuGraphMemcpyNodeSetParams(hNode, &nodeParams->memcpy.copyParams);
        case CU_GRAPH_NODE_TYPE_MEMSET: {
            const CUDA_MEMSET_NODE_PARAMS_v1 params = memset_params(*nodeParams);
            return cuGraphMemsetNodeSetParams(hNode, &params);
        }
        case CU_GRAPH_NODE_TYPE_HOST: {
            const CUDA_HOST_NODE_PARAMS params = host_params(*nodeParams);
            return cuGraphHostNodeSetParams(hNode, &params);
        }
        default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                  CUgraphNodeParams* nodeParams) noexcept {
    GANTRY_REFUSE_IF(nodeParams == nullptr, CUDA_ERROR_INVALID_VALUE);
    switch (nodeParams->type) {
        case CU_GRAPH_NODE_TYPE_KERNEL: {
            const CUDA_KERNEL_NODE_PARAMS_v2 params = kernel_params(*nodeParams);
            return cuGraphExecKernelNodeSetParams_v2(hGraphExec, hNode, &params);
        }
        case CU_GRAPH_NODE_TYPE_MEMCPY:
            return cuGraphExecMemcpyNodeSetParams(hGraphExec, hNode, &nodeParams->memcpy.copyParams,
                                                  context_or_current(nodeParams->memcpy.copyCtx));
        case CU_GRAPH_NODE_TYPE_MEMSET: {
            const CUDA_MEMSET_NODE_PARAMS_v1 params = memset_params(*nodeParams);
            return cuGraphExecMemsetNodeSetParams(hGraphExec, hNode, &params,
                                                  context_or_current(nodeParams->memset.ctx));
        }
        case CU_GRAPH_NODE_TYPE_HOST: {
            const CUDA_HOST_NODE_PARAMS params = host_params(*nodeParams);
            return cuGraphExecHostNodeSetParams(hGraphExec, hNode, &params);
        }
        default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

}  // namespace gantry::cuda_impl
