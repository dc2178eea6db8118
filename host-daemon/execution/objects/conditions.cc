#include "host-daemon/execution/objects/conditions.h"

#include <algorithm>

namespace gantry::worker {

void Conditions::note(CUgraph graph, const Condition& condition) {
    const MutexLock lock(mutex_);
    conditions_[graph].push_back(condition);
}

void Conditions::note_node(CUgraphNode node, ConditionalNode known) {
    const MutexLock lock(mutex_);
    nodes_[node] = std::move(known);
}

std::vector<Condition> Conditions::of(CUgraph graph) const {
    const MutexLock lock(mutex_);
    const auto known = conditions_.find(graph);
    return known == conditions_.end() ? std::vector<Condition>{} : known->second;
}

std::optional<ConditionalNode> Conditions::of_node(CUgraphNode node) const {
    const MutexLock lock(mutex_);
    const auto known = nodes_.find(node);
    return known == nodes_.end() ? std::nullopt : std::optional<ConditionalNode>(known->second);
}

bool Conditions::are_in(CUgraph graph) const {
    const MutexLock lock(mutex_);
    return conditions_.contains(graph) ||
           std::any_of(nodes_.begin(), nodes_.end(),
                       [graph](const auto& each) { return each.second.graph == graph; });
}

void Conditions::forget_graph_locked(CUgraph graph) {
    conditions_.erase(graph);
    std::vector<CUgraph> bodies;
    for (auto node = nodes_.begin(); node != nodes_.end();) {
        if (node->second.graph != graph) {
            ++node;
            continue;
        }
        bodies.insert(bodies.end(), node->second.bodies.begin(), node->second.bodies.end());
        node = nodes_.erase(node);
    }
    for (const CUgraph body : bodies) {
        forget_graph_locked(body);
    }
}

void Conditions::forget_graph(CUgraph graph) {
    const MutexLock lock(mutex_);
    forget_graph_locked(graph);
}

void Conditions::forget_node(CUgraphNode node) {
    const MutexLock lock(mutex_);
    const auto known = nodes_.find(node);
    if (known == nodes_.end()) {
        return;
    }
    const std::vector<CUgraph> bodies = known->second.bodies;
    nodes_.erase(known);
    for (const CUgraph body : bodies) {
        forget_graph_locked(body);
    }
}

CUresult add_conditional_node(const driver::DriverApi& api, CUgraph graph,
                              const std::vector<CUgraphNode>& dependencies,
                              CUgraphNodeParams* params, CUgraphNode* out) {
    if (api.cuGraphAddNode_v2 != nullptr) {
        return api.cuGraphAddNode_v2(out, graph, dependencies.data(), nullptr, dependencies.size(),
                                     params);
    }
    return api.cuGraphAddNode != nullptr
               ? api.cuGraphAddNode(out, graph, dependencies.data(), dependencies.size(), params)
               : CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace gantry::worker
