#include "host-daemon/softgpu/api/graph_common.h"

#include "host-daemon/softgpu/core/errors.h"

namespace gantry::softgpu {

std::shared_ptr<GraphNode> find_node(CUgraphNode handle, CUgraphNodeType type) {
    auto node = find<GraphNode>(handle);
    return node != nullptr && node->operation->type() == type ? node : nullptr;
}

CUresult resolve_edges(const Graph& graph, const CUgraphNode* dependencies,
                       const CUgraphEdgeData* data, std::size_t count,
                       std::vector<GraphEdge>& edges) {
    GANTRY_REFUSE_IF(count != 0 && dependencies == nullptr, CUDA_ERROR_INVALID_VALUE);
    for (std::size_t i = 0; i < count; ++i) {
        auto node = find<GraphNode>(dependencies[i]);
        GANTRY_REFUSE_IF(node == nullptr || node->graph.lock().get() != &graph,
                         CUDA_ERROR_INVALID_VALUE);
        for (const GraphEdge& edge : edges) {
            GANTRY_REFUSE_IF(edge.from == node, CUDA_ERROR_INVALID_VALUE);
        }
        edges.push_back({std::move(node), data != nullptr ? data[i] : CUgraphEdgeData{}});
    }
    return CUDA_SUCCESS;
}

CUresult add_node(CUgraphNode* out, CUgraph graph_handle, const CUgraphNode* dependencies,
                  const CUgraphEdgeData* data, std::size_t count, OperationPtr operation) {
    const GraphLock lock;
    const auto graph = find<Graph>(graph_handle);
    GANTRY_REFUSE_IF(out == nullptr || graph == nullptr, CUDA_ERROR_INVALID_VALUE);
    std::vector<GraphEdge> edges;
    GANTRY_CU(resolve_edges(*graph, dependencies, data, count, edges));
    *out = graph->add(lock, std::move(operation), std::move(edges))->as<CUgraphNode>();
    return CUDA_SUCCESS;
}

CUresult replace_operation(CUgraphNode handle, OperationPtr operation) {
    const GraphLock lock;
    const auto node = find_node(handle, operation->type());
    GANTRY_REFUSE_IF(node == nullptr, CUDA_ERROR_INVALID_VALUE);
    node->set_operation(lock, std::move(operation));
    return CUDA_SUCCESS;
}

}  // namespace gantry::softgpu
