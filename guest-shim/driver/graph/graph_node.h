// Graph nodes that this process has added itself, and those that a capture or a clone made, of
// which the host is asked (graph_asked.cc).
#pragma once

#include "guest-shim/driver/core/objects.h"

namespace gantry::shim {

/// A kernel node's arguments in memory of their own, into which its kernelParams lead.
struct KeptArguments {
    std::byte* packed;
    void** pointers;
};

/// Null pointers when memory is out. What was kept before is overwritten where it stands if it is
/// of the same kernel, whose pointers the application may still have.
void keep_arguments(KeptArguments* kept, bool is_same_kernel, const Kernel& kernel,
                    const std::byte* packed, std::uint32_t bytes) noexcept;
void release_arguments(KeptArguments* kept) noexcept;

/// What a node was given here, for the getters.
struct GraphNode {
    std::uint64_t handle;
    std::uint64_t graph;
    CUgraphNodeType type;
    CUDA_KERNEL_NODE_PARAMS_v2 kernel;
    KeptArguments arguments;  ///< Kernel.
    CUDA_MEMCPY3D copy;
    CUDA_HOST_NODE_PARAMS host;
    CUDA_MEM_ALLOC_NODE_PARAMS alloc;  ///< Without access descriptions.
    CUdeviceptr freed;
    CUgraph* bodies;  ///< Conditional: as the application was given them.
    unsigned body_count;
};

/// Frees what the node keeps. It goes, or has not come about.
void release_node(GraphNode* node) noexcept;

extern SlotTable<GraphNode> g_nodes;

/// As native names a kernel in a node, however it was given: as the function of its context, and if
/// that is a library's, as its kernel too (CUDA 13.0, seen on an H100).
void name_kernel(const Kernel& kernel, CUDA_KERNEL_NODE_PARAMS_v2* out) noexcept;
/// What the host's driver tells of a node that is not in g_nodes. The arguments of a kernel are
/// kept here until its graph is destroyed.
CUresult ask_kernel(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2* out) noexcept;
CUresult ask_copy(CUgraphNode node, CUDA_MEMCPY3D* out) noexcept;
CUresult ask_host(CUgraphNode node, CUDA_HOST_NODE_PARAMS* out) noexcept;
/// The graph is destroyed.
void forget_asked(std::uint64_t graph) noexcept;

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
        release_node(node);
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
