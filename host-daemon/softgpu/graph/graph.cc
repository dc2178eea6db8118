#include "host-daemon/softgpu/graph/graph.h"

#include <algorithm>
#include <iterator>
#include <thread>

#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/streams/stream.h"

namespace gantry::softgpu {
namespace {

/// A launch: all steps, one after the other.
class GraphLaunch final : public Work {
public:
    GraphLaunch(std::shared_ptr<const std::vector<ExecStep>> steps,
                std::map<const ExecStep*, std::shared_ptr<EventMark>> marks,
                std::shared_ptr<const Graph> source)
        : steps_(std::move(steps)), marks_(std::move(marks)), source_(std::move(source)) {}

    void run() override {
        begin(*steps_);
        run_steps(*steps_);
    }

private:
    static void begin(const std::vector<ExecStep>& steps) {
        for (const ExecStep& step : steps) {
            if (step.operation->type() == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
                static_cast<const ConditionalOperation&>(*step.operation).condition->begin();
            }
            for (const auto& body : step.bodies) {
                begin(body);
            }
        }
    }

    void run_conditional(const ExecStep& step) const {
        const auto& operation = static_cast<const ConditionalOperation&>(*step.operation);
        for (int body = operation.chosen(); body >= 0 && poison() == CUDA_SUCCESS;
             body = operation.chosen()) {
            run_steps(step.bodies[static_cast<std::size_t>(body)]);
            if (operation.kind != CU_GRAPH_COND_TYPE_WHILE) {
                break;
            }
        }
    }

    void run_steps(const std::vector<ExecStep>& steps) const {
        for (const ExecStep& step : steps) {
            const CUresult error = poison();
            if (!step.enabled) {
                continue;
            }
            if (const auto mark = marks_.find(&step); mark != marks_.end()) {
                mark->second->pass();
            } else if (!step.bodies.empty()) {
                run_conditional(step);
            } else if (error == CUDA_SUCCESS) {
                step.operation->run();
            } else {
                step.operation->skip(error);
            }
        }
    }

    const std::shared_ptr<const std::vector<ExecStep>> steps_;
    const std::map<const ExecStep*, std::shared_ptr<EventMark>> marks_;
    const std::shared_ptr<const Graph> source_;  ///< Holds user objects.
};

}  // namespace

GraphLock::GraphLock()
    : lock_([]() -> std::mutex& {
          static auto* mutex = new std::mutex;  // Driver threads may outlive exit().
          return *mutex;
      }()) {}

void** ShownArguments::show(const KernelOperation& kernel) {
    const auto& parameters = kernel.function->info().parameters;
    if (parameters.empty()) {
        return nullptr;
    }
    const std::size_t bytes = blocks_.empty() ? 0 : blocks_.back().values.size();
    const std::size_t count = blocks_.empty() ? 0 : blocks_.back().pointers.size();
    if (bytes < kernel.params.size() || count < parameters.size()) {
        Block& made = blocks_.emplace_back();
        made.values.resize(std::max(bytes, kernel.params.size()));
        made.pointers.resize(std::max(count, parameters.size()));
    }
    refresh(kernel);
    Block& block = blocks_.back();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        block.pointers[i] = block.values.data() + parameters[i].offset_bytes;
    }
    return block.pointers.data();
}

void ShownArguments::refresh(const KernelOperation& kernel) {
    if (!blocks_.empty() && kernel.params.size() <= blocks_.back().values.size()) {
        std::copy(kernel.params.begin(), kernel.params.end(), blocks_.back().values.begin());
    }
}

GraphNode::~GraphNode() {
    // One after the other and not by recursion: a program makes chains as long as it likes. Nodes
    // that end in the loop add to `open`.
    static thread_local std::vector<GraphEdge>* t_open = nullptr;
    if (t_open != nullptr) {
        t_open->insert(t_open->end(), std::make_move_iterator(needs.begin()),
                       std::make_move_iterator(needs.end()));
        return;
    }
    std::vector<GraphEdge> open = std::move(needs);
    t_open = &open;
    while (!open.empty()) {
        const GraphEdge last = std::move(open.back());
        open.pop_back();
    }
    t_open = nullptr;
}

