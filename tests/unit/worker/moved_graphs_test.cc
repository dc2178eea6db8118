// CUDA graphs that the next worker makes again: it describes them as the one before did.
#include <gtest/gtest.h>

#include <algorithm>

#include "host-daemon/state/cuda_graphs/cuda_graph_content.h"
#include "tests/unit/worker/moved_guest.h"

namespace gantry::worker {
namespace {

std::uint64_t graph_handle(std::uint64_t i) {
    return cuda::make_handle(HandleKind::kGraph, (1ull << 24) + i);
}
std::uint64_t node_handle(std::uint64_t i) {
    return cuda::make_handle(HandleKind::kGraphNode, (1ull << 24) + i);
}

std::string described(google::protobuf::RepeatedPtrField<snapshot::Graph> graphs) {
    for (snapshot::Graph& graph : graphs) {  // In no order of their own.
        std::sort(graph.mutable_edges()->begin(), graph.mutable_edges()->end(),
                  [](const auto& a, const auto& b) {
                      return std::pair(a.from(), a.to()) < std::pair(b.from(), b.to());
                  });
    }
    std::string text;
    for (const snapshot::Graph& graph : graphs) {
        text += graph.DebugString();
    }
    return text;
}

void add_kernel(Guest& guest, std::uint64_t graph, std::uint64_t node,
                std::initializer_list<std::uint64_t> needs) {
    const std::byte arguments[16] = {};  // Of the kernel, padded.
    hand::GraphKernelNodeCall call{};
    call.graph = graph_handle(graph);
    call.node = node_handle(node);
    call.dependency_count = static_cast<std::uint32_t>(needs.size());
    call.launch = one_thread(kKernel, 0);
    call.launch.param_bytes = 12;
    std::vector<std::byte> trailing;
    for (const std::uint64_t each : needs) {
        const std::uint64_t handle = node_handle(each);
        const auto bytes = std::as_bytes(std::span(&handle, 1));
        trailing.insert(trailing.end(), bytes.begin(), bytes.end());
    }
    trailing.insert(trailing.end(), arguments, arguments + 12);
    ASSERT_EQ(guest.call(Op::cuGraphAddKernelNode_v2, call, trailing).status, 0u);
}

constexpr std::uint64_t kOuter = 0;
constexpr std::uint64_t kChild = 1;
constexpr std::uint64_t kEmbedded = 2;

/// Two kernels one after the other in a graph, of which a node of another graph has a clone: the
/// guest has asked for that one, and for its second node only.
void run_nested_source(int region, Shared* shared) {
    Serving serving(map_region(region));
    Guest& guest = serving.guest;
    guest.retain();
    guest.load_module();
    guest.send(Op::cuGraphCreate, payload::cuGraphCreate_call{graph_handle(kChild), 0, 0});
    add_kernel(guest, kChild, 0, {});
    add_kernel(guest, kChild, 1, {0});
    guest.send(Op::cuGraphCreate, payload::cuGraphCreate_call{graph_handle(kOuter), 0, 0});
    add_kernel(guest, kOuter, 2, {});
    const std::uint64_t needs[] = {node_handle(2)};
    ASSERT_EQ(guest
                  .call(Op::cuGraphAddChildGraphNode,
                        payload::cuGraphAddChildGraphNode_call{node_handle(3), graph_handle(kOuter),
                                                               1, graph_handle(kChild)},
                        std::as_bytes(std::span(needs)))
                  .status,
              0u);
    add_kernel(guest, kOuter, 4, {2, 3});
    ASSERT_EQ(guest
                  .call(Op::cuGraphChildGraphNodeGetGraph,
                        payload::cuGraphChildGraphNodeGetGraph_call{node_handle(3),
                                                                    graph_handle(kEmbedded)})
                  .status,
              0u);
    ASSERT_EQ(guest
                  .call(Op::cuGraphNodeFindInClone,
                        payload::cuGraphNodeFindInClone_call{node_handle(5), node_handle(1),
                                                             graph_handle(kEmbedded)})
                  .status,
              0u);
    EXPECT_EQ(guest.synchronise(0), 0u);
    ASSERT_TRUE(serving.host.execution->freeze(5s).ok());
    state::Part part(*serving.host.execution, 1);
    share_state(part, shared);
}

void run_nested_target(int, Shared* shared) {
    Host host;
    state::Part part(*host.execution, 1);
    part.content.keep_image(ptx_image());
    const std::string_view graph(shared->graph, shared->graph_bytes);
    ASSERT_TRUE(part.target.prepare(kMoveSeed, graph).ok());
    for (std::uint64_t i = 0; i < shared->block_count; ++i) {
        ASSERT_TRUE(part.target.apply_block(shared->addresses[i], shared->blocks[i]).ok());
    }
    const auto missing = part.target.apply_final(graph);
    ASSERT_TRUE(missing.ok()) << missing.error().text;
    snapshot::ObjectGraph before;
    ASSERT_TRUE(before.ParseFromArray(graph.data(), static_cast<int>(graph.size())));
    snapshot::ObjectGraph after;
    state::CudaGraphReader reader(*host.process);
    ASSERT_TRUE(reader.read_all(&after).ok());
    EXPECT_EQ(described(after.graphs()), described(before.graphs()));
    // What was described is what the guest had made.
    int edges = 0;
    int inner_edges = 0;
    bool has_named_one_inside = false;
    for (const snapshot::Graph& each : before.graphs()) {
        if (each.handle() != graph_handle(kOuter)) {
            continue;
        }
        edges = each.edges_size();
        for (const snapshot::GraphNode& node : each.nodes()) {
            for (const snapshot::GraphNode& inside : node.child().nodes()) {
                has_named_one_inside |= inside.handle() == node_handle(5);
            }
            inner_edges += node.child().edges_size();
        }
    }
    EXPECT_EQ(edges, 3);
    EXPECT_EQ(inner_edges, 1);
    EXPECT_TRUE(has_named_one_inside);
}

TEST(MovedGraphs, OrderAndHandlesOfNodesMoveWithThem) {
    Common common;
    ASSERT_TRUE(common.in_child(run_nested_source));
    EXPECT_TRUE(common.in_child(run_nested_target));
}

}  // namespace
}  // namespace gantry::worker
