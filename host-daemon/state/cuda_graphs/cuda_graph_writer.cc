// CudaGraphWriter: graphs made again from their descriptions.
#include <fmt/format.h>
#include <google/protobuf/util/message_differencer.h>

#include <array>
#include <cstring>
#include <map>

#include "host-daemon/execution/calls/native_copy.h"
#include "host-daemon/execution/dispatch/run_call.h"
#include "host-daemon/state/commands/command_codec.h"
#include "host-daemon/state/cuda_graphs/cuda_graph_content.h"

namespace gantry::state {
namespace {

using cuda::HandleKind;

Error damaged(const char* what) {
    return Error{Code::kInvalidArgument, "snapshot.graph",
                 fmt::format("the object graph is damaged: a CUDA graph with {}", what)};
}

Error failed(worker::GuestProcess& process, CUresult result, const char* what) {
    return driver::to_error(process.device.api(), result, "state.graph", what);
}

template <typename T>
bool parse(const std::string& bytes, T* out) {
    if (bytes.size() != sizeof(T)) {
        return false;
    }
    std::memcpy(out, bytes.data(), sizeof(T));
    return true;
}

/// Of a Graph or a GraphExec.
template <typename Message>
worker::GraphMemory memory_of(const Message& described) {
    return {{described.allocates().begin(), described.allocates().end()},
            {described.frees().begin(), described.frees().end()}};
}

void run_host_function(void* callback) { worker::CallbackBroker::run(callback, CUDA_SUCCESS); }

}  // namespace

Result<void> CudaGraphWriter::name(std::uint64_t handle, std::uint64_t order, std::uint64_t native,
                                   std::uint64_t parent) {
    worker::Object object;
    object.handle = handle;
    object.native = native;
    object.order = order;
    object.parent = parent;
    object.context = cuda::primary_context_handle(0);
    return process_.objects.insert(std::move(object)) ? Result<void>()
                                                      : damaged("a handle that is taken");
}

Result<void> CudaGraphWriter::name_nodes(const snapshot::Graph& graph,
                                         const std::vector<CUgraphNode>& nodes,
                                         std::uint64_t owner) {
    for (int i = 0; i < graph.nodes_size(); ++i) {
        const snapshot::GraphNode& node = graph.nodes(i);
        const auto native = reinterpret_cast<std::uint64_t>(nodes[static_cast<std::size_t>(i)]);
        if (node.handle() == 0) {
            continue;
        }
        if (cuda::handle_kind(node.handle()) != HandleKind::kGraphNode) {
            return damaged("a node under a handle of another kind");
        }
        GANTRY_TRY(name(node.handle(), node.order(), native, owner));
        for (const std::uint64_t alias : node.aliases()) {
            GANTRY_TRY(name(alias, 0, native, owner));
        }
    }
    return {};
}

Result<CUgraphNode> CudaGraphWriter::make_kernel(CUgraph graph, const snapshot::GraphNode& node) {
    const driver::DriverApi& api = process_.device.api();
    const snapshot::KernelNode& kernel = node.kernel();
    if (kernel.grid_size() != 3 || kernel.block_size() != 3) {
        return damaged("a kernel without its dimensions");
    }
    CUDA_KERNEL_NODE_PARAMS_v2 params{};
    params.func = process_.objects.native_as<CUfunction>(kernel.function(), HandleKind::kFunction);
    if (params.func == nullptr) {
        params.kern = process_.objects.native_as<CUkernel>(kernel.kernel(), HandleKind::kKernel);
        params.ctx = process_.device.context();
        if (params.kern == nullptr) {
            return damaged("a kernel that is not there");
        }
    }
    if (const auto context =
            process_.objects.native_as<CUcontext>(kernel.context(), HandleKind::kContext);
        context != nullptr) {
        params.ctx = context;
    }
    params.gridDimX = kernel.grid(0);
    params.gridDimY = kernel.grid(1);
    params.gridDimZ = kernel.grid(2);
    params.blockDimX = kernel.block(0);
    params.blockDimY = kernel.block(1);
    params.blockDimZ = kernel.block(2);
    params.sharedMemBytes = kernel.shared_bytes();
    std::string arguments = kernel.arguments();
    std::size_t bytes = arguments.size();
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, arguments.data(), CU_LAUNCH_PARAM_BUFFER_SIZE,
                     &bytes, CU_LAUNCH_PARAM_END};
    params.extra = bytes != 0 ? extra : nullptr;
    CUgraphNode made = nullptr;
    if (const CUresult result = api.cuGraphAddKernelNode_v2(&made, graph, nullptr, 0, &params);
        result != CUDA_SUCCESS) {
        return failed(process_, result, "making a kernel node again");
    }
    for (const auto& [id, bytes_of] : node.attributes()) {
        CUkernelNodeAttrValue wanted{};
        CUkernelNodeAttrValue there{};
        const auto attribute = static_cast<CUkernelNodeAttrID>(id);
        if (!parse(bytes_of, &wanted)) {
            return damaged("an attribute of another size");
        }
        if (api.cuGraphKernelNodeGetAttribute(made, attribute, &there) == CUDA_SUCCESS &&
            std::memcmp(&wanted, &there, sizeof(wanted)) == 0) {
            continue;
        }
        if (const CUresult result = api.cuGraphKernelNodeSetAttribute(made, attribute, &wanted);
            result != CUDA_SUCCESS) {
            return failed(process_, result, "setting an attribute of a kernel node again");
        }
        if (attribute == CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING) {
            process_.graphs.book.note_untold(graph, made, wanted);
        }
    }
    return made;
}

