// Shared by the files that implement cuGraph*.
#pragma once

#include <memory>

#include "host-daemon/softgpu/graph/graph.h"
#include "proto/cuda/abi.h"

namespace gantry::softgpu {

/// The node if it is of this type, else null.
std::shared_ptr<GraphNode> find_node(CUgraphNode handle, CUgraphNodeType type);

/// Resolves dependencies; all have to be nodes of `graph`.
CUresult resolve_edges(const Graph& graph, const CUgraphNode* dependencies,
                       const CUgraphEdgeData* data, std::size_t count,
                       std::vector<GraphEdge>& edges);

CUresult add_node(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                  const CUgraphEdgeData* data, std::size_t count, OperationPtr operation);

/// Gives a node a new operation of the same type.
CUresult replace_operation(CUgraphNode handle, OperationPtr operation);

}  // namespace gantry::softgpu
