// cuGraphDebugDotPrint: the file is the program's, so it is written here, of what the program could
// ask about the graph itself.
#include <cstdio>
#include <cstdlib>

#include "guest-shim/driver/core/objects.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/refuse_if.h"

namespace gantry::shim {
namespace {

const char* name_of(CUgraphNodeType type) {
    constexpr const char* kNames[] = {"KERNEL",         "MEMCPY",       "MEMSET",
                                      "HOST",           "GRAPH",        "EMPTY",
                                      "WAIT_EVENT",     "EVENT_RECORD", "EXT_SEMAS_SIGNAL",
                                      "EXT_SEMAS_WAIT", "MEM_ALLOC",    "MEM_FREE",
                                      "BATCH_MEM_OP",   "CONDITIONAL"};
    const auto number = static_cast<unsigned>(type);
    return number < sizeof(kNames) / sizeof(kNames[0]) ? kNames[number] : "UNKNOWN";
}

/// Node handles, malloc'ed; as the lists of CUDA's API give them.
struct NodeList {
    NodeList() noexcept = default;
    NodeList(const NodeList&) = delete;
    NodeList& operator=(const NodeList&) = delete;
    ~NodeList() { std::free(nodes); }

    bool make_room() noexcept {
        nodes = static_cast<CUgraphNode*>(std::calloc(count + 1, sizeof(CUgraphNode)));
        return nodes != nullptr;
    }
    [[nodiscard]] std::size_t find(CUgraphNode node) const noexcept {
        std::size_t at = 0;
        while (at < count && nodes[at] != node) {
            ++at;
        }
        return at;
    }

    CUgraphNode* nodes = nullptr;
    std::size_t count = 0;
};

CUresult list_nodes(CUgraph graph, NodeList* out) {
    CUresult result = cuda_impl::cuGraphGetNodes(graph, nullptr, &out->count);
    GANTRY_REFUSE_IF(result == CUDA_SUCCESS && !out->make_room(), CUDA_ERROR_OUT_OF_MEMORY);
    if (result == CUDA_SUCCESS && out->count != 0) {
        result = cuda_impl::cuGraphGetNodes(graph, out->nodes, &out->count);
    }
    return result;
}

CUresult list_edges(CUgraph graph, NodeList* from, NodeList* to) {
    CUresult result = cuda_impl::cuGraphGetEdges(graph, nullptr, nullptr, &from->count);
    to->count = from->count;
    GANTRY_REFUSE_IF(result == CUDA_SUCCESS && (!from->make_room() || !to->make_room()),
                     CUDA_ERROR_OUT_OF_MEMORY);
    if (result == CUDA_SUCCESS && from->count != 0) {
        result = cuda_impl::cuGraphGetEdges(graph, from->nodes, to->nodes, &from->count);
    }
    return result;
}

class Writer {
public:
    Writer(std::FILE* file, unsigned flags) : file_(file), flags_(flags) {}

    CUresult write(CUgraph graph) {
        std::fprintf(file_, "digraph dot {\n");
        const CUresult result = write_cluster(graph);
        std::fprintf(file_, "}\n");
        return result;
    }

private:
    static constexpr int kMostDepth = 64;  // Of child graphs.

    CUresult write_cluster(CUgraph graph) {
        const int number = graphs_++;
        NodeList nodes;
        NodeList from;
        NodeList to;
        CUresult result = list_nodes(graph, &nodes);
        if (result == CUDA_SUCCESS) {
            result = list_edges(graph, &from, &to);
        }
        std::fprintf(file_, "subgraph cluster_%d {\nlabel=\"graph_%d\" graph[style=\"dashed\"];\n",
                     number, number);
        for (std::size_t i = 0; i < nodes.count && result == CUDA_SUCCESS; ++i) {
            result = write_node(nodes.nodes[i], number, i);
        }
        for (std::size_t i = 0; i < from.count && result == CUDA_SUCCESS; ++i) {
            std::fprintf(file_, "\"graph_%d_node_%zu\" -> \"graph_%d_node_%zu\";\n", number,
                         nodes.find(from.nodes[i]), number, nodes.find(to.nodes[i]));
        }
        std::fprintf(file_, "}\n");
        return result;
    }

    CUresult write_node(CUgraphNode node, int graph, std::size_t number) {
        CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
        CUresult result = cuda_impl::cuGraphNodeGetType(node, &type);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        std::fprintf(file_, "\"graph_%d_node_%zu\"[shape=\"rectangle\" label=\"%zu\\n%s", graph,
                     number, number, name_of(type));
        if (type == CU_GRAPH_NODE_TYPE_KERNEL) {
            write_kernel(node);
        }
        constexpr unsigned kHandles =
            CU_GRAPH_DEBUG_DOT_FLAGS_HANDLES | CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE;
        if ((flags_ & kHandles) != 0) {
            std::fprintf(file_, "\\nnode handle: %p", static_cast<void*>(node));
        }
        std::fprintf(file_, "\"];\n");
        CUgraph child = nullptr;
        if (type == CU_GRAPH_NODE_TYPE_GRAPH && depth_ < kMostDepth &&
            cuda_impl::cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS) {
            ++depth_;
            result = write_cluster(child);
            --depth_;
        }
        return result;
    }

    void write_kernel(CUgraphNode node) {
        CUDA_KERNEL_NODE_PARAMS_v2 params{};
        const char* name = nullptr;
        if (cuda_impl::cuGraphKernelNodeGetParams_v2(node, &params) != CUDA_SUCCESS) {
            return;
        }
        const bool is_named = params.func != nullptr
                                  ? cuda_impl::cuFuncGetName(&name, params.func) == CUDA_SUCCESS
                                  : cuda_impl::cuKernelGetName(&name, params.kern) == CUDA_SUCCESS;
        if (is_named) {
            std::fprintf(file_, "\\n%s", name);
        }
        constexpr unsigned kParams =
            CU_GRAPH_DEBUG_DOT_FLAGS_KERNEL_NODE_PARAMS | CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE;
        if ((flags_ & kParams) != 0) {
            std::fprintf(file_, "\\n\\<\\<\\<%u,%u,%u, %u,%u,%u, %u\\>\\>\\>", params.gridDimX,
                         params.gridDimY, params.gridDimZ, params.blockDimX, params.blockDimY,
                         params.blockDimZ, params.sharedMemBytes);
        }
    }

    std::FILE* file_;
    unsigned flags_;
    int graphs_ = 0;
    int depth_ = 0;
};

}  // namespace
}  // namespace gantry::shim

namespace gantry::cuda_impl {

using namespace gantry::shim;

CUresult cuGraphDebugDotPrint(CUgraph hGraph, const char* path, unsigned int flags) noexcept {
    std::size_t count = 0;
    GANTRY_REFUSE_IF(path == nullptr, CUDA_ERROR_INVALID_VALUE);
    if (const CUresult result = cuGraphGetNodes(hGraph, nullptr, &count); result != CUDA_SUCCESS) {
        return result;
    }
    std::FILE* file = std::fopen(path, "w");
    GANTRY_REFUSE_IF(file == nullptr, CUDA_ERROR_OPERATING_SYSTEM);
    const CUresult result = Writer(file, flags).write(hGraph);
    const bool is_written = std::fclose(file) == 0;
    return result == CUDA_SUCCESS && !is_written ? CUDA_ERROR_OPERATING_SYSTEM : result;
}

}  // namespace gantry::cuda_impl