void GraphNode::set_operation(const GraphLock&, OperationPtr changed) {
    operation = std::move(changed);
    if (const auto* kernel = operation_as<KernelOperation>(CU_GRAPH_NODE_TYPE_KERNEL)) {
        shown_arguments.refresh(*kernel);
    }
}

Graph::~Graph() {
    for (const auto& [object, count] : user_objects) {
        object->release(count);
    }
}

int ConditionalOperation::chosen() const {
    const std::uint32_t value = condition->value();
    switch (kind) {
        case CU_GRAPH_COND_TYPE_IF: return value != 0 ? 0 : (bodies.size() == 2 ? 1 : -1);
        case CU_GRAPH_COND_TYPE_WHILE: return value != 0 ? 0 : -1;
        default: return value < bodies.size() ? static_cast<int>(value) : -1;
    }
}

bool Graph::is_conditional(const GraphLock&) const {
    return !conditions.empty() || std::any_of(nodes.begin(), nodes.end(), [](const auto& node) {
        return node->operation->type() == CU_GRAPH_NODE_TYPE_CONDITIONAL;
    });
}

void Graph::hold_as(const Graph& other) {
    user_objects = other.user_objects;
    for (const auto& [object, count] : user_objects) {
        object->retain(count);
    }
}

void Graph::end_handles(const GraphLock& lock) {
    for (const auto& node : nodes) {
        if (const auto* conditional =
                node->operation_as<ConditionalOperation>(CU_GRAPH_NODE_TYPE_CONDITIONAL)) {
            for (const auto& body : conditional->bodies) {
                body->end_handles(lock);
                retract(*body);
            }
        }
        if (const auto* child = node->operation_as<ChildGraphOperation>(CU_GRAPH_NODE_TYPE_GRAPH)) {
            child->graph->end_handles(lock);
            retract(*child->graph);
        }
        retract(*node);
    }
}

std::shared_ptr<GraphNode> Graph::add(const GraphLock&, OperationPtr operation,
                                      std::vector<GraphEdge> needs) {
    auto node = std::make_shared<GraphNode>(std::move(operation));
    node->graph = weak_from_this();
    node->needs = std::move(needs);
    HandleTable::instance().publish(node);
    nodes.push_back(node);
    return node;
}

bool Graph::remove(const GraphLock&, const std::shared_ptr<GraphNode>& node) {
    if (std::erase(nodes, node) == 0) {
        return false;
    }
    for (const auto& other : nodes) {
        std::erase_if(other->needs, [&](const GraphEdge& edge) { return edge.from == node; });
    }
    node->needs.clear();
    retract(*node);
    return true;
}

std::shared_ptr<Graph> Graph::clone(const GraphLock& lock) const {
    auto copy = std::make_shared<Graph>();
    HandleTable::instance().publish(copy);
    copy->clone_of = this;
    copy->hold_as(*this);
    std::map<const GraphNode*, std::shared_ptr<GraphNode>> twins;
    for (const auto& node : nodes) {
        OperationPtr operation = node->operation;
        if (const auto* child = node->operation_as<ChildGraphOperation>(CU_GRAPH_NODE_TYPE_GRAPH)) {
            auto inner = child->graph->clone(lock);
            inner->is_child = true;
            operation = std::make_shared<ChildGraphOperation>(std::move(inner));
        }
        auto twin = copy->add(lock, std::move(operation), {});
        twin->clone_of = node.get();
        twins[node.get()] = std::move(twin);
    }
    for (const auto& node : nodes) {
        for (const GraphEdge& edge : node->needs) {
            twins[node.get()]->needs.push_back({twins[edge.from.get()], edge.data});
        }
    }
    return copy;
}

bool Graph::order(const GraphLock&, std::vector<std::shared_ptr<GraphNode>>& ordered) const {
    std::map<const GraphNode*, std::size_t> open;
    std::map<const GraphNode*, std::vector<std::shared_ptr<GraphNode>>> followers;
    std::vector<std::shared_ptr<GraphNode>> ready;
    for (const auto& node : nodes) {
        open[node.get()] = node->needs.size();
        for (const GraphEdge& edge : node->needs) {
            followers[edge.from.get()].push_back(node);
        }
        if (node->needs.empty()) {
            ready.push_back(node);
        }
    }
    for (std::size_t next = 0; next < ready.size(); ++next) {
        for (const auto& follower : followers[ready[next].get()]) {
            if (--open[follower.get()] == 0) {
                ready.push_back(follower);
            }
        }
    }
    ordered = std::move(ready);
    return ordered.size() == nodes.size();
}