Result<CUgraphNode> CudaGraphWriter::make_child(CUgraph graph, const snapshot::GraphNode& node) {
    const driver::DriverApi& api = process_.device.api();
    std::vector<CUgraphNode> nodes;
    GANTRY_ASSIGN(const CUgraph child, make(node.child(), &nodes));
    CUgraphNode made = nullptr;
    CUresult result = api.cuGraphAddChildGraphNode(&made, graph, nullptr, 0, child);
    // The node has a clone of it: that is what the guest's handles mean.
    CUgraph embedded = nullptr;
    if (result == CUDA_SUCCESS && node.child().handle() != 0) {
        result = api.cuGraphChildGraphNodeGetGraph(made, &embedded);
    }
    for (std::size_t i = 0; embedded != nullptr && result == CUDA_SUCCESS && i < nodes.size();
         ++i) {
        if (node.child().nodes(static_cast<int>(i)).handle() != 0) {
            result = api.cuGraphNodeFindInClone(&nodes[i], nodes[i], embedded);
        }
    }
    api.cuGraphDestroy(child);
    if (result != CUDA_SUCCESS) {
        return failed(process_, result, "making a child graph again");
    }
    if (embedded != nullptr) {
        GANTRY_TRY(name(node.child().handle(), node.child().order(),
                        reinterpret_cast<std::uint64_t>(embedded), node.handle()));
        GANTRY_TRY(name_nodes(node.child(), nodes, node.child().handle()));
    }
    return made;
}

