// Copies in graphs. One from or to the guest's pageable memory is a child graph of two nodes: the
// copy, which uses a page-locked extent of the guest's, and a host function of the guest's that
// moves the bytes between the extent and the pages. To the guest it is one copy node.
#include "host-daemon/execution/base/log.h"
#include "host-daemon/execution/calls/graph_calls.h"
#include "host-daemon/execution/calls/native_copy.h"

namespace gantry::worker {
namespace {

using cuda::wire_hand::GraphCopyNodeCall;
using cuda::wire_hand::PageableEnds;
using gantry::wire::CallbackKind;

/// The parts of a copy by way of an extent; copy is null where only the guest moves bytes.
struct Parts {
    CUgraphNode copy = nullptr;
    CUgraphNode host = nullptr;
    bool copy_is_first = false;
};

CUDA_HOST_NODE_PARAMS_v1 mover_params(Call& call, const GraphCopyNodeCall& node) {
    return host_node(call, node.function, node.user_data, CallbackKind::kGraphCopy);
}

/// What `node` is made of if it is such a copy.
std::optional<Parts> parts_of(Call& call, CUgraphNode node) {
    const driver::DriverApi& api = call.api();
    CUgraphNodeType type{};
    CUgraph child = nullptr;
    CUgraphNode nodes[2] = {};
    std::size_t count = 2;
    if (api.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS || type != CU_GRAPH_NODE_TYPE_GRAPH ||
        api.cuGraphChildGraphNodeGetGraph(node, &child) != CUDA_SUCCESS ||
        api.cuGraphGetNodes(child, nullptr, &count) != CUDA_SUCCESS || count == 0 || count > 2 ||
        api.cuGraphGetNodes(child, nodes, &count) != CUDA_SUCCESS) {
        return std::nullopt;
    }
    Parts parts;
    for (std::size_t i = 0; i < count; ++i) {
        CUDA_HOST_NODE_PARAMS_v1 params{};
        api.cuGraphNodeGetType(nodes[i], &type);
        if (type == CU_GRAPH_NODE_TYPE_MEMCPY) {
            std::size_t needs = 0;
            parts.copy = nodes[i];
            parts.copy_is_first =
                api.cuGraphNodeGetDependencies_v2 != nullptr
                    ? api.cuGraphNodeGetDependencies_v2(nodes[i], nullptr, nullptr, &needs) ==
                              CUDA_SUCCESS &&
                          needs == 0
                    : api.cuGraphNodeGetDependencies(nodes[i], nullptr, &needs) == CUDA_SUCCESS &&
                          needs == 0;
        } else if (type == CU_GRAPH_NODE_TYPE_HOST &&
                   api.cuGraphHostNodeGetParams(nodes[i], &params) == CUDA_SUCCESS) {
            const auto callback = call.process().channel.callbacks.find(params.userData);
            const bool is_ours = callback && callback->kind == CallbackKind::kGraphCopy;
            parts.host = is_ours ? nodes[i] : nullptr;
        }
    }
    const bool is_ours = parts.host != nullptr && (parts.copy != nullptr) == (count == 2);
    return is_ours ? std::optional<Parts>(parts) : std::nullopt;
}

bool is_known(PageableEnds ends) { return ends <= PageableEnds::kBoth; }

/// A graph of the parts that `node` asks for; the caller destroys it.
CUresult make_child(Call& call, const GraphCopyNodeCall& node, CUgraph* child) {
    const driver::DriverApi& api = call.api();
    CUDA_MEMCPY3D_v2 copy;
    CUresult result = CUDA_SUCCESS;
    if (node.pageable != PageableEnds::kBoth) {
        result = to_native_copy(call, node.copy, &copy);
    }
    if (result == CUDA_SUCCESS) {
        result = api.cuGraphCreate(child, 0);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CUgraphNode first = nullptr;
    CUgraphNode second = nullptr;
    const auto add_host = [&](CUgraphNode* made, const CUgraphNode* needs, std::size_t count) {
        const CUDA_HOST_NODE_PARAMS_v1 params = mover_params(call, node);
        return api.cuGraphAddHostNode(made, *child, needs, count, &params);
    };
    const auto add_copy = [&](CUgraphNode* made, const CUgraphNode* needs, std::size_t count) {
        return api.cuGraphAddMemcpyNode(made, *child, needs, count, &copy,
                                        call.process().device.context());
    };
    if (node.pageable == PageableEnds::kTarget) {
        result = add_copy(&first, nullptr, 0);
        result = result == CUDA_SUCCESS ? add_host(&second, &first, 1) : result;
    } else {
        result = add_host(&first, nullptr, 0);
        if (result == CUDA_SUCCESS && node.pageable == PageableEnds::kSource) {
            result = add_copy(&second, &first, 1);
        }
    }
    if (result != CUDA_SUCCESS) {
        api.cuGraphDestroy(*child);
    }
    return result;
}

CUresult add_copy(Call& call, const GraphCopyNodeCall& node, CUgraphNode* made, CUgraph graph,
                  const CUgraphNode* dependencies, std::size_t count) {
    const driver::DriverApi& api = call.api();
    if (node.pageable == PageableEnds::kNone) {
        CUDA_MEMCPY3D_v2 copy;
        const CUresult result = to_native_copy(call, node.copy, &copy);
        return result == CUDA_SUCCESS
                   ? api.cuGraphAddMemcpyNode(made, graph, dependencies, count, &copy,
                                              call.process().device.context())
                   : result;
    }
    CUgraph child = nullptr;
    CUresult result = make_child(call, node, &child);
    if (result == CUDA_SUCCESS) {
        result = api.cuGraphAddChildGraphNode(made, graph, dependencies, count, child);
        api.cuGraphDestroy(child);
    }
    return result;
}

/// What the guest knows its mover by.
std::uint64_t user_data_of(Call& call, const Parts& parts) {
    CUDA_HOST_NODE_PARAMS_v1 params{};
    call.api().cuGraphHostNodeGetParams(parts.host, &params);
    const auto callback = call.process().channel.callbacks.find(params.userData);
    return callback ? callback->user_data : 0;
}

/// The ends that a node has now; a node keeps them for life.
PageableEnds ends_of(const std::optional<Parts>& parts) {
    if (!parts) {
        return PageableEnds::kNone;
    }
    return parts->copy == nullptr
               ? PageableEnds::kBoth
               : (parts->copy_is_first ? PageableEnds::kTarget : PageableEnds::kSource);
}

}  // namespace

CUresult on_cuGraphAddMemcpyNode(CallContext& context, const wire::cuGraphAddMemcpyNode_call& node,
                                 std::span<const std::byte> trailing, Reply&) {
    Call& call = as_call(context);
    if (call.api().cuGraphAddMemcpyNode == nullptr) {
        return call.unsupported(call.op());
    }
    if (!is_known(node.pageable)) {
        return call.malformed(call.op(), "ends of a copy");
    }
    if (node.copy.stream != 0) {
        return add_to_capture(
            call, node.copy.stream,
            [&](CUgraphNode* made, CUgraph graph, const CUgraphNode* needs, std::size_t count) {
                return add_copy(call, node, made, graph, needs, count);
            });
    }
    return add_node(call, node, trailing,
                    [&](CUgraphNode* made, CUgraph graph, const auto& dependencies,
                        std::span<const std::byte>) {
                        return add_copy(call, node, made, graph, dependencies.data(),
                                        dependencies.size());
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
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const std::optional<Parts> parts = parts_of(call, native);
    if (!is_known(node.pageable) || ends_of(parts) != node.pageable) {
        return call.unsupported(call.op());
    }
    if (node.pageable != PageableEnds::kBoth) {
        result = to_native_copy(call, node.copy, &copy);
        if (result == CUDA_SUCCESS) {
            result = call.api().cuGraphMemcpyNodeSetParams(parts ? parts->copy : native, &copy);
        }
    }
    if (result == CUDA_SUCCESS && parts) {
        const CUDA_HOST_NODE_PARAMS_v1 params = mover_params(call, node);
        result = call.api().cuGraphHostNodeSetParams(parts->host, &params);
    }
    if (result == CUDA_SUCCESS) {
        note_configured(call, HandleKind::kGraphNode, node.node, trailing);
    }
    return result;
}

CUresult on_cuGraphMemcpyNodeGetParams(CallContext& context,
                                       const wire::cuGraphMemcpyNodeGetParams_call& get,
                                       std::span<const std::byte>, Reply& reply) {
    Call& call = as_call(context);
    CUgraphNode native = nullptr;
    CUDA_MEMCPY3D_v2 params{};
    if (call.api().cuGraphMemcpyNodeGetParams == nullptr) {
        return call.unsupported(call.op());
    }
    CUresult result = need(call, get.node, HandleKind::kGraphNode, &native);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    wire::cuGraphMemcpyNodeGetParams_reply answer{};
    if (const std::optional<Parts> parts = parts_of(call, native)) {
        answer.user_data = user_data_of(call, *parts);
    } else {
        result = call.api().cuGraphMemcpyNodeGetParams(native, &params);
        answer.copy = describe_copy(params, call.process().objects);
    }
    reply.put(answer);
    return result;
}

CUresult on_cuGraphExecMemcpyNodeSetParams(CallContext& context,
                                           const wire::cuGraphExecMemcpyNodeSetParams_call& node,
                                           std::span<const std::byte> trailing, Reply&) {
    Call& call = as_call(context);
    const driver::DriverApi& api = call.api();
    CUgraphNode native = nullptr;
    CUgraphExec exec = nullptr;
    if (api.cuGraphExecMemcpyNodeSetParams == nullptr ||
        api.cuGraphExecChildGraphNodeSetParams == nullptr) {
        return call.unsupported(call.op());
    }
    CUresult result = need_in_exec(call, node.graph, node.node, &exec, &native);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!is_known(node.pageable) || ends_of(parts_of(call, native)) != node.pageable) {
        return call.unsupported(call.op());
    }
    if (node.pageable == PageableEnds::kNone) {
        CUDA_MEMCPY3D_v2 copy;
        result = to_native_copy(call, node.copy, &copy);
        if (result == CUDA_SUCCESS) {
            result = api.cuGraphExecMemcpyNodeSetParams(exec, native, &copy,
                                                        call.process().device.context());
            if (result == CUDA_ERROR_INVALID_VALUE) {
                result = set_copy_again(call, node.graph, native, copy);
            }
            if (result != CUDA_SUCCESS) {
                log_limited(
                    "the driver refuses (%d) that a graph's copy is from %llx to %llx now, "
                    "%zu bytes",
                    static_cast<int>(result), static_cast<unsigned long long>(copy.srcDevice),
                    static_cast<unsigned long long>(copy.dstDevice), copy.WidthInBytes);
            }
        }
    } else {
        CUgraph child = nullptr;
        result = make_child(call, node, &child);
        if (result == CUDA_SUCCESS) {
            result = api.cuGraphExecChildGraphNodeSetParams(exec, native, child);
            api.cuGraphDestroy(child);
        }
    }
    if (result == CUDA_SUCCESS) {
        note_configured(call, HandleKind::kGraphExec, node.graph, trailing);
    }
    return result;
}

CUresult on_cuGraphNodeGetType(CallContext& context, const wire::cuGraphNodeGetType_call& node,
                               std::span<const std::byte> trailing, Reply& reply) {
    Call& call = as_call(context);
    CUgraphNode native = nullptr;
    if (need(call, node.hNode, HandleKind::kGraphNode, &native) == CUDA_SUCCESS &&
        parts_of(call, native)) {
        reply.put(wire::cuGraphNodeGetType_reply{CU_GRAPH_NODE_TYPE_MEMCPY, 0});
        return CUDA_SUCCESS;
    }
    return generated::on_cuGraphNodeGetType(context, node, trailing, reply);
}

}  // namespace gantry::worker
