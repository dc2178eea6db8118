#include "host-daemon/execution/objects/cuda_graph_book.h"

#include <algorithm>
#include <utility>

#include "proto/cuda/gen/opcodes.h"

namespace gantry::worker {

CudaGraphBook::~CudaGraphBook() {
    if (!execs_.empty()) {
        device_.bind_thread();
    }
    for (auto& [handle, exec] : execs_) {
        destroy_all(exec);
    }
}

void CudaGraphBook::destroy_all(Exec& exec) {
    destroy(exec.made_from);
    destroy(exec.updated_from);
    destroy(exec.starts_after);
    for (const auto& [node, child] : exec.children) {
        destroy(child);
    }
}

void CudaGraphBook::destroy(CUevent event) {
    if (event != nullptr) {
        device_.api().cuEventDestroy_v2(event);
    }
}

CUgraph CudaGraphBook::clone(CUgraph graph) {
    CUgraph made = nullptr;
    if (device_.api().cuGraphClone == nullptr ||
        device_.api().cuGraphClone(&made, graph) != CUDA_SUCCESS) {
        return nullptr;
    }
    note_clone(graph, made);
    return made;
}

void CudaGraphBook::destroy(CUgraph graph) {
    if (graph != nullptr) {
        MutexLock lock(untold_mutex_);
        untold_.erase(graph);
        lock.unlock();
        user_objects_.forget_graph(graph);
        conditions.forget_graph(graph);
        device_.api().cuGraphDestroy(graph);
    }
}

void CudaGraphBook::note_untold(CUgraph graph, CUgraphNode node,
                                const CUkernelNodeAttrValue& value) {
    MutexLock lock(untold_mutex_);
    untold_[graph][node] = value;
}

std::optional<CUkernelNodeAttrValue> CudaGraphBook::untold_of(CUgraphNode node) const {
    MutexLock lock(untold_mutex_);
    for (const auto& [graph, nodes] : untold_) {
        if (const auto known = nodes.find(node); known != nodes.end()) {
            return known->second;
        }
    }
    return std::nullopt;
}

void CudaGraphBook::forget_node(CUgraphNode node) {
    conditions.forget_node(node);
    MutexLock lock(untold_mutex_);
    for (auto& [graph, nodes] : untold_) {
        nodes.erase(node);
    }
}

void CudaGraphBook::note_clone(CUgraph graph, CUgraph made) {
    user_objects_.note_clone(graph, made);
    MutexLock lock(untold_mutex_);
    const auto nodes = untold_.find(graph);
    if (nodes == untold_.end() || device_.api().cuGraphNodeFindInClone == nullptr) {
        return;
    }
    for (const auto& [node, value] : nodes->second) {
        CUgraphNode twin = nullptr;
        if (device_.api().cuGraphNodeFindInClone(&twin, node, made) == CUDA_SUCCESS) {
            untold_[made][twin] = value;
        }
    }
}

void CudaGraphBook::add(std::uint64_t handle, std::uint64_t source, CUgraph graph,
                        std::uint64_t flags) {
    Exec exec;
    exec.source = source;
    exec.flags = flags;
    if (conditions.are_in(graph)) {
        exec.described = describe != nullptr ? describe(graph) : nullptr;
    } else {
        exec.made_from = clone(graph);
    }
    exec.memory = memory_of(graph);
    add(handle, std::move(exec));
}

void CudaGraphBook::add(std::uint64_t handle, Exec made) {
    remove(handle);
    MutexLock lock(mutex_);
    if (!made.memory.allocates.empty() || !made.memory.frees.empty()) {
        knows_memory_.store(true, std::memory_order_release);
    }
    execs_[handle] = std::move(made);
}

void CudaGraphBook::updated(std::uint64_t handle, CUgraph graph) {
    MutexLock lock(mutex_);
    const auto exec = execs_.find(handle);
    if (exec == execs_.end()) {
        return;
    }
    destroy(exec->second.updated_from);
    exec->second.updated_from = conditions.are_in(graph) ? nullptr : clone(graph);
    exec->second.update_lost = exec->second.updated_from == nullptr;
    exec->second.records.reset();
    const auto memory = memory_.find(graph);
    exec->second.memory = memory == memory_.end() ? GraphMemory{} : memory->second;
    for (const auto& [node, child] : exec->second.children) {
        destroy(child);
    }
    exec->second.children.clear();
    // Every node has the new graph's parameters now; which nodes are enabled stays.
    std::erase_if(exec->second.changes, [](const auto& entry) {
        return entry.first.first != static_cast<std::uint16_t>(cuda::Op::cuGraphNodeSetEnabled);
    });
}

CUgraphNode CudaGraphBook::in_clone_of(const Exec& exec, CUgraphNode node) const {
    CUgraphNode twin = nullptr;
    return exec.made_from != nullptr && device_.api().cuGraphNodeFindInClone != nullptr &&
                   device_.api().cuGraphNodeFindInClone(&twin, node, exec.made_from) == CUDA_SUCCESS
               ? twin
               : nullptr;
}

CUgraphNode CudaGraphBook::twin_of(const Exec& exec, CUgraphNode node) const {
    if (exec.made_again) {
        const auto twin = exec.twins.find(node);
        return twin != exec.twins.end() ? twin->second : in_clone_of(exec, node);
    }
    if (exec.described != nullptr) {
        const auto& nodes = exec.described->nodes;
        return std::find(nodes.begin(), nodes.end(), node) != nodes.end() ? node : nullptr;
    }
    return in_clone_of(exec, node);
}

void CudaGraphBook::changed(std::uint64_t handle, CUgraphNode node, RecordedCommand command) {
    MutexLock lock(mutex_);
    const auto exec = execs_.find(handle);
    if (exec == execs_.end()) {
        return;
    }
    const CUgraphNode twin = restored_node != nullptr ? restored_node : twin_of(exec->second, node);
    if (command.op == static_cast<std::uint16_t>(cuda::Op::cuGraphExecChildGraphNodeSetParams)) {
        return;  // replaced_child() has it: the graph may be gone when it is to be done again.
    }
    if (twin == nullptr) {
        exec->second.update_lost = true;
        return;
    }
    exec->second.records.reset();
    const std::uint16_t op = command.op;
    exec->second.changes[{op, twin}] = std::move(command);
}

void CudaGraphBook::replaced_child(std::uint64_t handle, CUgraphNode node, CUgraph child) {
    MutexLock lock(mutex_);
    const auto exec = execs_.find(handle);
    if (exec == execs_.end()) {
        return;
    }
    exec->second.records.reset();
    const CUgraphNode twin = exec->second.made_again ? node : twin_of(exec->second, node);
    const CUgraph copy = twin != nullptr ? clone(child) : nullptr;
    if (copy == nullptr) {
        exec->second.update_lost = true;
        return;
    }
    CUgraph& kept = exec->second.children[twin];
    destroy(kept);
    kept = copy;
}

void CudaGraphBook::remove(std::uint64_t handle) {
    MutexLock lock(mutex_);
    const auto exec = execs_.find(handle);
    if (exec != execs_.end()) {
        destroy_all(exec->second);
        execs_.erase(exec);
    }
}

void CudaGraphBook::find_records(CUgraph graph, std::vector<CUevent>* events) const {
    const driver::DriverApi& api = device_.api();
    std::size_t count = 0;
    if (graph == nullptr || api.cuGraphEventRecordNodeGetEvent == nullptr ||
        api.cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS) {
        return;
    }
    std::vector<CUgraphNode> nodes(count);
    api.cuGraphGetNodes(graph, nodes.data(), &count);
    for (const CUgraphNode node : nodes) {
        CUgraphNodeType type{};
        CUevent event = nullptr;
        CUgraph child = nullptr;
        api.cuGraphNodeGetType(node, &type);
        if (type == CU_GRAPH_NODE_TYPE_EVENT_RECORD &&
            api.cuGraphEventRecordNodeGetEvent(node, &event) == CUDA_SUCCESS) {
            events->push_back(event);
        } else if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
                   api.cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS) {
            find_records(child, events);
        }
    }
}

