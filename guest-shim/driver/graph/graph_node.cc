// Graph nodes whose parameters hold pointers or handles: kernels, copies, host functions.
#include "guest-shim/driver/graph/graph_node.h"

#include <cstdlib>
#include <cstring>

#include "guest-shim/driver/code/launch.h"
#include "guest-shim/driver/core/call_rules.h"
#include "guest-shim/driver/memory/graph_copy.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/shim_marshal.h"
#include "proto/cuda/gen/wire_structs.h"
#include "proto/cuda/refuse_if.h"

namespace gantry::shim {

constinit SlotTable<GraphNode> g_nodes;

void release_arguments(KeptArguments* kept) noexcept {
    std::free(kept->packed);
    std::free(kept->pointers);
    *kept = {};
}

void release_node(GraphNode* node) noexcept {
    release_arguments(&node->arguments);
    std::free(node->bodies);
    node->bodies = nullptr;
}

void keep_arguments(KeptArguments* kept, bool is_same_kernel, const Kernel& kernel,
                    const std::byte* packed, std::uint32_t bytes) noexcept {
    if (!is_same_kernel || kept->packed == nullptr) {
        release_arguments(kept);
        kept->packed = static_cast<std::byte*>(std::malloc(bytes + 1));
        kept->pointers = static_cast<void**>(std::calloc(kernel.param_count + 1, sizeof(void*)));
        if (kept->packed == nullptr || kept->pointers == nullptr) {
            release_arguments(kept);
            return;
        }
    }
    std::memcpy(kept->packed, packed, bytes);
    for (std::uint32_t i = 0; i < kernel.param_count; ++i) {
        kept->pointers[i] = kept->packed + kernel.params[i].offset;
    }
}

namespace {

using cuda::wire_hand::GraphCopyNodeCall;
using cuda::wire_hand::GraphHostNodeCall;
using cuda::wire_hand::GraphKernelNodeCall;

struct KernelParams {
    const Kernel* kernel = nullptr;
    Shape shape{};
    Arguments arguments{};
    std::uint32_t packed = 0;
};

CUresult read_kernel(const CUDA_KERNEL_NODE_PARAMS_v2& params, KernelParams* out) {
    const void* function = params.func != nullptr ? static_cast<const void*>(params.func)
                                                  : static_cast<const void*>(params.kern);
    out->kernel = find_kernel(function);
    GANTRY_REFUSE_IF(out->kernel == nullptr, CUDA_ERROR_INVALID_HANDLE);
    out->shape = Shape{{params.gridDimX, params.gridDimY, params.gridDimZ},
                       {params.blockDimX, params.blockDimY, params.blockDimZ},
                       params.sharedMemBytes};
    out->arguments = Arguments{params.kernelParams, params.extra};
    if (const CUresult result = check_shape(*out->kernel, out->shape); result != CUDA_SUCCESS) {
        return result;
    }
    return packed_bytes(*out->kernel, out->arguments, &out->packed);
}

/// Dependencies, then `rest` bytes that the caller fills; malloc'ed.
std::byte* make_trailing(const CUgraphNode* dependencies, size_t count, std::uint32_t rest,
                         std::uint32_t* bytes) {
    const size_t head = count * sizeof(std::uint64_t);
    auto* trailing = static_cast<std::byte*>(std::malloc(head + rest + 1));
    if (trailing != nullptr && count != 0) {
        std::memcpy(trailing, dependencies, head);
    }
    *bytes = static_cast<std::uint32_t>(head + rest);
    return trailing;
}

/// Keeps a copy of the kernel's parameters that the application may read back.
void remember_kernel(GraphNode* node, const KernelParams& params,
                     const CUDA_KERNEL_NODE_PARAMS_v2& given, const std::byte* packed) {
    const CUfunction before = node->kernel.func;
    node->kernel = given;
    node->kernel.extra = nullptr;
    name_kernel(*params.kernel, &node->kernel);
    if (given.ctx == nullptr) {
        node->kernel.ctx = reinterpret_cast<CUcontext>(session::current_context());
    }
    keep_arguments(&node->arguments, node->kernel.func == before, *params.kernel, packed,
                   params.packed);
    node->kernel.kernelParams = node->arguments.pointers;
}

/// Sends a kernel node's parameters; `node` is named already. `record` may be null.
CUresult send_kernel(cuda::Op op, std::uint64_t graph, std::uint64_t node,
                     const CUgraphNode* dependencies, size_t count,
                     const CUDA_KERNEL_NODE_PARAMS_v2& given, GraphNode* record) {
    KernelParams params;
    if (const CUresult result = read_kernel(given, &params); result != CUDA_SUCCESS) {
        return result;
    }
    GraphKernelNodeCall call{};
    call.graph = graph;
    call.node = node;
    call.dependency_count = static_cast<std::uint32_t>(count);
    call.launch.kernel = params.kernel->handle;
    std::memcpy(call.launch.grid, params.shape.grid, sizeof(call.launch.grid));
    std::memcpy(call.launch.block, params.shape.block, sizeof(call.launch.block));
    call.launch.shared_bytes = params.shape.shared_bytes;
    call.launch.param_bytes = params.packed;
    std::uint32_t bytes = 0;
    std::byte* trailing = make_trailing(dependencies, count, params.packed, &bytes);
    GANTRY_REFUSE_IF(trailing == nullptr, CUDA_ERROR_OUT_OF_MEMORY);
    std::byte* packed = trailing + count * sizeof(std::uint64_t);
    pack(*params.kernel, params.arguments, packed, params.packed);
    const CUresult result =
        session::call(op, &call, sizeof(call), trailing, bytes, nullptr, 0, nullptr, 0, nullptr);
    if (result == CUDA_SUCCESS && record != nullptr) {
        remember_kernel(record, params, given, packed);
    }
    std::free(trailing);
    return result;
}

/// `owner`: the graph or exec that may run the copy.
CUresult send_copy(cuda::Op op, std::uint64_t owner, std::uint64_t graph, std::uint64_t node,
                   const CUgraphNode* dependencies, size_t count, const CUDA_MEMCPY3D& given,
                   CUcontext context) {
    GraphCopyNodeCall call{};
    StagedCopy* staged = nullptr;
    CUresult result = stage_copy(shaped(given), &call, &staged);
    if (result == CUDA_SUCCESS) {
        call.graph = graph;
        call.node = node;
        call.dependency_count = static_cast<std::uint32_t>(count);
        call.context = context != nullptr ? bits(context) : session::current_context();
        result = session::call(op, &call, sizeof(call), dependencies,
                               static_cast<std::uint32_t>(count * sizeof(std::uint64_t)), nullptr,
                               0, nullptr, 0, nullptr);
    }
    if (result != CUDA_SUCCESS) {
        drop_copy(staged);
        return result;
    }
    own_copy(owner, staged);
    return CUDA_SUCCESS;
}

CUresult send_host(cuda::Op op, std::uint64_t graph, std::uint64_t node,
                   const CUgraphNode* dependencies, size_t count,
                   const CUDA_HOST_NODE_PARAMS& given) {
    GANTRY_REFUSE_IF(given.fn == nullptr, CUDA_ERROR_INVALID_VALUE);
    if (const CUresult result = session::start_callbacks(); result != CUDA_SUCCESS) {
        return result;
    }
    GraphHostNodeCall call{};
    call.graph = graph;
    call.node = node;
    call.dependency_count = static_cast<std::uint32_t>(count);
    call.function = reinterpret_cast<std::uint64_t>(given.fn);
    call.user_data = bits(given.userData);
    return session::call(op, &call, sizeof(call), dependencies,
                         static_cast<std::uint32_t>(count * sizeof(std::uint64_t)), nullptr, 0,
                         nullptr, 0, nullptr);
}

CUDA_KERNEL_NODE_PARAMS_v2 widened(const CUDA_KERNEL_NODE_PARAMS_v1& params) {
    CUDA_KERNEL_NODE_PARAMS_v2 out{};
    std::memcpy(&out, &params, sizeof(params));
    return out;
}

bool is_exec(CUgraphExec exec) { return cuda::handle_kind(bits(exec)) == HandleKind::kGraphExec; }

}  // namespace
}  // namespace gantry::shim

