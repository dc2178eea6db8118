// CUDA graphs: nodes whose payloads are written by hand, and lists of nodes.
#include "host-daemon/worker/handlers.h"

#include "host-daemon/worker/native_copy.h"
#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry::worker {
namespace {

using cuda::wire_hand::GraphCopyNodeCall;
using cuda::wire_hand::GraphHostNodeCall;
using cuda::wire_hand::GraphKernelNodeCall;
using cuda::wire_hand::GraphListCall;
using cuda::wire_hand::GraphListReply;

CUresult read_dependencies(Call& call, std::uint32_t count, std::span<const std::byte>& trailing,
                           std::vector<CUgraphNode>* out) {
    const auto handles = Call::read_array<std::uint64_t>(trailing, count);
    if (!handles) {
        return call.malformed(call.op(), "dependencies longer than the command");
    }
    for (const std::uint64_t handle : *handles) {
        out->push_back(
            call.process().objects.native_as<CUgraphNode>(handle, HandleKind::kGraphNode));
        if (out->back() == nullptr) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
    }
    return CUDA_SUCCESS;
}

/// A kernel node's parameters for the driver; the arguments stay in the command's bytes.
struct KernelParams {
    CUDA_KERNEL_NODE_PARAMS_v2 params{};
    std::size_t bytes = 0;
    void* extra[5] = {};
};

CUresult to_native_kernel(Call& call, const GraphKernelNodeCall& node,
                          std::span<const std::byte> arguments, KernelParams* out) {
    if (arguments.size() != node.launch.param_bytes) {
        return call.malformed(call.op(), "size of the packed arguments");
    }
    auto& params = out->params;
    params.func =
        call.process().objects.native_as<CUfunction>(node.launch.kernel, HandleKind::kFunction);
    if (params.func == nullptr) {
        params.kern =
            call.process().objects.native_as<CUkernel>(node.launch.kernel, HandleKind::kKernel);
        params.ctx = call.process().device.context();
        if (params.kern == nullptr) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
    }
    params.gridDimX = node.launch.grid[0];
    params.gridDimY = node.launch.grid[1];
    params.gridDimZ = node.launch.grid[2];
    params.blockDimX = node.launch.block[0];
    params.blockDimY = node.launch.block[1];
    params.blockDimZ = node.launch.block[2];
    params.sharedMemBytes = node.launch.shared_bytes;
    out->bytes = arguments.size();
    out->extra[0] = CU_LAUNCH_PARAM_BUFFER_POINTER;
    out->extra[1] = const_cast<std::byte*>(arguments.data());
    out->extra[2] = CU_LAUNCH_PARAM_BUFFER_SIZE;
    out->extra[3] = &out->bytes;
    out->extra[4] = CU_LAUNCH_PARAM_END;
    params.extra = arguments.empty() ? nullptr : out->extra;
    return CUDA_SUCCESS;
}

template <typename Handle>
CUresult need(Call& call, std::uint64_t handle, HandleKind kind, Handle* out) {
    *out = call.process().objects.native_as<Handle>(handle, kind);
    return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult need_in_exec(Call& call, std::uint64_t exec_handle, std::uint64_t node_handle,
                      CUgraphExec* exec, CUgraphNode* node) {
    std::uint64_t native = 0;
    CUresult result = call.resolve(HandleKind::kGraphExec, exec_handle, &native);
    *exec = reinterpret_cast<CUgraphExec>(native);
    if (result == CUDA_SUCCESS) {
        result = call.resolve(HandleKind::kGraphNode, node_handle, &native);
        *node = reinterpret_cast<CUgraphNode>(native);
    }
    return result;
}

void note_configured(Call& call, HandleKind kind, std::uint64_t handle,
                     std::span<const std::byte> trailing) {
    call.configured(kind, handle, Recipe{call.op(), call.args(), trailing});
}

/// Runs `add` with the graph and the dependencies, and notes the new node.
template <typename NodeCall, typename Add>
CUresult add_node(Call& call, const NodeCall& node, std::span<const std::byte> trailing, Add add) {
    CUgraph graph = nullptr;
    std::vector<CUgraphNode> dependencies;
    CUresult result = need(call, node.graph, HandleKind::kGraph, &graph);
    if (result == CUDA_SUCCESS) {
        result = call.reserve(HandleKind::kGraphNode, node.node);
    }
    if (result == CUDA_SUCCESS) {
        result = read_dependencies(call, node.dependency_count, trailing, &dependencies);
    }
    CUgraphNode made = nullptr;
    if (result == CUDA_SUCCESS) {
        result = add(&made, graph, dependencies, trailing);
    }
    return result == CUDA_SUCCESS
               ? call.add_object(node.node, reinterpret_cast<std::uint64_t>(made), node.graph)
               : result;
}

void run_host_function(void* callback) { CallbackBroker::run(callback, CUDA_SUCCESS); }

CUDA_HOST_NODE_PARAMS_v1 host_params(Call& call, const GraphHostNodeCall& node) {
    gantry::wire::CallbackReply reply{};
    reply.function = node.function;
    reply.user_data = node.user_data;
    reply.kind = gantry::wire::CallbackKind::kHostFunction;
    // Lives as long as the process: instances of the graph may outlive the node.
    return {run_host_function, call.process().callbacks.add_repeating(reply)};
}

}  // namespace

CUresult on_cuGraphAddKernelNode_v2(CallContext& context,
                                    const wire::cuGraphAddKernelNode_v2_call& node,
                                    std::span<const std::byte> trailing, Reply&) {
    Call& call = as_call(context);
    if (call.api().cuGraphAddKernelNode_v2 == nullptr) {
        return call.unsupported(call.op());
    }
    return add_node(call, node, trailing,
                    [&](CUgraphNode* made, CUgraph graph, const auto& dependencies,
                        std::span<const std::byte> arguments) {
                        KernelParams params;
                        const CUresult result = to_native_kernel(call, node, arguments, &params);
                        return result == CUDA_SUCCESS
                                   ? call.api().cuGraphAddKernelNode_v2(made, graph,
                                                                        dependencies.data(),
                                                                        dependencies.size(),
                                                                        &params.params)
                                   : result;
                    });
}

CUresult on_cuGraphKernelNodeSetParams_v2(CallContext& context,
                                          const wire::cuGraphKernelNodeSetParams_v2_call& node,
                                          std::span<const std::byte> trailing, Reply&) {
    Call& call = as_call(context);
    KernelParams params;
    CUgraphNode native = nullptr;
    if (call.api().cuGraphKernelNodeSetParams_v2 == nullptr) {
        return call.unsupported(call.op());
    }
    CUresult result = need(call, node.node, HandleKind::kGraphNode, &native);
    if (result == CUDA_SUCCESS) {
        result = to_native_kernel(call, node, trailing, &params);
    }
    if (result == CUDA_SUCCESS) {
        result = call.api().cuGraphKernelNodeSetParams_v2(native, &params.params);
    }
    if (result == CUDA_SUCCESS) {
        note_configured(call, HandleKind::kGraphNode, node.node, trailing);
    }
    return result;
}

CUresult on_cuGraphExecKernelNodeSetParams_v2(
    CallContext& context, const wire::cuGraphExecKernelNodeSetParams_v2_call& node,
    std::span<const std::byte> trailing, Reply&) {
    Call& call = as_call(context);
    KernelParams params;
    CUgraphNode native = nullptr;
    CUgraphExec exec = nullptr;
    if (call.api().cuGraphExecKernelNodeSetParams_v2 == nullptr) {
        return call.unsupported(call.op());
    }
    CUresult result = need_in_exec(call, node.graph, node.node, &exec, &native);
    if (result == CUDA_SUCCESS) {
        result = to_native_kernel(call, node, trailing, &params);
    }
    if (result == CUDA_SUCCESS) {
        result = call.api().cuGraphExecKernelNodeSetParams_v2(exec, native, &params.params);
    }
    if (result == CUDA_SUCCESS) {
        note_configured(call, HandleKind::kGraphExec, node.graph, trailing);
    }
    return result;
}

CUresult on_cuGraphAddMemcpyNode(CallContext& context, const wire::cuGraphAddMemcpyNode_call& node,
                                 std::span<const std::byte> trailing, Reply&) {
    Call& call = as_call(context);
    if (call.api().cuGraphAddMemcpyNode == nullptr) {
        return call.unsupported(call.op());
    }
    return add_node(call, node, trailing,
                    [&](CUgraphNode* made, CUgraph graph, const auto& dependencies,
                        std::span<const std::byte>) {
                        CUDA_MEMCPY3D_v2 copy;
                        const CUresult result = to_native_copy(call, node.copy, &copy);
                        return result == CUDA_SUCCESS
                                   ? call.api().cuGraphAddMemcpyNode(
                                         made, graph, dependencies.data(), dependencies.size(),
                                         &copy, call.process().device.context())
                                   : result;
                    });
}

CUresult on_cuGraphMemcpyNodeSetParams(CallContext& context,
                                       const wire::cuGraphMemcpyNodeSetParams_call& node,
                                       std::span<const std::byte> trailing, Reply&) {
    Call& call = as_call(context);
    CUgraphNode native = nullptr;
    CUDA_MEMCPY3D_v2 copy;
    if (call.api().cuGraphMemcpyNodeSetParams == nullptr) {
        return call.unsupported(call.op());
    }
    CUresult result = need(call, node.node, HandleKind::kGraphNode, &native);
    if (result == CUDA_SUCCESS) {
        result = to_native_copy(call, node.copy, &copy);
    }
    if (result == CUDA_SUCCESS) {
        result = call.api().cuGraphMemcpyNodeSetParams(native, &copy);
    }
    if (result == CUDA_SUCCESS) {
        note_configured(call, HandleKind::kGraphNode, node.node, trailing);
    }
    return result;
}

CUresult on_cuGraphExecMemcpyNodeSetParams(CallContext& context,
                                           const wire::cuGraphExecMemcpyNodeSetParams_call& node,
                                           std::span<const std::byte> trailing, Reply&) {
    Call& call = as_call(context);
    CUgraphNode native = nullptr;
    CUgraphExec exec = nullptr;
    CUDA_MEMCPY3D_v2 copy;
    if (call.api().cuGraphExecMemcpyNodeSetParams == nullptr) {
        return call.unsupported(call.op());
    }
    CUresult result = need_in_exec(call, node.graph, node.node, &exec, &native);
    if (result == CUDA_SUCCESS) {
        result = to_native_copy(call, node.copy, &copy);
    }
    if (result == CUDA_SUCCESS) {
        result = call.api().cuGraphExecMemcpyNodeSetParams(exec, native, &copy,
                                                           call.process().device.context());
    }
    if (result == CUDA_SUCCESS) {
        note_configured(call, HandleKind::kGraphExec, node.graph, trailing);
    }
    return result;
}

CUresult on_cuGraphAddHostNode(CallContext& context, const wire::cuGraphAddHostNode_call& node,
                               std::span<const std::byte> trailing, Reply&) {
    Call& call = as_call(context);
    if (call.api().cuGraphAddHostNode == nullptr) {
        return call.unsupported(call.op());
    }
    return add_node(call, node, trailing,
                    [&](CUgraphNode* made, CUgraph graph, const auto& dependencies,
                        std::span<const std::byte>) {
                        const CUDA_HOST_NODE_PARAMS_v1 params = host_params(call, node);
                        return call.api().cuGraphAddHostNode(made, graph, dependencies.data(),
                                                             dependencies.size(), &params);
                    });
}

CUresult on_cuGraphHostNodeSetParams(CallContext& context,
                                     const wire::cuGraphHostNodeSetParams_call& node,
                                     std::span<const std::byte> trailing, Reply&) {
    Call& call = as_call(context);
    CUgraphNode native = nullptr;
    if (call.api().cuGraphHostNodeSetParams == nullptr) {
        return call.unsupported(call.op());
    }
    CUresult result = need(call, node.node, HandleKind::kGraphNode, &native);
    if (result == CUDA_SUCCESS) {
        const CUDA_HOST_NODE_PARAMS_v1 params = host_params(call, node);
        result = call.api().cuGraphHostNodeSetParams(native, &params);
    }
    if (result == CUDA_SUCCESS) {
        note_configured(call, HandleKind::kGraphNode, node.node, trailing);
    }
    return result;
}

CUresult on_cuGraphExecHostNodeSetParams(CallContext& context,
                                         const wire::cuGraphExecHostNodeSetParams_call& node,
                                         std::span<const std::byte> trailing, Reply&) {
    Call& call = as_call(context);
    CUgraphNode native = nullptr;
    CUgraphExec exec = nullptr;
    if (call.api().cuGraphExecHostNodeSetParams == nullptr) {
        return call.unsupported(call.op());
    }
    CUresult result = need_in_exec(call, node.graph, node.node, &exec, &native);
    if (result == CUDA_SUCCESS) {
        const CUDA_HOST_NODE_PARAMS_v1 params = host_params(call, node);
        result = call.api().cuGraphExecHostNodeSetParams(exec, native, &params);
    }
    if (result == CUDA_SUCCESS) {
        note_configured(call, HandleKind::kGraphExec, node.graph, trailing);
    }
    return result;
}

namespace {

/// Handles of native nodes; such as a capture made get theirs from the guest's offered range.
CUresult name_nodes(Call& call, const GraphListCall& list, std::uint64_t owner,
                    std::span<const CUgraphNode> nodes, std::uint64_t* used,
                    std::vector<std::uint64_t>* out) {
    ObjectTable& objects = call.process().objects;
    for (const CUgraphNode node : nodes) {
        const auto native = reinterpret_cast<std::uint64_t>(node);
        std::uint64_t handle = objects.handle_of(native, HandleKind::kGraphNode);
        if (handle == 0) {
            if (*used >= list.new_handle_count) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            handle = list.first_new_handle + (*used)++;
            if (call.reserve(HandleKind::kGraphNode, handle) != CUDA_SUCCESS ||
                call.add_object(handle, native, owner) != CUDA_SUCCESS) {
                return CUDA_ERROR_INVALID_HANDLE;
            }
        }
        out->push_back(handle);
    }
    return CUDA_SUCCESS;
}

/// Asks the driver for a list of nodes (`get` with a null array tells how many), and answers.
template <typename Get>
CUresult answer_list(Call& call, const GraphListCall& list, std::uint64_t owner, bool has_pairs,
                     Reply& reply, Get get) {
    std::size_t count = 0;
    CUresult result = get(nullptr, nullptr, &count);
    std::vector<CUgraphNode> first(count);
    std::vector<CUgraphNode> second(has_pairs ? count : 0);
    if (result == CUDA_SUCCESS && count != 0 && list.capacity != 0) {
        result = get(first.data(), second.data(), &count);
    }
    GraphListReply answer{};
    answer.count = count;
    std::vector<std::uint64_t> handles;
    if (result == CUDA_SUCCESS && list.capacity != 0) {
        first.resize(std::min<std::uint64_t>(count, list.capacity));
        second.resize(has_pairs ? first.size() : 0);
        result = name_nodes(call, list, owner, first, &answer.new_handles_used, &handles);
        if (result == CUDA_SUCCESS) {
            result = name_nodes(call, list, owner, second, &answer.new_handles_used, &handles);
        }
        answer.count = first.size();
    }
    answer.trailing_bytes = static_cast<std::uint32_t>(handles.size() * sizeof(std::uint64_t));
    reply.put(answer);
    reply.trailing(std::as_bytes(std::span(handles)));
    return result;
}

}  // namespace

CUresult on_cuGraphGetNodes(CallContext& context, const wire::cuGraphGetNodes_call& list,
                            std::span<const std::byte>, Reply& reply) {
    Call& call = as_call(context);
    CUgraph graph = nullptr;
    if (call.api().cuGraphGetNodes == nullptr) {
        return call.unsupported(call.op());
    }
    const CUresult found = need(call, list.graph, HandleKind::kGraph, &graph);
    return found != CUDA_SUCCESS
               ? found
               : answer_list(call, list, list.graph, false, reply,
                             [&](CUgraphNode* nodes, CUgraphNode*, std::size_t* count) {
                                 return call.api().cuGraphGetNodes(graph, nodes, count);
                             });
}

CUresult on_cuGraphGetRootNodes(CallContext& context, const wire::cuGraphGetRootNodes_call& list,
                                std::span<const std::byte>, Reply& reply) {
    Call& call = as_call(context);
    CUgraph graph = nullptr;
    if (call.api().cuGraphGetRootNodes == nullptr) {
        return call.unsupported(call.op());
    }
    const CUresult found = need(call, list.graph, HandleKind::kGraph, &graph);
    return found != CUDA_SUCCESS
               ? found
               : answer_list(call, list, list.graph, false, reply,
                             [&](CUgraphNode* nodes, CUgraphNode*, std::size_t* count) {
                                 return call.api().cuGraphGetRootNodes(graph, nodes, count);
                             });
}

CUresult on_cuGraphGetEdges_v2(CallContext& context, const wire::cuGraphGetEdges_v2_call& list,
                               std::span<const std::byte>, Reply& reply) {
    Call& call = as_call(context);
    CUgraph graph = nullptr;
    if (call.api().cuGraphGetEdges_v2 == nullptr) {
        return call.unsupported(call.op());
    }
    const CUresult found = need(call, list.graph, HandleKind::kGraph, &graph);
    return found != CUDA_SUCCESS
               ? found
               : answer_list(call, list, list.graph, true, reply,
                             [&](CUgraphNode* from, CUgraphNode* to, std::size_t* count) {
                                 return call.api().cuGraphGetEdges_v2(graph, from, to, nullptr,
                                                                      count);
                             });
}

CUresult on_cuGraphNodeGetDependencies_v2(CallContext& context,
                                          const wire::cuGraphNodeGetDependencies_v2_call& list,
                                          std::span<const std::byte>, Reply& reply) {
    Call& call = as_call(context);
    CUgraphNode node = nullptr;
    if (call.api().cuGraphNodeGetDependencies_v2 == nullptr) {
        return call.unsupported(call.op());
    }
    const CUresult found = need(call, list.graph, HandleKind::kGraphNode, &node);
    return found != CUDA_SUCCESS
               ? found
               : answer_list(call, list, call.process().objects.parent_of(list.graph), false, reply,
                             [&](CUgraphNode* nodes, CUgraphNode*, std::size_t* count) {
                                 return call.api().cuGraphNodeGetDependencies_v2(node, nodes,
                                                                                 nullptr, count);
                             });
}

CUresult on_cuGraphNodeGetDependentNodes_v2(
    CallContext& context, const wire::cuGraphNodeGetDependentNodes_v2_call& list,
    std::span<const std::byte>, Reply& reply) {
    Call& call = as_call(context);
    CUgraphNode node = nullptr;
    if (call.api().cuGraphNodeGetDependentNodes_v2 == nullptr) {
        return call.unsupported(call.op());
    }
    const CUresult found = need(call, list.graph, HandleKind::kGraphNode, &node);
    return found != CUDA_SUCCESS
               ? found
               : answer_list(call, list, call.process().objects.parent_of(list.graph), false, reply,
                             [&](CUgraphNode* nodes, CUgraphNode*, std::size_t* count) {
                                 return call.api().cuGraphNodeGetDependentNodes_v2(node, nodes,
                                                                                   nullptr, count);
                             });
}

}  // namespace gantry::worker