bool GraphExec::flatten(const GraphLock& lock, const Graph& graph, std::vector<ExecStep>& steps) {
    std::vector<std::shared_ptr<GraphNode>> ordered;
    if (!graph.order(lock, ordered)) {
        return false;
    }
    std::map<const GraphNode*, std::size_t> last_step;
    for (const auto& node : ordered) {
        if (const auto* child = node->operation_as<ChildGraphOperation>(CU_GRAPH_NODE_TYPE_GRAPH)) {
            if (!flatten(lock, *child->graph, steps)) {
                return false;
            }
        }
        ExecStep step;
        if (const auto* conditional =
                node->operation_as<ConditionalOperation>(CU_GRAPH_NODE_TYPE_CONDITIONAL)) {
            for (const auto& body : conditional->bodies) {
                if (!flatten(lock, *body, step.bodies.emplace_back())) {
                    return false;
                }
            }
        }
        step.node = node->handle();
        step.operation = node->operation;
        for (const GraphEdge& edge : node->needs) {
            step.needs.push_back(last_step[edge.from.get()]);
        }
        last_step[node.get()] = steps.size();
        steps.push_back(std::move(step));
    }
    return true;
}

namespace {

ExecStep* find_step(std::vector<ExecStep>& steps, const void* node) {
    for (ExecStep& step : steps) {
        if (step.node == node) {
            return &step;
        }
        for (auto& body : step.bodies) {
            if (ExecStep* found = find_step(body, node); found != nullptr) {
                return found;
            }
        }
    }
    return nullptr;
}

}  // namespace

ExecStep* GraphExec::step_of(const void* node) { return find_step(writable(), node); }

std::vector<ExecStep>& GraphExec::writable() {
    if (is_launched) {  // A count of who holds them would not say what these have seen of them.
        steps = std::make_shared<std::vector<ExecStep>>(*steps);
        is_launched = false;
    }
    return *steps;
}

CUresult launch_graph(const std::shared_ptr<GraphExec>& exec,
                      const std::shared_ptr<Stream>& stream) {
    const std::lock_guard lock(exec->mutex);
    const std::shared_ptr<const std::vector<ExecStep>> steps = exec->steps;
    exec->is_launched = true;
    std::map<const ExecStep*, std::shared_ptr<EventMark>> marks;
    std::vector<StreamPoint> needs;
    if (exec->last_launch.stream != nullptr && exec->last_launch.stream != stream) {
        needs.push_back(exec->last_launch);  // Whatever their streams, launches come in order.
    }
    for (const ExecStep& step : *steps) {
        if (!step.enabled) {
            continue;
        }
        if (step.operation->type() == CU_GRAPH_NODE_TYPE_EVENT_RECORD) {
            marks[&step] = static_cast<const EventOperation&>(*step.operation).event->new_mark();
        } else if (step.operation->type() == CU_GRAPH_NODE_TYPE_WAIT_EVENT) {
            const auto& wait = static_cast<const EventOperation&>(*step.operation);
            if (auto point = wait.event->awaited()) {
                needs.push_back(std::move(*point));
            }
        }
    }
    const StreamPoint point = Scheduler::instance().submit(
        stream, std::make_unique<GraphLaunch>(steps, marks, exec->source), std::move(needs));
    exec->last_launch = point;
    for (const auto& [step, mark] : marks) {
        mark->point = point;
        static_cast<const EventOperation&>(*step->operation).event->set_mark(mark);
    }
    return CUDA_SUCCESS;
}

bool UserObject::release(unsigned count) {
    unsigned before = count_.load();
    do {
        if (before < count) {
            return false;
        }
    } while (!count_.compare_exchange_weak(before, before - count));
    if (before != count) {
        return true;
    }
    retract(*this);
    std::thread([destroy = destroy_, pointer = pointer_] {
        const HostCallbackScope scope;
        destroy(pointer);
    }).detach();
    return true;
}

}  // namespace gantry::softgpu
