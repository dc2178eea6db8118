// Conditions: what graphs' conditional nodes look at, and these nodes with their graphs. No driver
// tells any of it again.
//
// A condition has a number of the driver's, which the guest's kernels are given: it must be the
// same wherever the process goes on, or the process does not go there.
//
// Owner: CudaGraphBook. Threads: all calls lock. Cost: nothing without conditions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "host-daemon/driver/driver_library.h"
#include "proto/base/mutex.h"

namespace gantry::worker {

struct Condition {
    std::uint64_t handle = 0;
    unsigned default_value = 0;
    unsigned flags = 0;
};

struct ConditionalNode {
    CUgraph graph = nullptr;  ///< That it is in.
    std::uint64_t condition = 0;
    unsigned type = 0;
    std::vector<CUgraph> bodies;
};

class Conditions {
public:
    void note(CUgraph graph, const Condition& condition);
    void note_node(CUgraphNode node, ConditionalNode known);
    [[nodiscard]] std::vector<Condition> of(CUgraph graph) const;
    [[nodiscard]] std::optional<ConditionalNode> of_node(CUgraphNode node) const;
    /// The graph has conditional nodes or conditions: it cannot be cloned.
    [[nodiscard]] bool are_in(CUgraph graph) const;
    void forget_graph(CUgraph graph);
    void forget_node(CUgraphNode node);

private:
    void forget_graph_locked(CUgraph graph) GANTRY_REQUIRES(mutex_);

    mutable Mutex mutex_;
    std::map<CUgraph, std::vector<Condition>> conditions_ GANTRY_GUARDED_BY(mutex_);
    std::map<CUgraphNode, ConditionalNode> nodes_ GANTRY_GUARDED_BY(mutex_);
};

/// By whichever entry point the driver has.
CUresult add_conditional_node(const driver::DriverApi& api, CUgraph graph,
                              const std::vector<CUgraphNode>& dependencies,
                              CUgraphNodeParams* params, CUgraphNode* out);

}  // namespace gantry::worker
