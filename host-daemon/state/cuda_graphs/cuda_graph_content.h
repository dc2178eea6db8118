// Between the driver's CUDA graphs and their description (proto/snapshot/object_graph.proto).
//
// A graph is read from the driver, node by node, through the public API: so it does not matter how
// it came about. Handles become the guest's on the way out and the driver's on the way in; kernel
// arguments travel packed by the kernel's layout. What a driver cannot tell (memory nodes,
// conditional nodes, external semaphores) makes the read fail with reason feature.graph.*.
//
// Threads: the worker's control thread, while no command of the guest changes graphs (frozen), or
// the reader accepts that a graph changes under it and fails. Cost: a few driver calls per node.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "host-daemon/execution/process/guest_process.h"
#include "proto/snapshot/object_graph.pb.h"

namespace gantry::state {

class CudaGraphReader {
public:
    explicit CudaGraphReader(worker::GuestProcess& process);

    /// `nodes`, if wanted: the driver's nodes, by position in the description; behind them those of
    /// the graphs of conditional nodes, in the same order.
    Result<void> read(CUgraph graph, snapshot::Graph* out,
                      std::vector<CUgraphNode>* nodes = nullptr);
    /// The guest's graphs and execs, in order of making.
    Result<void> read_all(snapshot::ObjectGraph* out);

private:
    struct Name {
        std::uint64_t handle = 0;
        std::uint64_t order = 0;
    };
    Result<void> read_node(CUgraphNode node, snapshot::GraphNode* out, bool* names_pinned,
                           std::vector<CUgraphNode>* inner);
    Result<void> read_conditional(CUgraphNode node, snapshot::GraphNode* out, bool* names_pinned,
                                  std::vector<CUgraphNode>* inner);
    Result<void> read_kernel(CUgraphNode node, snapshot::GraphNode* out);
    Result<void> read_copy(CUgraphNode node, snapshot::GraphNode* out, bool* names_pinned);
    Result<void> read_edges(CUgraph graph, const std::map<CUgraphNode, std::uint64_t>& positions,
                            snapshot::Graph* out);
    Result<void> read_exec(const worker::Object& exec,
                           const std::map<std::uint64_t, std::vector<CUgraphNode>>& sources,
                           snapshot::GraphExec* out);
    [[nodiscard]] std::uint64_t name_of(cuda::HandleKind kind, const void* native) const;

    worker::GuestProcess& process_;
    std::multimap<std::pair<cuda::HandleKind, std::uint64_t>, Name> names_;
};

/// Makes described graphs again; handles in them are put into the process's object table.
class CudaGraphWriter {
public:
    explicit CudaGraphWriter(worker::GuestProcess& process) : process_(process) {}

    /// `nodes`: the driver's nodes, as CudaGraphReader::read() has them.
    Result<CUgraph> make(const snapshot::Graph& graph, std::vector<CUgraphNode>* nodes);
    Result<void> make_guest_graph(const snapshot::Graph& graph);
    Result<void> make_exec(const snapshot::GraphExec& exec);

private:
    Result<void> fill(CUgraph graph, const snapshot::Graph& described,
                      std::vector<CUgraphNode>* nodes);
    Result<CUgraphNode> make_node(CUgraph graph, const snapshot::GraphNode& node,
                                  std::vector<CUgraphNode>* inner);
    Result<CUgraphNode> make_conditional(CUgraph graph, const snapshot::GraphNode& node,
                                         std::vector<CUgraphNode>* inner);
    Result<void> make_condition(CUgraph graph, const snapshot::Condition& condition);
    Result<CUgraphExec> instantiate(const snapshot::GraphExec& described,
                                    worker::CudaGraphBook::Exec* exec,
                                    std::vector<CUgraphNode>* nodes);
    Result<CUgraphNode> make_kernel(CUgraph graph, const snapshot::GraphNode& node);
    Result<CUgraphNode> make_child(CUgraph graph, const snapshot::GraphNode& node);
    Result<void> make_edges(CUgraph graph, const snapshot::Graph& described,
                            const std::vector<CUgraphNode>& nodes);
    Result<void> name_nodes(const snapshot::Graph& graph, const std::vector<CUgraphNode>& nodes,
                            std::uint64_t owner);
    Result<void> name(std::uint64_t handle, std::uint64_t order, std::uint64_t native,
                      std::uint64_t parent);

    worker::GuestProcess& process_;
    /// Nodes of guest graphs that this writer has made, by position.
    std::map<std::uint64_t, std::vector<CUgraphNode>> made_;
    std::map<std::uint64_t, snapshot::Graph> described_;  ///< As they were made, without handles.
};

/// As of a graph that nobody has named.
snapshot::Graph without_names(snapshot::Graph graph);
/// Lets the process's book describe graphs that cannot be cloned.
void describe_graphs(worker::GuestProcess& process);

}  // namespace gantry::state
