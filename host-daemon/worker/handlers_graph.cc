// CUDA graphs: kernel nodes and host nodes.
#include "host-daemon/worker/graph_calls.h"

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

}  // namespace gantry::worker