/// A driver that gives out the lowest number that is free gives the wanted one once those below it
/// are taken. Tried in a graph that goes again: a condition without a node cannot be instantiated.
Result<void> CudaGraphWriter::make_condition(CUgraph graph, const snapshot::Condition& condition) {
    constexpr int kMostTries = 4096;
    const driver::DriverApi& api = process_.device.api();
    if (api.cuGraphConditionalHandleCreate == nullptr) {
        return failed(process_, CUDA_ERROR_NOT_SUPPORTED, "making a condition again");
    }
    const auto create = [&](CUgraph in, CUgraphConditionalHandle* made) {
        return api.cuGraphConditionalHandleCreate(made, in, process_.device.context(),
                                                  condition.default_value(), condition.flags());
    };
    std::vector<CUgraph> tried;
    CUgraphConditionalHandle made = 0;
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; i < kMostTries && result == CUDA_SUCCESS; ++i) {
        CUgraph trial = nullptr;
        result = api.cuGraphCreate(&trial, 0);
        if (result == CUDA_SUCCESS) {
            result = create(trial, &made);
            tried.push_back(trial);
        }
        if (made >= condition.handle()) {
            break;
        }
    }
    if (!tried.empty()) {
        api.cuGraphDestroy(tried.back());
        tried.pop_back();
    }
    if (result == CUDA_SUCCESS) {
        result = create(graph, &made);
    }
    for (const CUgraph trial : tried) {
        api.cuGraphDestroy(trial);
    }
    if (result != CUDA_SUCCESS) {
        return failed(process_, result, "making a condition again");
    }
    if (made != condition.handle()) {
        return Error{Code::kFailedPrecondition, "feature.graph.conditional.not_movable",
                     fmt::format("a condition of a CUDA graph is {:#x} to the program's kernels, "
                                 "and {:#x} to this driver",
                                 condition.handle(), made)};
    }
    process_.graphs.book.conditions.note(
        graph, {condition.handle(), condition.default_value(), condition.flags()});
    return {};
}

Result<CUgraphNode> CudaGraphWriter::make_conditional(CUgraph graph,
                                                      const snapshot::GraphNode& node,
                                                      std::vector<CUgraphNode>* inner) {
    CUgraphNodeParams params{};
    params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
    params.conditional.handle = node.condition();
    params.conditional.type = static_cast<CUgraphConditionalNodeType>(node.conditional_type());
    params.conditional.size = static_cast<unsigned>(node.bodies_size());
    params.conditional.ctx = process_.device.context();
    CUgraphNode made = nullptr;
    if (node.bodies_size() == 0) {
        return damaged("a conditional node without a graph");
    }
    if (const CUresult result =
            worker::add_conditional_node(process_.device.api(), graph, {}, &params, &made);
        result != CUDA_SUCCESS) {
        return failed(process_, result, "making a conditional node again");
    }
    worker::ConditionalNode known;
    known.graph = graph;
    known.condition = node.condition();
    known.type = node.conditional_type();
    known.bodies.assign(params.conditional.phGraph_out,
                        params.conditional.phGraph_out + node.bodies_size());
    process_.graphs.book.conditions.note_node(made, known);
    for (int i = 0; i < node.bodies_size(); ++i) {
        const snapshot::Graph& body = node.bodies(i);
        const CUgraph native = known.bodies[static_cast<std::size_t>(i)];
        std::vector<CUgraphNode> nodes;
        GANTRY_TRY(fill(native, body, &nodes));
        if (body.handle() != 0) {
            GANTRY_TRY(name(body.handle(), body.order(), reinterpret_cast<std::uint64_t>(native),
                            node.handle()));
            GANTRY_TRY(name_nodes(body, nodes, body.handle()));
        }
        inner->insert(inner->end(), nodes.begin(), nodes.end());
    }
    return made;
}

