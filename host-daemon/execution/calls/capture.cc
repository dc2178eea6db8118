// Stream capture: its beginning, what a guest asks about one that is open, its end.
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

/// The capture's state, and its id. Its graph has the handle that the guest
/// chose for it, and its nodes get theirs when the guest lists them after the capture.
CUresult on_cuStreamGetCaptureInfo_v3(CallContext& context,
                                      const wire::cuStreamGetCaptureInfo_v3_call& wanted,
                                      std::span<const std::byte>, Reply& reply) {
    Call& call = static_cast<Call&>(context);
    const driver::DriverApi& api = call.api();
    CUstream stream = nullptr;
    if (const CUresult result = call.stream(wanted.stream, &stream); result != CUDA_SUCCESS) {
        return result;
    }
    auto status = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;
    if (api.cuStreamGetCaptureInfo_v3 != nullptr) {
        result =
            api.cuStreamGetCaptureInfo_v3(stream, &status, &id, nullptr, nullptr, nullptr, nullptr);
    } else if (api.cuStreamGetCaptureInfo_v2 != nullptr) {
        result = api.cuStreamGetCaptureInfo_v2(stream, &status, &id, nullptr, nullptr, nullptr);
    } else {
        return call.unsupported(call.op());
    }
    wire::cuStreamGetCaptureInfo_v3_reply answer{};
    answer.id = id;
    answer.status = static_cast<std::uint32_t>(status);
    reply.put(answer);
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
    // After any other result the stream is not captured, whether it was or not.
    if (result != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD &&
        result != CUDA_ERROR_STREAM_CAPTURE_UNMATCHED) {
        call.process().graphs.captures.end(HeldWork::key_of(call.lane(), end.stream));
    }
    if (result != CUDA_SUCCESS || graph == nullptr) {
        return result;
    }
    const auto native = reinterpret_cast<std::uint64_t>(graph);
    if (call.process().objects.native(end.graph, HandleKind::kGraph) == native) {
        return CUDA_SUCCESS;  // It has been added to.
    }
    const CUresult free = call.reserve(HandleKind::kGraph, end.graph);
    if (free != CUDA_SUCCESS) {
        call.api().cuGraphDestroy(graph);
        return free;
    }
    return call.add_object(end.graph, native);
}

}  // namespace gantry::worker
