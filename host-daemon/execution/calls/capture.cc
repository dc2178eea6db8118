// Stream capture: its beginning, what a guest asks about one that is open, its end.
#include <bit>

#include "host-daemon/execution/calls/graph_calls.h"
#include "host-daemon/execution/dispatch/handlers.h"
#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry::worker {
namespace {

/// `begin(stream)` begins a capture. Not recorded: a stream that is moved does not capture.
template <typename Begin>
CUresult begin_capture(Call& call, std::uint64_t handle, Begin begin) {
    // It may wait for what was queued before a free, as natively the free itself does.
    std::unique_lock gate(call.process().graphs.captures.gate, std::try_to_lock);
    if (!gate.owns_lock() && !call.may_wait()) {
        call.defer();
        return CUDA_SUCCESS;
    }
    if (!gate.owns_lock()) {
        gate.lock();
    }
    CUstream stream = nullptr;
    CUresult result = call.stream(handle, &stream);
    if (result == CUDA_SUCCESS) {
        result = begin(stream);
    }
    if (result == CUDA_SUCCESS) {
        call.process().graphs.captures.begin(HeldWork::key_of(call.lane(), handle));
    }
    return result;
}

/// Who may call what meanwhile the guest knows (guest-shim/driver/core/captures.h): here one thread
/// serves many, and another may end the capture.
constexpr CUstreamCaptureMode kCaptureMode = CU_STREAM_CAPTURE_MODE_RELAXED;

}  // namespace

CUresult on_cuStreamBeginCapture_v2(CallContext& context,
                                    const wire::cuStreamBeginCapture_v2_call& begin,
                                    std::span<const std::byte>, Reply&) {
    Call& call = static_cast<Call&>(context);
    if (call.api().cuStreamBeginCapture_v2 == nullptr) {
        return call.unsupported(call.op());
    }
    return begin_capture(call, begin.hStream, [&](CUstream stream) {
        return call.api().cuStreamBeginCapture_v2(stream, kCaptureMode);
    });
}