Result<CUgraphNode> CudaGraphWriter::make_node(CUgraph graph, const snapshot::GraphNode& node,
                                               std::vector<CUgraphNode>* inner) {
    const driver::DriverApi& api = process_.device.api();
    CUgraphNode made = nullptr;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    switch (static_cast<CUgraphNodeType>(node.type())) {
        case CU_GRAPH_NODE_TYPE_KERNEL: return make_kernel(graph, node);
        case CU_GRAPH_NODE_TYPE_GRAPH: return make_child(graph, node);
        case CU_GRAPH_NODE_TYPE_CONDITIONAL: return make_conditional(graph, node, inner);
        case CU_GRAPH_NODE_TYPE_EMPTY:
            result = api.cuGraphAddEmptyNode(&made, graph, nullptr, 0);
            break;
        case CU_GRAPH_NODE_TYPE_MEMCPY: {
            cuda::wire_hand::Copy3DCall copy{};
            CUDA_MEMCPY3D_v2 params{};
            const worker::Command none{};
            worker::Call call(process_, none);
            if (!parse(node.params(), &copy)) {
                return damaged("a copy of another size");
            }
            result = to_native_copy(call, copy, &params);
            if (result == CUDA_SUCCESS) {
                result = api.cuGraphAddMemcpyNode(&made, graph, nullptr, 0, &params,
                                                  process_.device.context());
            }
            break;
        }
        case CU_GRAPH_NODE_TYPE_MEMSET: {
            CUDA_MEMSET_NODE_PARAMS_v1 params{};
            if (!parse(node.params(), &params)) {
                return damaged("a memset of another size");
            }
            result = api.cuGraphAddMemsetNode(&made, graph, nullptr, 0, &params,
                                              process_.device.context());
            break;
        }
        case CU_GRAPH_NODE_TYPE_HOST: {
            std::array<std::uint64_t, 2> callback{};
            if (!parse(node.params(), &callback)) {
                return damaged("a host function of another size");
            }
            wire::CallbackReply reply{};
            reply.function = callback[0];
            reply.user_data = callback[1];
            reply.kind = static_cast<wire::CallbackKind>(node.callback_kind()) ==
                                 wire::CallbackKind::kGraphCopy
                             ? wire::CallbackKind::kGraphCopy
                             : wire::CallbackKind::kHostFunction;
            const CUDA_HOST_NODE_PARAMS_v1 params{run_host_function,
                                                  process_.channel.callbacks.add_repeating(reply)};
            result = api.cuGraphAddHostNode(&made, graph, nullptr, 0, &params);
            break;
        }
        case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        case CU_GRAPH_NODE_TYPE_WAIT_EVENT: {
            const auto event =
                process_.objects.native_as<CUevent>(node.event(), HandleKind::kEvent);
            if (event == nullptr) {
                return damaged("an event that is not there");
            }
            result = node.type() == CU_GRAPH_NODE_TYPE_EVENT_RECORD
                         ? api.cuGraphAddEventRecordNode(&made, graph, nullptr, 0, event)
                         : api.cuGraphAddEventWaitNode(&made, graph, nullptr, 0, event);
            break;
        }
        default: return damaged("a node of an unknown type");
    }
    if (result != CUDA_SUCCESS) {
        return failed(process_, result,
                      fmt::format("making a graph node of type {} again", node.type()).c_str());
    }
    return made;
}

// Edges with the same data go to the driver together: NVIDIA's (580.159) gives all edges of a call
// the data of the first.
Result<void> CudaGraphWriter::make_edges(CUgraph graph, const snapshot::Graph& described,
                                         const std::vector<CUgraphNode>& nodes) {
    const driver::DriverApi& api = process_.device.api();
    struct Ends {
        std::vector<CUgraphNode> from;
        std::vector<CUgraphNode> to;
    };
    std::map<std::string, Ends> by_data;
    for (const snapshot::GraphEdge& edge : described.edges()) {
        if (edge.from() >= nodes.size() || edge.to() >= nodes.size()) {
            return damaged("an edge to nowhere");
        }
        Ends& ends = by_data[edge.data()];
        ends.from.push_back(nodes[edge.from()]);
        ends.to.push_back(nodes[edge.to()]);
    }
    for (const auto& [bytes, ends] : by_data) {
        CUgraphEdgeData one{};
        if (!bytes.empty() && !parse(bytes, &one)) {
            return damaged("an edge of another size");
        }
        const std::vector<CUgraphEdgeData> data(bytes.empty() ? 0 : ends.from.size(), one);
        const CUresult result = api.cuGraphAddDependencies_v2 != nullptr
                                    ? api.cuGraphAddDependencies_v2(
                                          graph, ends.from.data(), ends.to.data(),
                                          data.empty() ? nullptr : data.data(), ends.from.size())
                                    : api.cuGraphAddDependencies(graph, ends.from.data(),
                                                                 ends.to.data(), ends.from.size());
        if (result != CUDA_SUCCESS) {
            return failed(process_, result, "making the edges of a graph again");
        }
    }
    return {};
}

