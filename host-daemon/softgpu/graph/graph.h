// Graphs: nodes with operations and edges, and their executable form.
//
// Structure (nodes, edges, captures) is guarded by one mutex for all graphs: graph building is rare
// and short. What reads or changes structure takes a GraphLock, or a reference to its caller's. A
// GraphExec is a flat list of operations in an order that respects the edges, child graphs inlined;
// a launch takes the list as it is and runs it as one item of a stream, so updates of the exec
// never disturb a launch under way.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "host-daemon/softgpu/streams/condition.h"
#include "host-daemon/softgpu/streams/operation.h"

namespace gantry::softgpu {

class Graph;
class UserObject;

/// Holds the mutex of all graphs. Not to be nested: pass it on.
class GraphLock {
public:
    GraphLock();

private:
    const std::unique_lock<std::mutex> lock_;
};

struct GraphEdge {
    std::shared_ptr<class GraphNode> from;
    CUgraphEdgeData data{};
};

/// What cuGraphKernelNodeGetParams hands out: a kernel's arguments and pointers to them. Programs
/// keep the pointers and give them to calls that set parameters, more than once. So they stay valid
/// until the node ends, and what they point to are the arguments that the node has now.
class ShownArguments {
public:
    /// The pointers, one for each argument; null when the kernel has none.
    void** show(const KernelOperation& kernel);
    /// The node's operation has become another: of the same kernel, or of another.
    void refresh(const KernelOperation& kernel);

private:
    struct Block {
        std::vector<std::byte> values;
        std::vector<void*> pointers;
    };
    std::list<Block> blocks_;  ///< The last one is in use; each is larger than those before it.
};

class GraphNode : public Object, public std::enable_shared_from_this<GraphNode> {
public:
    static constexpr ObjectKind kKind = ObjectKind::kGraphNode;
    explicit GraphNode(OperationPtr operation_in)
        : Object(kKind), operation(std::move(operation_in)) {}
    ~GraphNode() override;

    void set_operation(const GraphLock& lock, OperationPtr changed);

    template <typename T>
    [[nodiscard]] const T* operation_as(CUgraphNodeType type) const {
        return operation->type() == type ? static_cast<const T*>(operation.get()) : nullptr;
    }

    std::weak_ptr<Graph> graph;
    OperationPtr operation;
    std::vector<GraphEdge> needs;
    const GraphNode* clone_of = nullptr;  ///< Compared only, never followed.
    ShownArguments shown_arguments;
};

class Graph : public Object, public std::enable_shared_from_this<Graph> {
public:
    static constexpr ObjectKind kKind = ObjectKind::kGraph;
    Graph() : Object(kKind) {}
    ~Graph() override;

    std::shared_ptr<GraphNode> add(const GraphLock& lock, OperationPtr operation,
                                   std::vector<GraphEdge> needs);
    bool remove(const GraphLock& lock, const std::shared_ptr<GraphNode>& node);
    /// Not of a graph with conditional nodes.
    [[nodiscard]] std::shared_ptr<Graph> clone(const GraphLock& lock) const;
    [[nodiscard]] bool is_conditional(const GraphLock& lock) const;
    /// Holds the user objects that `other` holds.
    void hold_as(const Graph& other);
    /// Nodes so that each comes after what it needs; false when there is a cycle.
    bool order(const GraphLock& lock, std::vector<std::shared_ptr<GraphNode>>& ordered) const;
    /// Makes the handles of its nodes and child graphs invalid.
    void end_handles(const GraphLock& lock);

    std::vector<std::shared_ptr<GraphNode>> nodes;
    const Graph* clone_of = nullptr;
    bool is_child = false;  ///< Owned by a node: cuGraphDestroy refuses it.
    std::map<std::shared_ptr<UserObject>, unsigned> user_objects;
    std::vector<std::shared_ptr<Condition>> conditions;
    /// Of a conditional graph: it may have one at a time.
    std::weak_ptr<class GraphExec> exec;
};

struct ChildGraphOperation final : Operation {
    explicit ChildGraphOperation(std::shared_ptr<Graph> graph_in)
        : Operation(CU_GRAPH_NODE_TYPE_GRAPH), graph(std::move(graph_in)) {}
    void run() const override {}  // Inlined when instantiated.
    std::shared_ptr<Graph> graph;
};

/// Looks at its condition and runs one of its graphs, or none, or one again and again.
struct ConditionalOperation final : Operation {
    ConditionalOperation() : Operation(CU_GRAPH_NODE_TYPE_CONDITIONAL) {}
    void run() const override {}  // A graph's launch does it, with the steps of the bodies.
    /// Which graph is run now; -1: none.
    [[nodiscard]] int chosen() const;

    std::shared_ptr<Condition> condition;
    CUgraphConditionalNodeType kind = CU_GRAPH_COND_TYPE_IF;
    std::vector<std::shared_ptr<Graph>> bodies;
    std::vector<CUgraph> handles;  ///< As the application was given them.
};

struct ExecStep {
    void* node = nullptr;  ///< Handle of the node it came from.
    OperationPtr operation;
    std::vector<std::size_t> needs;  ///< Indexes of steps, for comparing shapes.
    bool enabled = true;
    std::vector<std::vector<ExecStep>> bodies;  ///< Of a conditional node.
};

class GraphExec : public Object {
public:
    static constexpr ObjectKind kKind = ObjectKind::kGraphExec;
    GraphExec() : Object(kKind) {}

    /// Flattens; false when the graph has a cycle.
    static bool flatten(const GraphLock& lock, const Graph& graph, std::vector<ExecStep>& steps);
    ExecStep* step_of(const void* node);
    /// Changes steps without touching those that launches in flight hold. Needs `mutex`.
    std::vector<ExecStep>& writable();

    std::mutex mutex;
    std::shared_ptr<std::vector<ExecStep>> steps;
    bool is_launched = false;  ///< With these steps: a launch may hold them still.
    StreamPoint last_launch;   ///< Of the newest launch; without a stream: none yet.
    unsigned long long flags = 0;
    /// What it was made from, changed with `mutex` and a GraphLock: becomes a child node when
    /// captured. Of a conditional graph it has the user objects and no nodes.
    std::shared_ptr<Graph> source;
    bool is_conditional = false;
};

/// Launches on a stream that does not capture.
CUresult launch_graph(const std::shared_ptr<GraphExec>& exec,
                      const std::shared_ptr<Stream>& stream);

/// A reference-counted thing of the program that graphs keep alive.
class UserObject : public Object {
public:
    static constexpr ObjectKind kKind = ObjectKind::kUserObject;
    UserObject(void* pointer, CUhostFn destroy, unsigned count)
        : Object(kKind), pointer_(pointer), destroy_(destroy), count_(count) {}
    void retain(unsigned count) { count_ += count; }
    /// At zero the handle is invalid, and the destructor is called, as CUDA does, on a driver
    /// thread. False when there are not so many.
    bool release(unsigned count);

private:
    void* pointer_;
    CUhostFn destroy_;
    std::atomic<unsigned> count_;
};

}  // namespace gantry::softgpu