namespace gantry::shim::rules {

namespace {

CUresult look_at_kernel(CUgraphNode node) {
    CUkernelNodeAttrValue_v1 any{};
    return marshal::cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &any);
}

}  // namespace

Answer updatable_node(CUgraphNode node, CUkernelNodeAttrID attribute,
                      CUkernelNodeAttrValue_v1* value) noexcept {
    if (attribute != CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE || value == nullptr) {
        return {};
    }
    const CUresult result = look_at_kernel(node);
    if (result == CUDA_SUCCESS) {
        *value = {};
    }
    return result;
}

Answer updatable_node(CUgraphNode node, CUkernelNodeAttrID attribute,
                      const CUkernelNodeAttrValue_v1* value) noexcept {
    if (attribute != CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE || value == nullptr) {
        return {};
    }
    const CUresult result = look_at_kernel(node);
    return result == CUDA_SUCCESS && value->deviceUpdatableKernelNode.deviceUpdatable != 0
               ? CUDA_ERROR_NOT_SUPPORTED
               : result;
}

Answer known_node_type(CUgraphNode handle, CUgraphNodeType* type) noexcept {
    const GraphNode* node = g_nodes.find(bits(handle));
    if (node == nullptr || type == nullptr) {
        return {};
    }
    *type = node->type;
    return CUDA_SUCCESS;
}