Result<void> CudaGraphWriter::fill(CUgraph graph, const snapshot::Graph& described,
                                   std::vector<CUgraphNode>* nodes) {
    const driver::DriverApi& api = process_.device.api();
    for (const snapshot::UserObjectReference& held : described.user_objects()) {
        const CUuserObject object = process_.graphs.user_objects.native_of(held.user_object());
        if (object == nullptr || api.cuGraphRetainUserObject == nullptr) {
            return damaged("a user object that is not there");
        }
        if (const CUresult result = api.cuGraphRetainUserObject(graph, object, held.count(), 0);
            result != CUDA_SUCCESS) {
            return failed(process_, result, "holding a user object again");
        }
        process_.graphs.user_objects.retain(graph, object, held.count());
    }
    for (const snapshot::Condition& condition : described.conditions()) {
        GANTRY_TRY(make_condition(graph, condition));
    }
    std::vector<CUgraphNode> inner;
    for (const snapshot::GraphNode& node : described.nodes()) {
        GANTRY_ASSIGN(const CUgraphNode made, make_node(graph, node, &inner));
        nodes->push_back(made);
    }
    GANTRY_TRY(make_edges(graph, described, *nodes));
    nodes->insert(nodes->end(), inner.begin(), inner.end());
    return {};
}

Result<CUgraph> CudaGraphWriter::make(const snapshot::Graph& described,
                                      std::vector<CUgraphNode>* nodes) {
    CUgraph graph = nullptr;
    if (const CUresult result = process_.device.api().cuGraphCreate(&graph, 0);
        result != CUDA_SUCCESS) {
        return failed(process_, result, "making a graph again");
    }
    if (const auto filled = fill(graph, described, nodes); !filled.ok()) {
        process_.graphs.book.forget_graph(graph);
        process_.device.api().cuGraphDestroy(graph);
        return filled.error();
    }
    return graph;
}

Result<void> CudaGraphWriter::make_guest_graph(const snapshot::Graph& described) {
    if (cuda::handle_kind(described.handle()) != HandleKind::kGraph) {
        return damaged("a handle of another kind");
    }
    std::vector<CUgraphNode> nodes;
    GANTRY_ASSIGN(const CUgraph graph, make(described, &nodes));
    GANTRY_TRY(
        name(described.handle(), described.order(), reinterpret_cast<std::uint64_t>(graph), 0));
    GANTRY_TRY(name_nodes(described, nodes, described.handle()));
    process_.graphs.book.note_memory(graph, memory_of(described));
    if (process_.graphs.book.conditions.are_in(graph)) {
        described_[described.handle()] = without_names(described);
    }
    made_[described.handle()] = std::move(nodes);
    return {};
}