CUresult on_cuStreamBeginCaptureToGraph(CallContext& context,
                                        const wire::cuStreamBeginCaptureToGraph_call& begin,
                                        std::span<const std::byte> trailing, Reply&) {
    Call& call = static_cast<Call&>(context);
    if (call.api().cuStreamBeginCaptureToGraph == nullptr) {
        return call.unsupported(call.op());
    }
    CUgraph graph = nullptr;
    std::vector<CUgraphNode> nodes;
    CUresult result = need(call, begin.hGraph, HandleKind::kGraph, &graph);
    if (result == CUDA_SUCCESS) {
        result = read_dependencies(call, begin.numDependencies, trailing, &nodes);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const auto edges = Call::read_array<CUgraphEdgeData>(
        trailing, begin.has_dependencyData != 0 ? nodes.size() : 0);
    if (!edges) {
        return call.malformed(call.op(), "edge data longer than the command");
    }
    return begin_capture(call, begin.hStream, [&](CUstream stream) {
        return call.api().cuStreamBeginCaptureToGraph(stream, graph, nodes.data(),
                                                      edges->empty() ? nullptr : edges->data(),
                                                      nodes.size(), kCaptureMode);
    });
}

namespace {

struct CaptureInfo {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;
    CUgraph graph = nullptr;
    std::vector<CUgraphNode> nodes;  ///< That the stream's next one depends on.
    std::vector<CUgraphEdgeData> edges;
};

/// `wants_nodes`: the graph and the nodes as well.
CUresult ask(const driver::DriverApi& api, CUstream stream, bool wants_nodes, CaptureInfo* out) {
    const CUgraphNode* nodes = nullptr;
    const CUgraphEdgeData* edges = nullptr;
    std::size_t count = 0;
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;
    if (api.cuStreamGetCaptureInfo_v3 != nullptr) {
        result = api.cuStreamGetCaptureInfo_v3(
            stream, &out->status, &out->id, wants_nodes ? &out->graph : nullptr,
            wants_nodes ? &nodes : nullptr, wants_nodes ? &edges : nullptr,
            wants_nodes ? &count : nullptr);
    } else if (api.cuStreamGetCaptureInfo_v2 != nullptr) {
        result = api.cuStreamGetCaptureInfo_v2(
            stream, &out->status, &out->id, wants_nodes ? &out->graph : nullptr,
            wants_nodes ? &nodes : nullptr, wants_nodes ? &count : nullptr);
    }
    if (result == CUDA_SUCCESS && nodes != nullptr) {
        out->nodes.assign(nodes, nodes + count);
        out->edges.resize(count);
        if (edges != nullptr) {
            out->edges.assign(edges, edges + count);
        }
    }
    return result;
}

/// The handle of the graph that a capture adds to. One that it makes gets its handle early.
CUresult name_graph(Call& call, CUgraph graph, std::uint64_t* handle) {
    const auto native = reinterpret_cast<std::uint64_t>(graph);
    ObjectTable& objects = call.process().objects;
    if (objects.native(*handle, HandleKind::kGraph) == native) {
        return CUDA_SUCCESS;
    }
    CUresult result = call.reserve(HandleKind::kGraph, *handle);
    if (result == CUDA_SUCCESS) {
        result = call.add_object(*handle, native);
    }
    if (result == CUDA_SUCCESS) {
        call.process().graphs.captures.note_graph(*handle);
    }
    return result;
}

}  // namespace

/// The capture's state, and its id. With a graph's handle, which the guest chose for it, the nodes
/// that the stream's next one depends on, too.
CUresult on_cuStreamGetCaptureInfo_v3(CallContext& context,
                                      const wire::cuStreamGetCaptureInfo_v3_call& wanted,
                                      std::span<const std::byte>, Reply& reply) {
    Call& call = static_cast<Call&>(context);
    CUstream stream = nullptr;
    if (const CUresult result = call.stream(wanted.stream, &stream); result != CUDA_SUCCESS) {
        return result;
    }
    if (call.api().cuStreamGetCaptureInfo_v3 == nullptr &&
        call.api().cuStreamGetCaptureInfo_v2 == nullptr) {
        return call.unsupported(call.op());
    }
    CaptureInfo info;
    CUresult result = ask(call.api(), stream, wanted.graph != 0, &info);
    std::vector<std::uint64_t> handles;
    NewNames names{wanted.first_new_handle, wanted.new_handle_count};
    if (result == CUDA_SUCCESS && info.graph != nullptr) {
        std::uint64_t graph = wanted.graph;
        result = name_graph(call, info.graph, &graph);
        if (result == CUDA_SUCCESS) {
            result = name_nodes(call, graph, info.nodes, &names, &handles);
        }
    }
    wire::cuStreamGetCaptureInfo_v3_reply answer{};
    answer.id = info.id;
    answer.status = static_cast<std::uint32_t>(info.status);
    answer.count = static_cast<std::uint32_t>(handles.size());
    answer.new_handles_used = names.used;
    for (std::size_t i = 0; i < answer.count; ++i) {
        handles.push_back(std::bit_cast<std::uint64_t>(info.edges[i]));
    }
    reply.put(answer);
    reply.trailing(std::as_bytes(std::span(handles)));
    return result;
}

CUresult on_cuStreamEndCapture(CallContext& context, const wire::cuStreamEndCapture_call& end,
                               std::span<const std::byte>, Reply&) {
    Call& call = static_cast<Call&>(context);
    CUstream stream = nullptr;
    if (call.api().cuStreamEndCapture == nullptr) {
        return call.unsupported(call.op());
    }
    if (const CUresult result = call.stream(end.stream, &stream); result != CUDA_SUCCESS) {
        return result;
    }
    if (cuda::handle_kind(end.graph) != HandleKind::kGraph) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    CUgraph graph = nullptr;
    const CUresult result = call.api().cuStreamEndCapture(stream, &graph);
    Captures& captures = call.process().graphs.captures;
    if (result == CUDA_SUCCESS && graph != nullptr) {
        captures.keep_graph(end.graph);
    } else if (end.is_given == 0) {
        captures.drop_graph(end.graph);
    }
    // After any other result the stream is not captured, whether it was or not.
    if (result != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD &&
        result != CUDA_ERROR_STREAM_CAPTURE_UNMATCHED) {
        captures.end(HeldWork::key_of(call.lane(), end.stream));
    }
    if (result != CUDA_SUCCESS || graph == nullptr) {
        return result;
    }
    const auto native = reinterpret_cast<std::uint64_t>(graph);
    if (call.process().objects.native(end.graph, HandleKind::kGraph) == native) {
        return CUDA_SUCCESS;  // It has been added to, or has its name already.
    }
    const CUresult free = call.reserve(HandleKind::kGraph, end.graph);
    if (free != CUDA_SUCCESS) {
        call.api().cuGraphDestroy(graph);
        return free;
    }
    return call.add_object(end.graph, native);
}

}  // namespace gantry::worker