std::vector<CUevent> CudaGraphBook::recorded_events(std::uint64_t handle) {
    MutexLock lock(mutex_);
    const auto exec = execs_.find(handle);
    if (exec == execs_.end()) {
        return {};
    }
    if (!exec->second.records) {
        exec->second.records.emplace();
        find_records(exec->second.made_from, &*exec->second.records);
        find_records(exec->second.updated_from, &*exec->second.records);
        for (const auto& [node, child] : exec->second.children) {
            find_records(child, &*exec->second.records);
        }
    }
    return *exec->second.records;
}

GraphMemory CudaGraphBook::memory_of(CUgraph graph) const {
    MutexLock lock(mutex_);
    const auto memory = memory_.find(graph);
    return memory == memory_.end() ? GraphMemory{} : memory->second;
}

void CudaGraphBook::note_memory(CUgraph graph, const GraphMemory& memory) {
    if (memory.allocates.empty() && memory.frees.empty()) {
        return;
    }
    MutexLock lock(mutex_);
    GraphMemory& known = memory_[graph];
    known.allocates.insert(memory.allocates.begin(), memory.allocates.end());
    known.frees.insert(memory.frees.begin(), memory.frees.end());
    knows_memory_.store(true, std::memory_order_release);
}

void CudaGraphBook::forget_graph(CUgraph graph) {
    const MutexLock lock(mutex_);
    const MutexLock untold_lock(untold_mutex_);
    user_objects_.forget_graph(graph);
    conditions.forget_graph(graph);
    memory_.erase(graph);
    free_nodes_.erase(graph);
    untold_.erase(graph);
}

