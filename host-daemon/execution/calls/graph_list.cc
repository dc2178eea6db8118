// Lists of graph nodes. Nodes that a capture made get their handles when they are first listed.
#include <algorithm>
#include <bit>
#include <type_traits>

#include "host-daemon/execution/calls/graph_calls.h"

namespace gantry::worker {
namespace {

using cuda::wire_hand::GraphListCall;
using cuda::wire_hand::GraphListReply;

/// Asks the driver with `get(owner, first, second, edge data, count)` (null arrays: how many), and
/// answers.
/// `entry`: the driver's function behind it, null where it has none.
template <typename Owner, typename Entry, typename Get>
CUresult answer_list(CallContext& context, const GraphListCall& list, Reply& reply, Entry* entry,
                     Get get, bool has_pairs = false) {
    constexpr bool kOfGraph = std::is_same_v<Owner, CUgraph>;
    Call& call = as_call(context);
    Owner owner = nullptr;
    if (entry == nullptr) {
        return call.unsupported(call.op());
    }
    CUresult result =
        need(call, list.graph, kOfGraph ? HandleKind::kGraph : HandleKind::kGraphNode, &owner);
    std::size_t count = 0;
    if (result == CUDA_SUCCESS) {
        result = get(owner, nullptr, nullptr, nullptr, &count);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    std::vector<CUgraphNode> first(count);
    std::vector<CUgraphNode> second(has_pairs ? count : 0);
    GraphListReply answer{};
    answer.count = count;
    const bool wants_data = list.wants_edge_data != 0;
    std::vector<CUgraphEdgeData> data(wants_data ? count : 0);
    std::vector<std::uint64_t> handles;
    if (list.capacity != 0) {
        if (count != 0) {
            result =
                get(owner, first.data(), second.data(), wants_data ? data.data() : nullptr, &count);
        }
        first.resize(std::min<std::uint64_t>(count, list.capacity));
        second.resize(has_pairs ? first.size() : 0);
        data.resize(wants_data ? first.size() : 0);
        NewNames names{list.first_new_handle, list.new_handle_count};
        const std::uint64_t parent =
            kOfGraph ? list.graph : call.process().objects.parent_of(list.graph);
        for (const auto* nodes : {&first, &second}) {
            if (result == CUDA_SUCCESS) {
                result = name_nodes(call, parent, *nodes, &names, &handles);
            }
        }
        answer.count = first.size();
        answer.new_handles_used = names.used;
    }
    for (const CUgraphEdgeData& each : data) {  // As large as a handle.
        static_assert(sizeof(each) == sizeof(std::uint64_t));
        handles.push_back(std::bit_cast<std::uint64_t>(each));
    }
    answer.trailing_bytes = static_cast<std::uint32_t>(handles.size() * sizeof(std::uint64_t));
    reply.put(answer);
    reply.trailing(std::as_bytes(std::span(handles)));
    return result;
}

}  // namespace

CUresult on_cuGraphGetNodes(CallContext& context, const wire::cuGraphGetNodes_call& list,
                            std::span<const std::byte>, Reply& reply) {
    auto* const entry = as_call(context).api().cuGraphGetNodes;
    return answer_list<CUgraph>(
        context, list, reply, entry,
        [&](CUgraph graph, CUgraphNode* nodes, CUgraphNode*, CUgraphEdgeData*, std::size_t* count) {
            return entry(graph, nodes, count);
        });
}

CUresult on_cuGraphGetRootNodes(CallContext& context, const wire::cuGraphGetRootNodes_call& list,
                                std::span<const std::byte>, Reply& reply) {
    auto* const entry = as_call(context).api().cuGraphGetRootNodes;
    return answer_list<CUgraph>(
        context, list, reply, entry,
        [&](CUgraph graph, CUgraphNode* nodes, CUgraphNode*, CUgraphEdgeData*, std::size_t* count) {
            return entry(graph, nodes, count);
        });
}

CUresult on_cuGraphGetEdges_v2(CallContext& context, const wire::cuGraphGetEdges_v2_call& list,
                               std::span<const std::byte>, Reply& reply) {
    auto* const entry = as_call(context).api().cuGraphGetEdges_v2;
    return answer_list<CUgraph>(
        context, list, reply, entry,
        [&](CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data,
            std::size_t* count) { return entry(graph, from, to, data, count); },
        true);
}

CUresult on_cuGraphNodeGetDependencies_v2(CallContext& context,
                                          const wire::cuGraphNodeGetDependencies_v2_call& list,
                                          std::span<const std::byte>, Reply& reply) {
    auto* const entry = as_call(context).api().cuGraphNodeGetDependencies_v2;
    return answer_list<CUgraphNode>(
        context, list, reply, entry,
        [&](CUgraphNode node, CUgraphNode* nodes, CUgraphNode*, CUgraphEdgeData* data,
            std::size_t* count) { return entry(node, nodes, data, count); });
}

CUresult on_cuGraphNodeGetDependentNodes_v2(CallContext& context,
                                            const wire::cuGraphNodeGetDependentNodes_v2_call& list,
                                            std::span<const std::byte>, Reply& reply) {
    auto* const entry = as_call(context).api().cuGraphNodeGetDependentNodes_v2;
    return answer_list<CUgraphNode>(
        context, list, reply, entry,
        [&](CUgraphNode node, CUgraphNode* nodes, CUgraphNode*, CUgraphEdgeData* data,
            std::size_t* count) { return entry(node, nodes, data, count); });
}

}  // namespace gantry::worker
