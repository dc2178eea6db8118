// CudaGraphReader: the driver's graphs as descriptions.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "host-daemon/state/commands/command_codec.h"
#include "host-daemon/state/cuda_graphs/cuda_graph_content.h"
#include "proto/cuda/gen/op_table.h"
#include "proto/cuda/wire_hand.h"

namespace gantry::state {
namespace {

using cuda::HandleKind;

Error not_movable(const char* what, std::string text) {
    return Error{Code::kFailedPrecondition, fmt::format("feature.graph.{}.not_movable", what),
                 "a CUDA graph of the process cannot be taken over: " + std::move(text)};
}

Error failed(worker::GuestProcess& process, CUresult result, const char* what) {
    return driver::to_error(process.device.api(), result, "state.graph", what);
}

template <typename T>
void append(std::string* out, const T& value) {
    out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace

CudaGraphReader::CudaGraphReader(worker::GuestProcess& process) : process_(process) {
    process.device.bind_thread();
    for (const worker::Object& object :
         process.objects.list([](const worker::Object&) { return true; })) {
        names_.emplace(std::pair{object.kind(), object.native}, Name{object.handle, object.order});
    }
}

std::uint64_t CudaGraphReader::name_of(HandleKind kind, const void* native) const {
    const auto name = names_.find({kind, reinterpret_cast<std::uint64_t>(native)});
    return name == names_.end() ? 0 : name->second.handle;
}

Result<void> CudaGraphReader::read_kernel(CUgraphNode node, snapshot::GraphNode* out) {
    const driver::DriverApi& api = process_.device.api();
    CUDA_KERNEL_NODE_PARAMS_v2 params{};
    if (api.cuGraphKernelNodeGetParams_v2 == nullptr) {
        return not_movable("kernel", "the driver does not tell a kernel node's parameters");
    }
    if (const CUresult result = api.cuGraphKernelNodeGetParams_v2(node, &params);
        result != CUDA_SUCCESS) {
        return failed(process_, result, "reading a kernel node");
    }
    snapshot::KernelNode* kernel = out->mutable_kernel();
    const std::uint64_t name = process_.graphs.kernel_names.handle_of(params);
    if (cuda::handle_kind(name) == HandleKind::kFunction) {
        kernel->set_function(name);
    } else {
        kernel->set_kernel(name);
    }
    if (name == 0) {
        return not_movable("kernel", "one of its kernels belongs to no module that is loaded");
    }
    if (!worker::pack_arguments(api, params, kernel->mutable_arguments())) {
        return not_movable("kernel",
                           "the driver does not tell the arguments of one of its kernels");
    }
    for (const unsigned value : {params.gridDimX, params.gridDimY, params.gridDimZ}) {
        kernel->add_grid(value);
    }
    for (const unsigned value : {params.blockDimX, params.blockDimY, params.blockDimZ}) {
        kernel->add_block(value);
    }
    kernel->set_shared_bytes(params.sharedMemBytes);
    kernel->set_context(name_of(HandleKind::kContext, params.ctx));
    const CUkernelNodeAttrValue none{};
    for (const int id : cuda::kKernelNodeAttributes) {
        CUkernelNodeAttrValue value{};
        const bool is_told = api.cuGraphKernelNodeGetAttribute != nullptr &&
                             api.cuGraphKernelNodeGetAttribute(
                                 node, static_cast<CUkernelNodeAttrID>(id), &value) == CUDA_SUCCESS;
        if (!is_told) {
            value = id == CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING
                        ? process_.graphs.book.untold_of(node).value_or(none)
                        : none;
        }
        if (std::memcmp(&value, &none, sizeof(value)) != 0) {
            (*out->mutable_attributes())[static_cast<std::uint32_t>(id)] =
                std::string(reinterpret_cast<const char*>(&value), sizeof(value));
        }
    }
    return {};
}

Result<void> CudaGraphReader::read_copy(CUgraphNode node, snapshot::GraphNode* out,
                                        bool* names_pinned) {
    const driver::DriverApi& api = process_.device.api();
    CUDA_MEMCPY3D_v2 params{};
    if (const CUresult result = api.cuGraphMemcpyNodeGetParams(node, &params);
        result != CUDA_SUCCESS) {
        return failed(process_, result, "reading a copy node");
    }
    const cuda::wire_hand::Copy3DCall copy = worker::describe_copy(params, process_.objects);
    for (const cuda::wire_hand::CopyEnd* end : {&copy.source, &copy.target}) {
        if (end->array == 0 && !process_.memory.device.owns(end->address, 1)) {
            return not_movable("host_memory",
                               fmt::format("it copies from or to {:#x}, which is no memory of its "
                                           "GPU",
                                           end->address));
        }
        *names_pinned = *names_pinned || wire::is_pinned_address(end->address);
    }
    append(out->mutable_params(), copy);
    return {};
}

Result<void> CudaGraphReader::read_conditional(CUgraphNode node, snapshot::GraphNode* out,
                                               bool* names_pinned,
                                               std::vector<CUgraphNode>* inner) {
    const auto known = process_.graphs.book.conditions.of_node(node);
    if (!known) {
        return not_movable("conditional", "one of its conditional nodes is not known");
    }
    out->set_condition(known->condition);
    out->set_conditional_type(known->type);
    for (const CUgraph body : known->bodies) {
        std::vector<CUgraphNode> nodes;
        GANTRY_TRY(read(body, out->add_bodies(), &nodes));
        const auto& described = out->bodies(out->bodies_size() - 1);
        *names_pinned = *names_pinned || described.names_pinned_memory();
        inner->insert(inner->end(), nodes.begin(), nodes.end());
    }
    return {};
}

Result<void> CudaGraphReader::read_node(CUgraphNode node, snapshot::GraphNode* out,
                                        bool* names_pinned, std::vector<CUgraphNode>* inner) {
    const driver::DriverApi& api = process_.device.api();
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    CUresult result = api.cuGraphNodeGetType(node, &type);
    if (result != CUDA_SUCCESS) {
        return failed(process_, result, "reading the type of a graph node");
    }
    out->set_type(static_cast<std::uint32_t>(type));
    const auto [first, last] =
        names_.equal_range({HandleKind::kGraphNode, reinterpret_cast<std::uint64_t>(node)});
    for (auto name = first; name != last; ++name) {
        if (out->handle() == 0) {
            out->set_handle(name->second.handle);
            out->set_order(name->second.order);
        } else {
            out->add_aliases(name->second.handle);
        }
    }
    switch (type) {
        case CU_GRAPH_NODE_TYPE_EMPTY: return {};
        case CU_GRAPH_NODE_TYPE_KERNEL: return read_kernel(node, out);
        case CU_GRAPH_NODE_TYPE_MEMCPY: return read_copy(node, out, names_pinned);
        case CU_GRAPH_NODE_TYPE_CONDITIONAL:
            return read_conditional(node, out, names_pinned, inner);
        case CU_GRAPH_NODE_TYPE_MEMSET: {
            CUDA_MEMSET_NODE_PARAMS_v1 params{};
            result = api.cuGraphMemsetNodeGetParams(node, &params);
            *names_pinned = *names_pinned || wire::is_pinned_address(params.dst);
            append(out->mutable_params(), params);
            break;
        }
        case CU_GRAPH_NODE_TYPE_HOST: {
            CUDA_HOST_NODE_PARAMS_v1 params{};
            result = api.cuGraphHostNodeGetParams(node, &params);
            const auto callback = process_.channel.callbacks.find(params.userData);
            if (result == CUDA_SUCCESS && !callback) {
                return not_movable("host_function", "it calls a function that is not the guest's");
            }
            if (callback) {
                append(out->mutable_params(), callback->function);
                append(out->mutable_params(), callback->user_data);
                out->set_callback_kind(static_cast<std::uint32_t>(callback->kind));
            }
            break;
        }
        case CU_GRAPH_NODE_TYPE_GRAPH: {
            CUgraph child = nullptr;
            result = api.cuGraphChildGraphNodeGetGraph(node, &child);
            if (result == CUDA_SUCCESS) {
                GANTRY_TRY(read(child, out->mutable_child()));
                *names_pinned = *names_pinned || out->child().names_pinned_memory();
            }
            break;
        }
        case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        case CU_GRAPH_NODE_TYPE_WAIT_EVENT: {
            CUevent event = nullptr;
            result = type == CU_GRAPH_NODE_TYPE_EVENT_RECORD
                         ? api.cuGraphEventRecordNodeGetEvent(node, &event)
                         : api.cuGraphEventWaitNodeGetEvent(node, &event);
            out->set_event(name_of(HandleKind::kEvent, event));
            if (result == CUDA_SUCCESS && out->event() == 0) {
                return not_movable("event", "one of its events has been destroyed");
            }
            break;
        }
        default:
            return not_movable("node", fmt::format("it has a node of type {} (memory or "
                                                   "external semaphore)",
                                                   static_cast<int>(type)));
    }
    return result == CUDA_SUCCESS ? Result<void>()
                                  : failed(process_, result, "reading a graph node");
}

Result<void> CudaGraphReader::read_edges(CUgraph graph,
                                         const std::map<CUgraphNode, std::uint64_t>& positions,
                                         snapshot::Graph* out) {
    const driver::DriverApi& api = process_.device.api();
    const bool has_data = api.cuGraphGetEdges_v2 != nullptr;
    std::size_t count = 0;
    CUresult result = has_data ? api.cuGraphGetEdges_v2(graph, nullptr, nullptr, nullptr, &count)
                               : api.cuGraphGetEdges(graph, nullptr, nullptr, &count);
    std::vector<CUgraphNode> from(count);
    std::vector<CUgraphNode> to(count);
    std::vector<CUgraphEdgeData> data(count);
    if (result == CUDA_SUCCESS && count != 0) {
        result = has_data
                     ? api.cuGraphGetEdges_v2(graph, from.data(), to.data(), data.data(), &count)
                     : api.cuGraphGetEdges(graph, from.data(), to.data(), &count);
    }
    if (result != CUDA_SUCCESS) {
        return failed(process_, result, "reading the edges of a graph");
    }
    const CUgraphEdgeData plain{};
    for (std::size_t i = 0; i < count; ++i) {
        snapshot::GraphEdge* edge = out->add_edges();
        edge->set_from(positions.at(from[i]));
        edge->set_to(positions.at(to[i]));
        if (std::memcmp(&data[i], &plain, sizeof(plain)) != 0) {
            append(edge->mutable_data(), data[i]);
        }
    }
    return {};
}

Result<void> CudaGraphReader::read(CUgraph graph, snapshot::Graph* out,
                                   std::vector<CUgraphNode>* nodes_out) {
    const driver::DriverApi& api = process_.device.api();
    const auto name = names_.find({HandleKind::kGraph, reinterpret_cast<std::uint64_t>(graph)});
    if (name != names_.end()) {
        out->set_handle(name->second.handle);
        out->set_order(name->second.order);
    }
    std::size_t count = 0;
    CUresult result = api.cuGraphGetNodes(graph, nullptr, &count);
    std::vector<CUgraphNode> nodes(count);
    if (result == CUDA_SUCCESS && count != 0) {
        result = api.cuGraphGetNodes(graph, nodes.data(), &count);
    }
    if (result != CUDA_SUCCESS) {
        return failed(process_, result, "reading the nodes of a graph");
    }
    std::map<CUgraphNode, std::uint64_t> positions;
    bool names_pinned = false;
    std::vector<CUgraphNode> inner;
    for (const worker::Condition& condition : process_.graphs.book.conditions.of(graph)) {
        snapshot::Condition* described = out->add_conditions();
        described->set_handle(condition.handle);
        described->set_default_value(condition.default_value);
        described->set_flags(condition.flags);
    }
    for (const auto& reference : process_.graphs.user_objects.of_graph(graph)) {
        snapshot::UserObjectReference* held = out->add_user_objects();
        held->set_user_object(reference.handle);
        held->set_count(reference.count);
    }
    for (std::size_t i = 0; i < count; ++i) {
        positions.emplace(nodes[i], i);
        GANTRY_TRY(read_node(nodes[i], out->add_nodes(), &names_pinned, &inner));
    }
    out->set_names_pinned_memory(names_pinned);
    GANTRY_TRY(read_edges(graph, positions, out));
    if (nodes_out != nullptr) {
        nodes.insert(nodes.end(), inner.begin(), inner.end());
        *nodes_out = std::move(nodes);
    }
    return {};
}

namespace {

/// To a Graph or a GraphExec.
template <typename Message>
void add_memory(const worker::GraphMemory& memory, Message* out) {
    for (const std::uint64_t address : memory.allocates) {
        out->add_allocates(address);
    }
    for (const std::uint64_t address : memory.frees) {
        out->add_frees(address);
    }
}

}  // namespace

Result<void> CudaGraphReader::read_exec(
    const worker::Object& object, const std::map<std::uint64_t, std::vector<CUgraphNode>>& sources,
    snapshot::GraphExec* out) {
    const auto exec = process_.graphs.book.find(object.handle);
    if (!exec || !exec->is_whole()) {
        return not_movable("node", "the driver cannot clone it, or what it was updated from");
    }
    out->set_handle(object.handle);
    out->set_order(object.order);
    out->set_context(object.context);
    out->set_source_graph(exec->source);
    out->set_flags(exec->flags);
    add_memory(exec->memory, out);
    std::vector<CUgraphNode> nodes;
    if (exec->described != nullptr) {
        if (!out->mutable_graph()->ParseFromString(exec->described->graph)) {
            return not_movable("node", "its description is damaged");
        }
        nodes = exec->described->nodes;
    } else {
        GANTRY_TRY(read(exec->made_from, out->mutable_graph(), &nodes));
    }
    if (exec->updated_from != nullptr) {
        GANTRY_TRY(read(exec->updated_from, out->mutable_updated()));
    }
    std::map<CUgraphNode, std::uint32_t> positions;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        positions.emplace(nodes[i], static_cast<std::uint32_t>(i));
    }
    const auto source = sources.find(exec->source);
    const auto& source_nodes =
        source == sources.end() ? std::vector<CUgraphNode>() : source->second;
    for (const CUgraphNode node : source_nodes) {
        CUgraphNode twin = process_.graphs.book.node_in(object.handle, node);
        if (exec->described != nullptr) {
            twin = node;
        } else if (!exec->made_again && process_.device.api().cuGraphNodeFindInClone(
                                            &twin, node, exec->made_from) != CUDA_SUCCESS) {
            twin = nullptr;  // Added to the graph since.
        }
        const auto position = positions.find(twin);
        out->add_source_nodes(position == positions.end() ? 0 : position->second + 1);
    }
    for (const auto& [key, command] : exec->changes) {
        snapshot::GraphChange* change = out->add_changes();
        change->set_node(positions.at(key.second));
        change->set_command(encode_command(command));
    }
    for (const auto& [node, child] : exec->children) {
        snapshot::GraphChange* change = out->add_changes();
        change->set_node(positions.at(node));
        GANTRY_TRY(read(child, change->mutable_child()));
    }
    return {};
}

namespace {

/// Of another graph, made from the same nodes: they have names of their own, if any.
void forget_names(snapshot::Graph* graph) {
    graph->clear_handle();
    graph->clear_order();
    graph->clear_context();
    graph->clear_allocates();
    graph->clear_frees();
    for (snapshot::GraphNode& node : *graph->mutable_nodes()) {
        node.clear_handle();
        node.clear_order();
        node.clear_aliases();
        if (node.has_child()) {
            forget_names(node.mutable_child());
        }
        for (snapshot::Graph& body : *node.mutable_bodies()) {
            forget_names(&body);
        }
    }
}

}  // namespace

snapshot::Graph without_names(snapshot::Graph graph) {
    forget_names(&graph);
    return graph;
}

void describe_graphs(worker::GuestProcess& process) {
    process.graphs.book.describe = [&process](CUgraph graph) {
        auto made = std::make_shared<worker::CudaGraphBook::Description>();
        snapshot::Graph described;
        const auto read = CudaGraphReader(process).read(graph, &described, &made->nodes);
        if (!read.ok()) {
            return std::shared_ptr<const worker::CudaGraphBook::Description>();
        }
        made->graph = without_names(std::move(described)).SerializeAsString();
        return std::shared_ptr<const worker::CudaGraphBook::Description>(std::move(made));
    };
}

Result<void> CudaGraphReader::read_all(snapshot::ObjectGraph* out) {
    std::map<std::uint64_t, std::vector<CUgraphNode>> sources;
    for (const worker::Object& graph : process_.objects.list_kind(HandleKind::kGraph)) {
        if (graph.parent != 0) {
            continue;  // A child: described with its node.
        }
        snapshot::Graph* described = out->add_graphs();
        GANTRY_TRY(
            read(reinterpret_cast<CUgraph>(graph.native), described, &sources[graph.handle]));
        described->set_handle(graph.handle);
        described->set_order(graph.order);
        described->set_context(graph.context);
        add_memory(process_.graphs.book.memory_of(reinterpret_cast<CUgraph>(graph.native)),
                   described);
    }
    for (const worker::Object& exec : process_.objects.list_kind(HandleKind::kGraphExec)) {
        GANTRY_TRY(read_exec(exec, sources, out->add_graph_execs()));
    }
    return {};
}

}  // namespace gantry::state
