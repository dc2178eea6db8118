// CudaGraphBook: what executable graphs were made from, so that they can be made again elsewhere.
//
// An exec outlives the graph it came from, and no driver tells what is in it. So each exec keeps
// the driver's own clone of that graph, a clone of the graph it was last updated from, and the
// newest command of each kind that changed one of its nodes. Nothing is copied to the host until a
// snapshot reads the clones (state/cuda_graphs/cuda_graph_content.h).
//
// An exec that was made again, by a restore or because a node of it changed to memory of another
// kind (calls/graph_again.cc), comes from its clone and knows the nodes of that.
//
// A graph with conditional nodes cannot be cloned. It is described when it is instantiated (by
// `describe`, which the state of a move provides), and has one exec at a time; its own nodes stand
// for those of the clone.
//
// Memory nodes are empty nodes to the driver, since device memory comes from the arena: the book
// knows which addresses a graph allocates and frees, and DeviceMemory keeps them.
//
// Threads: all calls lock. Failure: an exec that the driver cannot clone and nobody describes
// works, and is_whole() says that it cannot move. Cost: a clone per instantiation.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "host-daemon/execution/device/device.h"
#include "host-daemon/execution/objects/conditions.h"
#include "host-daemon/execution/objects/objects.h"
#include "host-daemon/execution/objects/user_object_book.h"
#include "proto/base/mutex.h"

namespace gantry::worker {

/// Addresses that the memory nodes of a graph are about.
struct GraphMemory {
    std::set<std::uint64_t> allocates;
    std::set<std::uint64_t> frees;
};

class CudaGraphBook {
public:
    using Nodes = std::map<CUgraphNode, CUgraphNode>;
    /// What a graph was when it was instantiated.
    struct Description {
        std::string graph;               ///< snapshot::Graph, without handles.
        std::vector<CUgraphNode> nodes;  ///< By position in it.
    };
    struct Exec {
        std::uint64_t source = 0;  ///< The guest's graph; it may be gone.
        std::uint64_t flags = 0;
        CUgraph made_from = nullptr;                   ///< Null: the driver could not clone it.
        std::shared_ptr<const Description> described;  ///< In place of `made_from`.
        CUgraph updated_from = nullptr;                ///< Null: never updated as a whole.
        bool update_lost = false;  ///< The graph of the last update could not be cloned.
        bool made_again = false;   ///< From `made_from` itself: its nodes count.
        Nodes twins;               ///< Of a restored one, whose guest's nodes are of another graph.
        std::optional<std::uint64_t> launched_in;  ///< The guest's stream, of the newest launch.
        CUevent starts_after = nullptr;            ///< What its next launch has to wait for.
        GraphMemory memory;
        /// By op and node of `made_from`.
        std::map<std::pair<std::uint16_t, CUgraphNode>, RecordedCommand> changes;
        /// Clones of what child graphs were replaced by, by node of `made_from`.
        std::map<CUgraphNode, CUgraph> children;
        std::optional<std::vector<CUevent>> records;  ///< Events it records, once asked for.
        [[nodiscard]] bool is_whole() const {
            return (made_from != nullptr || described != nullptr) && !update_lost;
        }
    };

    CudaGraphBook(Device& device, UserObjectBook& user_objects)
        : device_(device), user_objects_(user_objects) {}
    ~CudaGraphBook();
    CudaGraphBook(const CudaGraphBook&) = delete;
    CudaGraphBook& operator=(const CudaGraphBook&) = delete;

    /// An exec was instantiated from `graph`, which is cloned now.
    void add(std::uint64_t exec, std::uint64_t source, CUgraph graph, std::uint64_t flags);
    /// One that a restore has made; the book owns its clones from here on.
    void add(std::uint64_t exec, Exec made);
    void updated(std::uint64_t exec, CUgraph graph);
    void changed(std::uint64_t exec, CUgraphNode node, RecordedCommand command);
    /// Its child graph at `node`, as the driver has it in the exec, is like `child` now.
    void replaced_child(std::uint64_t exec, CUgraphNode node, CUgraph child);
    void remove(std::uint64_t exec);
    /// The driver's exec is now one that was made from its clone. Its first launch waits for
    /// `starts_after`, which may be null.
    void made_again(std::uint64_t exec, CUevent starts_after);
    /// The exec is launched into this stream of the guest's; what the stream has to wait for first
    /// and the caller destroys, or null.
    [[nodiscard]] CUevent launches(std::uint64_t exec, std::uint64_t stream);
    [[nodiscard]] std::optional<std::uint64_t> last_launch(std::uint64_t exec) const;

