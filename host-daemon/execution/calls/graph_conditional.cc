// Conditional nodes, and the conditions that kernels set. The guest has the driver's own value of a
// condition, since its kernels are given it; the graphs of a node have handles that the guest chose
// (objects/conditions.h).
#include "host-daemon/execution/calls/graph_calls.h"

namespace gantry::worker {
namespace {

constexpr std::uint32_t kMostBodies = 1u << 16;

}  // namespace

CUresult on_cuGraphAddNode_v2(CallContext& context, const wire::cuGraphAddNode_v2_call& node,
                              std::span<const std::byte> trailing, Reply&) {
    Call& call = as_call(context);
    const driver::DriverApi& api = call.api();
    if (api.cuGraphAddNode_v2 == nullptr && api.cuGraphAddNode == nullptr) {
        return call.unsupported(call.op());
    }
    if (node.size == 0 || node.size > kMostBodies) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUgraphNodeParams params{};
    params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
    params.conditional.handle = node.condition;
    params.conditional.type = static_cast<CUgraphConditionalNodeType>(node.type);
    params.conditional.size = node.size;
    if (node.context != 0) {
        std::uint64_t native = 0;
        const CUresult result = call.resolve(HandleKind::kContext, node.context, &native);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        params.conditional.ctx = reinterpret_cast<CUcontext>(native);
    }
    CUgraph graph = nullptr;
    CUgraphNode made = nullptr;
    std::optional<std::vector<std::uint64_t>> bodies;
    CUresult result = add_node(call, node, trailing,
                               [&](CUgraphNode* out, CUgraph in, const auto& dependencies,
                                   std::span<const std::byte> rest) {
                                   bodies = Call::read_array<std::uint64_t>(rest, node.size);
                                   if (!bodies) {
                                       return call.malformed(call.op(), "handles of its graphs");
                                   }
                                   graph = in;
                                   const CUresult added =
                                       add_conditional_node(api, in, dependencies, &params, out);
                                   made = *out;
                                   return added;
                               });
    if (result != CUDA_SUCCESS) {
        return result;
    }
    ConditionalNode known;
    known.graph = graph;
    known.condition = node.condition;
    known.type = node.type;
    for (std::uint32_t i = 0; i < node.size && result == CUDA_SUCCESS; ++i) {
        const CUgraph body = params.conditional.phGraph_out[i];
        known.bodies.push_back(body);
        result = call.reserve(HandleKind::kGraph, (*bodies)[i]);
        if (result == CUDA_SUCCESS) {
            result =
                call.add_object((*bodies)[i], reinterpret_cast<std::uint64_t>(body), node.node);
        }
    }
    call.process().graphs.book.conditions.note_node(made, std::move(known));
    return result;
}

namespace served {

CUresult cuGraphConditionalHandleCreate(CallContext& context, CUgraphConditionalHandle* handle,
                                        CUgraph graph, CUcontext wanted, unsigned int default_value,
                                        unsigned int flags) {
    Call& call = as_call(context);
    if (call.api().cuGraphConditionalHandleCreate == nullptr) {
        return call.unsupported(call.op());
    }
    const CUresult result = call.api().cuGraphConditionalHandleCreate(
        handle, graph, wanted != nullptr ? wanted : call.process().device.context(), default_value,
        flags);
    if (result == CUDA_SUCCESS) {
        call.process().graphs.book.conditions.note(graph, {*handle, default_value, flags});
    }
    return result;
}

}  // namespace served

}  // namespace gantry::worker
