// Graph nodes that this process has added itself, as opposed to such that a capture made.
#pragma once

#include "guest-shim/driver/objects.h"

namespace gantry::shim {

/// What a node was given here, for the getters. The pointers lead into the record's own memory.
struct GraphNode {
    std::uint64_t handle;
    std::uint64_t graph;
    CUgraphNodeType type;
    CUDA_KERNEL_NODE_PARAMS_v2 kernel;
    std::byte* packed;       ///< Kernel: its packed arguments.
    void** param_pointers;   ///< Kernel: into packed.
    CUDA_MEMCPY3D copy;
    CUDA_HOST_NODE_PARAMS host;
    CUDA_MEM_ALLOC_NODE_PARAMS alloc;  ///< Without access descriptions.
    CUdeviceptr freed;
};

extern SlotTable<GraphNode> g_nodes;
void release_parts(GraphNode* node) noexcept;

inline bool are_plausible(const CUgraphNode* dependencies, size_t count) {
    return count == 0 || (dependencies != nullptr && count <= 1u << 20);
}

/// Names a node, lets `send(node)` make it on the host, and gives it to the application.
template <typename Send>
CUresult add_node(CUgraphNode* out, CUgraph graph, CUgraphNodeType type,
                  const CUgraphNode* dependencies, size_t count, Send send) {
    if (out == nullptr || !are_plausible(dependencies, count)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (cuda::handle_kind(bits(graph)) != HandleKind::kGraph) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::uint64_t handle = 0;
    GraphNode* node = g_nodes.create(HandleKind::kGraphNode, &handle);
    if (node == nullptr) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    node->handle = handle;
    node->graph = bits(graph);
    node->type = type;
    const CUresult result = send(node);
    if (result != CUDA_SUCCESS) {
        release_parts(node);
        g_nodes.destroy(handle);
        return result;
    }
    *out = reinterpret_cast<CUgraphNode>(handle);
    return CUDA_SUCCESS;
}

inline GraphNode* known_node(CUgraphNode node, CUgraphNodeType type) {
    GraphNode* found = g_nodes.find(bits(node));
    return found != nullptr && found->type == type ? found : nullptr;
}

inline bool is_node(CUgraphNode node) {
    return cuda::handle_kind(bits(node)) == HandleKind::kGraphNode;
}

}  // namespace gantry::shim