void CudaGraphBook::note_free_node(CUgraph graph, std::uint64_t address, CUgraphNode node) {
    MutexLock lock(mutex_);
    const auto memory = memory_.find(graph);
    if (memory != memory_.end() && memory->second.allocates.contains(address)) {
        free_nodes_[graph][address] = node;
    }
}

std::map<std::uint64_t, CUgraphNode> CudaGraphBook::freed_in(CUgraph graph) const {
    MutexLock lock(mutex_);
    const auto nodes = free_nodes_.find(graph);
    return nodes == free_nodes_.end() ? std::map<std::uint64_t, CUgraphNode>{} : nodes->second;
}

void CudaGraphBook::allocates_again(CUgraph graph, std::uint64_t address) {
    MutexLock lock(mutex_);
    memory_[graph].frees.erase(address);
    free_nodes_[graph].erase(address);
}

std::optional<CudaGraphBook::Exec> CudaGraphBook::find(std::uint64_t handle) const {
    MutexLock lock(mutex_);
    const auto exec = execs_.find(handle);
    return exec == execs_.end() ? std::nullopt : std::optional<Exec>(exec->second);
}

CUgraphNode CudaGraphBook::node_in(std::uint64_t handle, CUgraphNode node) const {
    MutexLock lock(mutex_);
    const auto exec = execs_.find(handle);
    return exec == execs_.end() || !exec->second.made_again ? node : twin_of(exec->second, node);
}

CUgraphNode CudaGraphBook::in_clone(std::uint64_t handle, CUgraphNode node) const {
    MutexLock lock(mutex_);
    const auto exec = execs_.find(handle);
    if (exec == execs_.end()) {
        return nullptr;
    }
    return exec->second.made_again ? node : in_clone_of(exec->second, node);
}

void CudaGraphBook::made_again(std::uint64_t handle, CUevent starts_after) {
    MutexLock lock(mutex_);
    const auto exec = execs_.find(handle);
    if (exec == execs_.end()) {
        return;
    }
    exec->second.made_again = exec->second.described == nullptr;
    if (starts_after != nullptr) {
        destroy(std::exchange(exec->second.starts_after, starts_after));
    }
}

CUevent CudaGraphBook::launches(std::uint64_t handle, std::uint64_t stream) {
    MutexLock lock(mutex_);
    const auto exec = execs_.find(handle);
    if (exec == execs_.end()) {
        return nullptr;
    }
    exec->second.launched_in = stream;
    return std::exchange(exec->second.starts_after, nullptr);
}

std::optional<std::uint64_t> CudaGraphBook::last_launch(std::uint64_t handle) const {
    MutexLock lock(mutex_);
    const auto exec = execs_.find(handle);
    return exec == execs_.end() ? std::nullopt : exec->second.launched_in;
}

}  // namespace gantry::worker
