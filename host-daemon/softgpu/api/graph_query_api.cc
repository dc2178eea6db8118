// Looking at graphs and changing their edges; user objects.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "host-daemon/softgpu/api/graph_common.h"
#include "host-daemon/softgpu/core/errors.h"
#include "proto/cuda/gen/impl.h"

namespace gantry::cuda_impl {
namespace {

using softgpu::Graph;
using softgpu::GraphEdge;
using softgpu::GraphLock;
using softgpu::GraphNode;
using softgpu::UserObject;

using Nodes = std::vector<std::shared_ptr<GraphNode>>;

/// The usual protocol: null asks for the number; surplus slots are set to null.
CUresult list_nodes(const Nodes& nodes, CUgraphNode* out, size_t* count) {
    GANTRY_REFUSE_IF(count == nullptr || (out != nullptr && *count == 0), CUDA_ERROR_INVALID_VALUE);
    if (out != nullptr) {
        for (size_t i = 0; i < *count; ++i) {
            out[i] = i < nodes.size() ? nodes[i]->as<CUgraphNode>() : nullptr;
        }
        *count = std::min(*count, nodes.size());
        return CUDA_SUCCESS;
    }
    *count = nodes.size();
    return CUDA_SUCCESS;
}

bool is_plain(const GraphEdge& edge) {
    constexpr CUgraphEdgeData kPlain{};
    return std::memcmp(&edge.data, &kPlain, sizeof(kPlain)) == 0;
}

CUresult list_edges(const std::vector<std::pair<std::shared_ptr<GraphNode>, GraphEdge>>& edges,
                    CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data, size_t* count) {
    GANTRY_REFUSE_IF(count == nullptr || (from == nullptr) != (to == nullptr) ||
                         (from != nullptr && *count == 0),
                     CUDA_ERROR_INVALID_VALUE);
    if (from == nullptr) {
        *count = edges.size();
        return CUDA_SUCCESS;
    }
    const size_t shown = std::min(*count, edges.size());
    for (size_t i = 0; data == nullptr && i < shown; ++i) {
        GANTRY_REFUSE_IF(!is_plain(edges[i].second), CUDA_ERROR_LOSSY_QUERY);
    }
    for (size_t i = 0; i < *count; ++i) {
        const bool there = i < edges.size();
        from[i] = there ? edges[i].second.from->as<CUgraphNode>() : nullptr;
        to[i] = there ? edges[i].first->as<CUgraphNode>() : nullptr;
        if (data != nullptr && there) {
            data[i] = edges[i].second.data;
        }
    }
    *count = std::min(*count, edges.size());
    return CUDA_SUCCESS;
}

const char* type_name(CUgraphNodeType type) {
    constexpr const char* kNames[] = {"KERNEL",         "MEMCPY",       "MEMSET",
                                      "HOST",           "GRAPH",        "EMPTY",
                                      "WAIT_EVENT",     "EVENT_RECORD", "EXT_SEMAS_SIGNAL",
                                      "EXT_SEMAS_WAIT", "MEM_ALLOC",    "MEM_FREE",
                                      "BATCH_MEM_OP",   "CONDITIONAL"};
    const auto index = static_cast<size_t>(type);
    return index < std::size(kNames) ? kNames[index] : "UNKNOWN";
}

/// As the lines of a file in the DOT language; child graphs behind the graph that they are in.
void draw(const Graph& graph, std::ofstream& file) {
    file << "subgraph \"cluster_" << &graph << "\" {\n";
    for (const auto& node : graph.nodes) {
        file << "  \"" << node->handle() << "\" [label=\"" << type_name(node->operation->type());
        if (const auto* kernel =
                dynamic_cast<const softgpu::KernelOperation*>(node->operation.get())) {
            file << "\\n" << kernel->function->info().name;
        }
        file << "\"];\n";
        for (const GraphEdge& edge : node->needs) {
            file << "  \"" << edge.from->handle() << "\" -> \"" << node->handle() << "\";\n";
        }
    }
    file << "}\n";
    for (const auto& node : graph.nodes) {
        if (const auto* child =
                dynamic_cast<const softgpu::ChildGraphOperation*>(node->operation.get())) {
            draw(*child->graph, file);
        }
    }
}

}  // namespace

CUresult cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType* type) noexcept {
    const auto node = softgpu::find<GraphNode>(hNode);
    GANTRY_REFUSE_IF(node == nullptr || type == nullptr, CUDA_ERROR_INVALID_VALUE);
    const GraphLock lock;
    *type = node->operation->type();
    return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode* nodes, size_t* numNodes) noexcept {
    const auto graph = softgpu::find<Graph>(hGraph);
    GANTRY_REFUSE_IF(graph == nullptr, CUDA_ERROR_INVALID_VALUE);
    const GraphLock lock;
    return list_nodes(graph->nodes, nodes, numNodes);
}

