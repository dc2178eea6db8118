// CUDA graphs: kernel nodes and host nodes.
#include <algorithm>
#include <string>

#include "host-daemon/execution/calls/graph_calls.h"

namespace gantry::worker {
namespace {

using cuda::wire_hand::GraphHostNodeCall;
using cuda::wire_hand::GraphKernelNodeCall;

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

CUDA_HOST_NODE_PARAMS_v1 host_params(Call& call, const GraphHostNodeCall& node) {
    return host_node(call, node.function, node.user_data,
                     gantry::wire::CallbackKind::kHostFunction);
}

/// What the driver tells of a node; `entry`: its getter, null where it has none.
template <typename Params>
CUresult read_node(Call& call, std::uint64_t node, CUresult (*entry)(CUgraphNode, Params*),
                   Params* params) {
    CUgraphNode native = nullptr;
    if (entry == nullptr) {
        return call.unsupported(call.op());
    }
    const CUresult result = need(call, node, HandleKind::kGraphNode, &native);
    return result == CUDA_SUCCESS ? entry(native, params) : result;
}

/// The graph that a node ends with: of a child graph's, the outermost.
std::uint64_t outermost_graph(const ObjectTable& objects, std::uint64_t node) {
    std::uint64_t graph = node;
    for (std::uint64_t at = node; at != 0; at = objects.parent_of(at)) {
        graph = at;
    }
    return graph;
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
                        return result == CUDA_SUCCESS ? call.api().cuGraphAddKernelNode_v2(
                                                            made, graph, dependencies.data(),
                                                            dependencies.size(), &params.params)
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

CUresult on_cuGraphKernelNodeGetParams_v2(CallContext& context,
                                          const wire::cuGraphKernelNodeGetParams_v2_call& get,
                                          std::span<const std::byte>, Reply& reply) {
    Call& call = as_call(context);
    const driver::DriverApi& api = call.api();
    GuestProcess& process = call.process();
    CUDA_KERNEL_NODE_PARAMS_v2 params{};
    if (const CUresult result =
            read_node(call, get.node, api.cuGraphKernelNodeGetParams_v2, &params);
        result != CUDA_SUCCESS) {
        return result;
    }
    wire::cuGraphKernelNodeGetParams_v2_reply answer{};
    std::string arguments;
    answer.launch.kernel = process.graphs.kernel_names.handle_of(params);
    if (answer.launch.kernel == 0) {
        return CUDA_ERROR_INVALID_HANDLE;  // Its module is gone.
    }
    if (!pack_arguments(api, params, &arguments)) {
        return call.unsupported(call.op());
    }
    answer.graph = outermost_graph(process.objects, get.node);
    answer.context = process.objects.handle_of(reinterpret_cast<std::uint64_t>(params.ctx),
                                               HandleKind::kContext);
    const std::uint32_t grid[] = {params.gridDimX, params.gridDimY, params.gridDimZ};
    const std::uint32_t block[] = {params.blockDimX, params.blockDimY, params.blockDimZ};
    std::ranges::copy(grid, answer.launch.grid);
    std::ranges::copy(block, answer.launch.block);
    answer.launch.shared_bytes = params.sharedMemBytes;
    answer.launch.param_bytes = static_cast<std::uint32_t>(arguments.size());
    answer.trailing_bytes = answer.launch.param_bytes;
    reply.put(answer);
    reply.trailing(std::as_bytes(std::span(arguments)));
    return CUDA_SUCCESS;
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

CUresult on_cuGraphHostNodeGetParams(CallContext& context,
                                     const wire::cuGraphHostNodeGetParams_call& get,
                                     std::span<const std::byte>, Reply& reply) {
    Call& call = as_call(context);
    CUDA_HOST_NODE_PARAMS_v1 params{};
    if (const CUresult result =
            read_node(call, get.node, call.api().cuGraphHostNodeGetParams, &params);
        result != CUDA_SUCCESS) {
        return result;
    }
    const auto callback = call.process().channel.callbacks.find(params.userData);
    if (!callback || callback->kind != gantry::wire::CallbackKind::kHostFunction) {
        return call.unsupported(call.op());  // A stream callback takes other arguments.
    }
    reply.put(wire::cuGraphHostNodeGetParams_reply{callback->function, callback->user_data});
    return CUDA_SUCCESS;
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

}  // namespace gantry::worker