/// Of a graph with conditions there is one exec at a time, since it and the graph share them: it is
/// instantiated from the guest's graph as long as there is one.
Result<CUgraphExec> CudaGraphWriter::instantiate(const snapshot::GraphExec& described,
                                                 worker::CudaGraphBook::Exec* exec,
                                                 std::vector<CUgraphNode>* nodes) {
    CUgraph graph = nullptr;
    const auto source = described_.find(described.source_graph());
    if (source != described_.end()) {
        if (!google::protobuf::util::MessageDifferencer::Equals(source->second,
                                                                described.graph())) {
            return Error{Code::kFailedPrecondition, "feature.graph.conditional.not_movable",
                         "a CUDA graph with conditional nodes was changed after it was "
                         "instantiated"};
        }
        auto description = std::make_shared<worker::CudaGraphBook::Description>();
        description->graph = described.graph().SerializeAsString();
        description->nodes = made_[described.source_graph()];
        *nodes = description->nodes;
        exec->described = std::move(description);
        exec->made_again = false;
        graph = process_.objects.native_as<CUgraph>(described.source_graph(), HandleKind::kGraph);
    } else {
        GANTRY_ASSIGN(exec->made_from, make(described.graph(), nodes));
        graph = exec->made_from;
    }
    CUgraphExec made = nullptr;
    const CUresult result =
        process_.device.api().cuGraphInstantiateWithFlags(&made, graph, described.flags());
    if (result != CUDA_SUCCESS) {
        if (exec->made_from != nullptr) {
            process_.graphs.book.forget_graph(exec->made_from);
            process_.device.api().cuGraphDestroy(exec->made_from);
        }
        return failed(process_, result, "instantiating a graph again");
    }
    return made;
}

Result<void> CudaGraphWriter::make_exec(const snapshot::GraphExec& described) {
    const driver::DriverApi& api = process_.device.api();
    if (cuda::handle_kind(described.handle()) != HandleKind::kGraphExec) {
        return damaged("an exec under a handle of another kind");
    }
    worker::CudaGraphBook::Exec exec;
    exec.source = described.source_graph();
    exec.flags = described.flags();
    exec.made_again = true;
    exec.memory = memory_of(described);
    std::vector<CUgraphNode> nodes;
    GANTRY_ASSIGN(const CUgraphExec made, instantiate(described, &exec, &nodes));
    const auto source = made_.find(exec.source);
    const std::size_t known = source == made_.end() ? 0 : source->second.size();
    for (std::size_t i = 0;
         i < known && i < static_cast<std::size_t>(described.source_nodes_size()); ++i) {
        const std::uint32_t position = described.source_nodes(static_cast<int>(i));
        if (position > nodes.size()) {
            return damaged("an exec of other nodes");
        }
        if (position != 0) {
            exec.twins[source->second[i]] = nodes[position - 1];
        }
    }
    CUresult result = CUDA_SUCCESS;
    if (described.has_updated()) {
        std::vector<CUgraphNode> ignored;
        CUgraphExecUpdateResultInfo info{};
        GANTRY_ASSIGN(exec.updated_from, make(described.updated(), &ignored));
        result = api.cuGraphExecUpdate_v2(made, exec.updated_from, &info);
    }
    process_.graphs.book.add(described.handle(), std::move(exec));
    if (result != CUDA_SUCCESS) {
        return failed(process_, result, "instantiating a graph again");
    }
    GANTRY_TRY(
        name(described.handle(), described.order(), reinterpret_cast<std::uint64_t>(made), 0));
    for (const snapshot::GraphChange& change : described.changes()) {
        if (change.has_child() && change.node() < nodes.size()) {
            std::vector<CUgraphNode> ignored;
            GANTRY_ASSIGN(const CUgraph child, make(change.child(), &ignored));
            result = api.cuGraphExecChildGraphNodeSetParams(made, nodes[change.node()], child);
            if (result == CUDA_SUCCESS) {
                process_.graphs.book.replaced_child(described.handle(), nodes[change.node()],
                                                    child);
            }
            process_.graphs.book.forget_graph(child);
            api.cuGraphDestroy(child);
            if (result != CUDA_SUCCESS) {
                return failed(process_, result, "replacing a child graph again");
            }
            continue;
        }
        worker::RecordedCommand command;
        if (change.node() >= nodes.size() || !decode_command(change.command(), &command)) {
            return damaged("a changed node that is not there");
        }
        process_.graphs.book.restored_node = nodes[change.node()];
        result = worker::replay(process_, command);
        process_.graphs.book.restored_node = nullptr;
        if (result != CUDA_SUCCESS) {
            return failed(process_, result, "changing a node of a graph again");
        }
    }
    return {};
}

}  // namespace gantry::state