    [[nodiscard]] std::optional<Exec> find(std::uint64_t exec) const;
    /// What the driver calls this node of the guest's graph where the exec is meant.
    [[nodiscard]] CUgraphNode node_in(std::uint64_t exec, CUgraphNode node) const;
    /// The node of `made_from` for one that node_in() gave; null when there is none.
    [[nodiscard]] CUgraphNode in_clone(std::uint64_t exec, CUgraphNode node) const;

    /// Events that a launch of the exec records (child graphs included).
    std::vector<CUevent> recorded_events(std::uint64_t exec);

    /// Empty when the graph has no memory nodes.
    [[nodiscard]] GraphMemory memory_of(CUgraph graph) const;
    /// False as long as there has been no memory node: a launch costs nothing then.
    [[nodiscard]] bool knows_memory() const {
        return knows_memory_.load(std::memory_order_acquire);
    }
    void note_memory(CUgraph graph, const GraphMemory& memory);
    void forget_graph(CUgraph graph);
    /// What a kernel node of `graph` was given and no driver tells: its NVLink scheduling.
    void note_untold(CUgraph graph, CUgraphNode node, const CUkernelNodeAttrValue& value);
    [[nodiscard]] std::optional<CUkernelNodeAttrValue> untold_of(CUgraphNode node) const;
    void forget_node(CUgraphNode node);
    /// `made` is a clone of `graph`.
    void note_clone(CUgraph graph, CUgraph made);
    /// The node of `graph` that frees what the graph itself allocated at `address`.
    void note_free_node(CUgraph graph, std::uint64_t address, CUgraphNode node);
    /// By address, what the graph has allocated and freed, and the nodes that free it. Addresses in
    /// a graph made again by a restore are not used again.
    [[nodiscard]] std::map<std::uint64_t, CUgraphNode> freed_in(CUgraph graph) const;
    /// The graph allocates at `address` once more.
    void allocates_again(CUgraph graph, std::uint64_t address);

    Conditions conditions;
    /// Null when it cannot. Set before the first exec.
    std::function<std::shared_ptr<const Description>(CUgraph)> describe;

    /// During a restore: the node that a change is for, whatever handle its command names.
    CUgraphNode restored_node = nullptr;

private:
    CUgraph clone(CUgraph graph);
    void destroy_all(Exec& exec);
    void destroy(CUgraph graph);
    void destroy(CUevent event);
    void find_records(CUgraph graph, std::vector<CUevent>* events) const;
    [[nodiscard]] CUgraphNode twin_of(const Exec& exec, CUgraphNode node) const;
    [[nodiscard]] CUgraphNode in_clone_of(const Exec& exec, CUgraphNode node) const;

    Device& device_;
    UserObjectBook& user_objects_;
    mutable Mutex mutex_ GANTRY_ACQUIRED_BEFORE(untold_mutex_);
    std::map<std::uint64_t, Exec> execs_ GANTRY_GUARDED_BY(mutex_);
    std::map<CUgraph, GraphMemory> memory_ GANTRY_GUARDED_BY(mutex_);
    std::map<CUgraph, std::map<std::uint64_t, CUgraphNode>> free_nodes_ GANTRY_GUARDED_BY(mutex_);
    std::atomic<bool> knows_memory_{false};
    mutable Mutex untold_mutex_;
    std::map<CUgraph, std::map<CUgraphNode, CUkernelNodeAttrValue>> untold_
        GANTRY_GUARDED_BY(untold_mutex_);
};

}  // namespace gantry::worker