void graph_ended(CUgraph graph) noexcept {
    g_nodes.for_each([&](std::uint64_t handle, GraphNode* node) {
        if (node->graph != bits(graph)) {
            return;
        }
        // A conditional node's graphs end with it.
        for (unsigned i = 0; i < node->body_count; ++i) {
            graph_ended(node->bodies[i]);
        }
        release_node(node);
        g_nodes.destroy(handle);
    });
    forget_asked(bits(graph));
    disown_copies(bits(graph));
}

void child_graph_named(CUgraph graph) noexcept { inherit_all_copies(bits(graph)); }

}  // namespace gantry::shim::rules

namespace gantry::cuda_impl {

using namespace gantry::shim;

CUresult cuGraphAddKernelNode_v2(CUgraphNode* phGraphNode, CUgraph hGraph,
                                 const CUgraphNode* dependencies, size_t numDependencies,
                                 const CUDA_KERNEL_NODE_PARAMS_v2* nodeParams) noexcept {
    GANTRY_REFUSE_IF(nodeParams == nullptr, CUDA_ERROR_INVALID_VALUE);
    return add_node(phGraphNode, hGraph, CU_GRAPH_NODE_TYPE_KERNEL, dependencies, numDependencies,
                    [&](GraphNode* node) {
                        return send_kernel(cuda::Op::cuGraphAddKernelNode_v2, bits(hGraph),
                                           node->handle, dependencies, numDependencies, *nodeParams,
                                           node);
                    });
}

CUresult cuGraphAddKernelNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                              const CUgraphNode* dependencies, size_t numDependencies,
                              const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) noexcept {
    GANTRY_REFUSE_IF(nodeParams == nullptr, CUDA_ERROR_INVALID_VALUE);
    const CUDA_KERNEL_NODE_PARAMS_v2 wide = widened(*nodeParams);
    return cuGraphAddKernelNode_v2(phGraphNode, hGraph, dependencies, numDependencies, &wide);
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode hNode,
                                       CUDA_KERNEL_NODE_PARAMS_v2* nodeParams) noexcept {
    const GraphNode* node = known_node(hNode, CU_GRAPH_NODE_TYPE_KERNEL);
    GANTRY_REFUSE_IF(nodeParams == nullptr || !is_node(hNode), CUDA_ERROR_INVALID_VALUE);
    if (node == nullptr) {
        return ask_kernel(hNode, nodeParams);
    }
    *nodeParams = node->kernel;
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode hNode,
                                    CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) noexcept {
    CUDA_KERNEL_NODE_PARAMS_v2 wide{};
    GANTRY_REFUSE_IF(nodeParams == nullptr, CUDA_ERROR_INVALID_VALUE);
    const CUresult result = cuGraphKernelNodeGetParams_v2(hNode, &wide);
    if (result == CUDA_SUCCESS) {
        std::memcpy(nodeParams, &wide, sizeof(*nodeParams));
    }
    return result;
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode hNode,
                                       const CUDA_KERNEL_NODE_PARAMS_v2* nodeParams) noexcept {
    GANTRY_REFUSE_IF(nodeParams == nullptr || !is_node(hNode), CUDA_ERROR_INVALID_VALUE);
    return send_kernel(cuda::Op::cuGraphKernelNodeSetParams_v2, 0, bits(hNode), nullptr, 0,
                       *nodeParams, known_node(hNode, CU_GRAPH_NODE_TYPE_KERNEL));
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode hNode,
                                    const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) noexcept {
    GANTRY_REFUSE_IF(nodeParams == nullptr, CUDA_ERROR_INVALID_VALUE);
    const CUDA_KERNEL_NODE_PARAMS_v2 wide = widened(*nodeParams);
    return cuGraphKernelNodeSetParams_v2(hNode, &wide);
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                           const CUDA_KERNEL_NODE_PARAMS_v2* nodeParams) noexcept {
    GANTRY_REFUSE_IF(nodeParams == nullptr || !is_node(hNode) || !is_exec(hGraphExec),
                     CUDA_ERROR_INVALID_VALUE);
    return send_kernel(cuda::Op::cuGraphExecKernelNodeSetParams_v2, bits(hGraphExec), bits(hNode),
                       nullptr, 0, *nodeParams, nullptr);
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) noexcept {
    GANTRY_REFUSE_IF(nodeParams == nullptr, CUDA_ERROR_INVALID_VALUE);
    const CUDA_KERNEL_NODE_PARAMS_v2 wide = widened(*nodeParams);
    return cuGraphExecKernelNodeSetParams_v2(hGraphExec, hNode, &wide);
}

CUresult cuGraphAddMemcpyNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                              const CUgraphNode* dependencies, size_t numDependencies,
                              const CUDA_MEMCPY3D* copyParams, CUcontext ctx) noexcept {
    GANTRY_REFUSE_IF(copyParams == nullptr, CUDA_ERROR_INVALID_VALUE);
    return add_node(phGraphNode, hGraph, CU_GRAPH_NODE_TYPE_MEMCPY, dependencies, numDependencies,
                    [&](GraphNode* node) {
                        node->copy = *copyParams;
                        return send_copy(cuda::Op::cuGraphAddMemcpyNode, bits(hGraph), bits(hGraph),
                                         node->handle, dependencies, numDependencies, *copyParams,
                                         ctx);
                    });
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode hNode, CUDA_MEMCPY3D* nodeParams) noexcept {
    const GraphNode* node = known_node(hNode, CU_GRAPH_NODE_TYPE_MEMCPY);
    GANTRY_REFUSE_IF(nodeParams == nullptr || !is_node(hNode), CUDA_ERROR_INVALID_VALUE);
    if (node == nullptr) {
        return ask_copy(hNode, nodeParams);
    }
    *nodeParams = node->copy;
    return CUDA_SUCCESS;
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D* nodeParams) noexcept {
    GANTRY_REFUSE_IF(nodeParams == nullptr || !is_node(hNode), CUDA_ERROR_INVALID_VALUE);
    GraphNode* node = known_node(hNode, CU_GRAPH_NODE_TYPE_MEMCPY);
    const CUresult result =
        send_copy(cuda::Op::cuGraphMemcpyNodeSetParams, node != nullptr ? node->graph : 0, 0,
                  bits(hNode), nullptr, 0, *nodeParams, nullptr);
    if (result == CUDA_SUCCESS && node != nullptr) {
        node->copy = *nodeParams;
    }
    return result;
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_MEMCPY3D* copyParams, CUcontext ctx) noexcept {
    GANTRY_REFUSE_IF(copyParams == nullptr || !is_node(hNode) || !is_exec(hGraphExec),
                     CUDA_ERROR_INVALID_VALUE);
    return send_copy(cuda::Op::cuGraphExecMemcpyNodeSetParams, bits(hGraphExec), bits(hGraphExec),
                     bits(hNode), nullptr, 0, *copyParams, ctx);
}

CUresult cuGraphAddHostNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                            const CUgraphNode* dependencies, size_t numDependencies,
                            const CUDA_HOST_NODE_PARAMS* nodeParams) noexcept {
    GANTRY_REFUSE_IF(nodeParams == nullptr, CUDA_ERROR_INVALID_VALUE);
    return add_node(phGraphNode, hGraph, CU_GRAPH_NODE_TYPE_HOST, dependencies, numDependencies,
                    [&](GraphNode* node) {
                        node->host = *nodeParams;
                        return send_host(cuda::Op::cuGraphAddHostNode, bits(hGraph), node->handle,
                                         dependencies, numDependencies, *nodeParams);
                    });
}

CUresult cuGraphHostNodeGetParams(CUgraphNode hNode, CUDA_HOST_NODE_PARAMS* nodeParams) noexcept {
    const GraphNode* node = known_node(hNode, CU_GRAPH_NODE_TYPE_HOST);
    GANTRY_REFUSE_IF(nodeParams == nullptr || !is_node(hNode), CUDA_ERROR_INVALID_VALUE);
    if (node == nullptr) {
        return ask_host(hNode, nodeParams);
    }
    *nodeParams = node->host;
    return CUDA_SUCCESS;
}

CUresult cuGraphHostNodeSetParams(CUgraphNode hNode,
                                  const CUDA_HOST_NODE_PARAMS* nodeParams) noexcept {
    GANTRY_REFUSE_IF(nodeParams == nullptr || !is_node(hNode), CUDA_ERROR_INVALID_VALUE);
    const CUresult result =
        send_host(cuda::Op::cuGraphHostNodeSetParams, 0, bits(hNode), nullptr, 0, *nodeParams);
    GraphNode* node = known_node(hNode, CU_GRAPH_NODE_TYPE_HOST);
    if (result == CUDA_SUCCESS && node != nullptr) {
        node->host = *nodeParams;
    }
    return result;
}

CUresult cuGraphExecHostNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                      const CUDA_HOST_NODE_PARAMS* nodeParams) noexcept {
    GANTRY_REFUSE_IF(nodeParams == nullptr || !is_node(hNode) || !is_exec(hGraphExec),
                     CUDA_ERROR_INVALID_VALUE);
    return send_host(cuda::Op::cuGraphExecHostNodeSetParams, bits(hGraphExec), bits(hNode), nullptr,
                     0, *nodeParams);
}

}  // namespace gantry::cuda_impl