CUresult cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode* rootNodes,
                             size_t* numRootNodes) noexcept {
    const auto graph = softgpu::find<Graph>(hGraph);
    GANTRY_REFUSE_IF(graph == nullptr, CUDA_ERROR_INVALID_VALUE);
    const GraphLock lock;
    Nodes roots;
    for (const auto& node : graph->nodes) {
        if (node->needs.empty()) {
            roots.push_back(node);
        }
    }
    return list_nodes(roots, rootNodes, numRootNodes);
}

CUresult cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode* from, CUgraphNode* to,
                            CUgraphEdgeData* edgeData, size_t* numEdges) noexcept {
    const auto graph = softgpu::find<Graph>(hGraph);
    GANTRY_REFUSE_IF(graph == nullptr, CUDA_ERROR_INVALID_VALUE);
    const GraphLock lock;
    std::vector<std::pair<std::shared_ptr<GraphNode>, GraphEdge>> edges;
    for (const auto& node : graph->nodes) {
        for (const GraphEdge& edge : node->needs) {
            edges.emplace_back(node, edge);
        }
    }
    return list_edges(edges, from, to, edgeData, numEdges);
}

CUresult cuGraphGetEdges(CUgraph hGraph, CUgraphNode* from, CUgraphNode* to,
                         size_t* numEdges) noexcept {
    return cuGraphGetEdges_v2(hGraph, from, to, nullptr, numEdges);
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode hNode, CUgraphNode* dependencies,
                                       CUgraphEdgeData* edgeData,
                                       size_t* numDependencies) noexcept {
    const auto node = softgpu::find<GraphNode>(hNode);
    GANTRY_REFUSE_IF(node == nullptr, CUDA_ERROR_INVALID_VALUE);
    const GraphLock lock;
    Nodes nodes;
    for (const GraphEdge& edge : node->needs) {
        GANTRY_REFUSE_IF(dependencies != nullptr && edgeData == nullptr && !is_plain(edge),
                         CUDA_ERROR_LOSSY_QUERY);
        if (edgeData != nullptr && dependencies != nullptr && numDependencies != nullptr &&
            nodes.size() < *numDependencies) {
            edgeData[nodes.size()] = edge.data;
        }
        nodes.push_back(edge.from);
    }
    return list_nodes(nodes, dependencies, numDependencies);
}

CUresult cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode* dependencies,
                                    size_t* numDependencies) noexcept {
    return cuGraphNodeGetDependencies_v2(hNode, dependencies, nullptr, numDependencies);
}

CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode hNode, CUgraphNode* dependentNodes,
                                         CUgraphEdgeData* edgeData,
                                         size_t* numDependentNodes) noexcept {
    const auto node = softgpu::find<GraphNode>(hNode);
    const auto graph = node == nullptr ? nullptr : node->graph.lock();
    GANTRY_REFUSE_IF(graph == nullptr, CUDA_ERROR_INVALID_VALUE);
    const GraphLock lock;
    Nodes nodes;
    for (const auto& other : graph->nodes) {
        for (const GraphEdge& edge : other->needs) {
            if (edge.from != node) {
                continue;
            }
            GANTRY_REFUSE_IF(dependentNodes != nullptr && edgeData == nullptr && !is_plain(edge),
                             CUDA_ERROR_LOSSY_QUERY);
            if (edgeData != nullptr && dependentNodes != nullptr && numDependentNodes != nullptr &&
                nodes.size() < *numDependentNodes) {
                edgeData[nodes.size()] = edge.data;
            }
            nodes.push_back(other);
        }
    }
    return list_nodes(nodes, dependentNodes, numDependentNodes);
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode hNode, CUgraphNode* dependentNodes,
                                      size_t* numDependentNodes) noexcept {
    return cuGraphNodeGetDependentNodes_v2(hNode, dependentNodes, nullptr, numDependentNodes);
}

CUresult cuGraphAddDependencies_v2(CUgraph hGraph, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData* edgeData,
                                   size_t numDependencies) noexcept {
    const auto graph = softgpu::find<Graph>(hGraph);
    GANTRY_REFUSE_IF(
        graph == nullptr || (numDependencies != 0 && (from == nullptr || to == nullptr)),
        CUDA_ERROR_INVALID_VALUE);
    const GraphLock lock;
    for (size_t i = 0; i < numDependencies; ++i) {
        std::vector<GraphEdge> edge;
        std::vector<GraphEdge> target;
        const CUgraphEdgeData* data = edgeData != nullptr ? &edgeData[i] : nullptr;
        GANTRY_CU(softgpu::resolve_edges(*graph, &from[i], data, 1, edge));
        GANTRY_CU(softgpu::resolve_edges(*graph, &to[i], nullptr, 1, target));
        auto& needs = target[0].from->needs;
        const bool known = std::any_of(needs.begin(), needs.end(), [&](const GraphEdge& each) {
            return each.from == edge[0].from;
        });
        GANTRY_REFUSE_IF(known || edge[0].from == target[0].from, CUDA_ERROR_INVALID_VALUE);
        needs.push_back(edge[0]);
    }
    return CUDA_SUCCESS;
}

CUresult cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode* from, const CUgraphNode* to,
                                size_t numDependencies) noexcept {
    return cuGraphAddDependencies_v2(hGraph, from, to, nullptr, numDependencies);
}

CUresult cuGraphRemoveDependencies_v2(CUgraph hGraph, const CUgraphNode* from,
                                      const CUgraphNode* to, const CUgraphEdgeData*,
                                      size_t numDependencies) noexcept {
    const auto graph = softgpu::find<Graph>(hGraph);
    GANTRY_REFUSE_IF(
        graph == nullptr || (numDependencies != 0 && (from == nullptr || to == nullptr)),
        CUDA_ERROR_INVALID_VALUE);
    const GraphLock lock;
    for (size_t i = 0; i < numDependencies; ++i) {
        const auto source = softgpu::find<GraphNode>(from[i]);
        const auto target = softgpu::find<GraphNode>(to[i]);
        if (source == nullptr || target == nullptr ||
            std::erase_if(target->needs,
                          [&](const GraphEdge& edge) { return edge.from == source; }) == 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}

CUresult cuGraphRemoveDependencies(CUgraph hGraph, const CUgraphNode* from, const CUgraphNode* to,
                                   size_t numDependencies) noexcept {
    return cuGraphRemoveDependencies_v2(hGraph, from, to, nullptr, numDependencies);
}

CUresult cuGraphDestroyNode(CUgraphNode hNode) noexcept {
    const auto node = softgpu::find<GraphNode>(hNode);
    const auto graph = node == nullptr ? nullptr : node->graph.lock();
    return graph != nullptr && graph->remove(GraphLock(), node) ? CUDA_SUCCESS
                                                                : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphDebugDotPrint(CUgraph hGraph, const char* path, unsigned int) noexcept {
    const auto graph = softgpu::find<Graph>(hGraph);
    GANTRY_REFUSE_IF(graph == nullptr || path == nullptr, CUDA_ERROR_INVALID_VALUE);
    std::ofstream file(path);
    const GraphLock lock;
    file << "digraph dot {\n";
    draw(*graph, file);
    file << "}\n";
    file.flush();
    return file ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle* pHandle_out, CUgraph hGraph,
                                        CUcontext, unsigned int defaultLaunchValue,
                                        unsigned int flags) noexcept {
    const auto graph = softgpu::find<Graph>(hGraph);
    GANTRY_REFUSE_IF(
        pHandle_out == nullptr || graph == nullptr || flags > CU_GRAPH_COND_ASSIGN_DEFAULT,
        CUDA_ERROR_INVALID_VALUE);
    auto made = softgpu::Condition::create(defaultLaunchValue, flags != 0);
    *pHandle_out = made->number();
    const GraphLock lock;
    graph->conditions.push_back(std::move(made));
    return CUDA_SUCCESS;
}

CUresult cuUserObjectCreate(CUuserObject* object_out, void* ptr, CUhostFn destroy,
                            unsigned int initialRefcount, unsigned int flags) noexcept {
    if (object_out == nullptr || destroy == nullptr || initialRefcount == 0 ||
        flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *object_out =
        softgpu::publish<CUuserObject>(std::make_shared<UserObject>(ptr, destroy, initialRefcount));
    return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned int count) noexcept {
    const auto found = softgpu::find<UserObject>(object);
    GANTRY_REFUSE_IF(found == nullptr || count == 0, CUDA_ERROR_INVALID_VALUE);
    found->retain(count);
    return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned int count) noexcept {
    const auto found = softgpu::find<UserObject>(object);
    GANTRY_REFUSE_IF(found == nullptr || count == 0, CUDA_ERROR_INVALID_VALUE);
    return found->release(count) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
                                 unsigned int flags) noexcept {
    const auto found_graph = softgpu::find<Graph>(graph);
    const auto found = softgpu::find<UserObject>(object);
    GANTRY_REFUSE_IF(found_graph == nullptr || found == nullptr || count == 0,
                     CUDA_ERROR_INVALID_VALUE);
    const GraphLock lock;
    if ((flags & CU_GRAPH_USER_OBJECT_MOVE) == 0) {
        found->retain(count);
    }
    found_graph->user_objects[found] += count;
    return CUDA_SUCCESS;
}

CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count) noexcept {
    const auto found_graph = softgpu::find<Graph>(graph);
    const auto found = softgpu::find<UserObject>(object);
    GANTRY_REFUSE_IF(found_graph == nullptr || found == nullptr || count == 0,
                     CUDA_ERROR_INVALID_VALUE);
    const GraphLock lock;
    const auto held = found_graph->user_objects.find(found);
    GANTRY_REFUSE_IF(held == found_graph->user_objects.end() || held->second < count,
                     CUDA_ERROR_INVALID_VALUE);
    held->second -= count;
    if (held->second == 0) {
        found_graph->user_objects.erase(held);
    }
    found->release(count);
    return CUDA_SUCCESS;
}

}  // namespace gantry::cuda_impl
