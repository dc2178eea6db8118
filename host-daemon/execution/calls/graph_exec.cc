// Executable graphs, clones and child graphs.
#include "host-daemon/execution/dispatch/handlers.h"

#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry::worker {
namespace {

/// The guest's handle of a node that the driver names; 0 when the guest knows none.
std::uint64_t handle_of_node(Call& call, CUgraphNode node) {
    return node == nullptr ? 0
                           : call.process().objects.handle_of(reinterpret_cast<std::uint64_t>(node),
                                                              HandleKind::kGraphNode);
}

CUresult bind_exec(Call& call, std::uint64_t exec, std::uint64_t source, CUgraph graph,
                   std::uint64_t flags, CUgraphExec made) {
    const CUresult result = call.add_object(exec, reinterpret_cast<std::uint64_t>(made));
    if (result == CUDA_SUCCESS) {
        call.process().graphs.book.add(exec, source, graph, flags);
    } else {
        call.api().cuGraphExecDestroy(made);
    }
    return result;
}

/// A graph and the free handle of what is to be made from it.
CUresult prepare(Call& call, std::uint64_t graph_handle, HandleKind kind, std::uint64_t wanted,
                 CUgraph* graph) {
    std::uint64_t native = 0;
    const CUresult result = call.resolve(HandleKind::kGraph, graph_handle, &native);
    *graph = reinterpret_cast<CUgraph>(native);
    return result == CUDA_SUCCESS ? call.reserve(kind, wanted) : result;
}

}  // namespace

CUresult on_cuGraphInstantiateWithFlags(CallContext& context,
                                        const wire::cuGraphInstantiateWithFlags_call& wanted,
                                        std::span<const std::byte>, Reply&) {
    Call& call = as_call(context);
    if (call.api().cuGraphInstantiateWithFlags == nullptr) {
        return call.unsupported(call.op());
    }
    CUgraph graph = nullptr;
    CUgraphExec made = nullptr;
    CUresult result =
        prepare(call, wanted.hGraph, HandleKind::kGraphExec, wanted.phGraphExec, &graph);
    if (result == CUDA_SUCCESS) {
        result = call.api().cuGraphInstantiateWithFlags(&made, graph, wanted.flags);
    }
    return result == CUDA_SUCCESS
               ? bind_exec(call, wanted.phGraphExec, wanted.hGraph, graph, wanted.flags, made)
               : result;
}

CUresult on_cuGraphInstantiateWithParams(CallContext& context,
                                         const wire::cuGraphInstantiateWithParams_call& wanted,
                                         std::span<const std::byte>, Reply& reply) {
    Call& call = as_call(context);
    if (call.api().cuGraphInstantiateWithParams == nullptr) {
        return call.unsupported(call.op());
    }
    CUgraph graph = nullptr;
    CUgraphExec made = nullptr;
    CUDA_GRAPH_INSTANTIATE_PARAMS params{};
    params.flags = wanted.flags;
    CUresult result = prepare(call, wanted.graph, HandleKind::kGraphExec, wanted.exec, &graph);
    if (result == CUDA_SUCCESS) {
        result = call.stream(wanted.upload_stream, &params.hUploadStream);
    }
    if (result == CUDA_SUCCESS) {
        result = call.api().cuGraphInstantiateWithParams(&made, graph, &params);
        reply.put(wire::cuGraphInstantiateWithParams_reply{
            handle_of_node(call, params.hErrNode_out),
            static_cast<std::uint32_t>(params.result_out), 0});
    }
    return result == CUDA_SUCCESS
               ? bind_exec(call, wanted.exec, wanted.graph, graph, wanted.flags, made)
               : result;
}

CUresult on_cuGraphExecUpdate_v2(CallContext& context,
                                 const wire::cuGraphExecUpdate_v2_call& update,
                                 std::span<const std::byte>, Reply& reply) {
    Call& call = as_call(context);
    if (call.api().cuGraphExecUpdate_v2 == nullptr) {
        return call.unsupported(call.op());
    }
    std::uint64_t exec = 0;
    std::uint64_t graph = 0;
    CUresult result = call.resolve(HandleKind::kGraphExec, update.exec, &exec);
    if (result == CUDA_SUCCESS) {
        result = call.resolve(HandleKind::kGraph, update.graph, &graph);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CUgraphExecUpdateResultInfo info{};
    result = call.api().cuGraphExecUpdate_v2(reinterpret_cast<CUgraphExec>(exec),
                                             reinterpret_cast<CUgraph>(graph), &info);
    reply.put(wire::cuGraphExecUpdate_v2_reply{handle_of_node(call, info.errorNode),
                                               handle_of_node(call, info.errorFromNode),
                                               static_cast<std::uint32_t>(info.result), 0});
    if (result == CUDA_SUCCESS) {
        call.process().graphs.book.updated(update.exec, reinterpret_cast<CUgraph>(graph));
    }
    return result;
}

namespace {

/// A launch of an exec comes after its newest one, whatever their streams; the driver cannot know
/// that where the exec was made again between them.
void await_last_launch(Call& call, const wire::cuGraphLaunch_call& launch) {
    const CUevent end = call.process().graphs.book.launches(launch.hGraph, launch.hStream);
    CUstream stream = nullptr;
    if (__builtin_expect(end != nullptr, 0)) {
        if (call.stream(launch.hStream, &stream) == CUDA_SUCCESS) {
            call.api().cuStreamWaitEvent(stream, end, 0);
        }
        call.api().cuEventDestroy_v2(end);
    }
}

/// A whole graph is one launch to the gate.
CUresult launch_graph(CallContext& context, const wire::cuGraphLaunch_call& launch,
                      std::span<const std::byte> trailing, Reply& reply) {
    Call& call = as_call(context);
    if (!call.process().graphs.captures.any()) {
        await_last_launch(call, launch);
    }
    LaunchGate& gate = call.process().launch_gate;
    CUstream stream = nullptr;
    const bool is_gated = !gate.is_open() && !call.process().graphs.captures.any() &&
                          call.stream(launch.hStream, &stream) == CUDA_SUCCESS;
    const EventPool::Event before = is_gated ? gate.launching(stream) : EventPool::Event{};
    const CUresult result = generated::on_cuGraphLaunch(context, launch, trailing, reply);
    if (is_gated) {
        gate.launched(stream, launch.hGraph, before);
    }
    return result;
}

}  // namespace

CUresult on_cuGraphLaunch(CallContext& context, const wire::cuGraphLaunch_call& launch,
                          std::span<const std::byte> trailing, Reply& reply) {
    GuestProcess& process = as_call(context).process();
    if (process.streams.event_times.keeps_any()) {
        for (const CUevent event : process.graphs.book.recorded_events(launch.hGraph)) {
            process.streams.event_times.forget(process.objects.handle_of(
                reinterpret_cast<std::uint64_t>(event), HandleKind::kEvent));
        }
    }
    if (!process.graphs.book.knows_memory()) {
        return launch_graph(context, launch, trailing, reply);
    }
    const auto exec = process.graphs.book.find(launch.hGraph);
    const bool frees_first =
        exec && (exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
    if (exec && !frees_first && !process.memory.device.may_allocate(exec->memory.allocates)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const CUresult result = launch_graph(context, launch, trailing, reply);
    if (result == CUDA_SUCCESS && exec) {
        process.memory.device.ran_in_graph(exec->memory.allocates, exec->memory.frees);
    }
    return result;
}

namespace served {

CUresult cuGraphClone(CallContext& context, CUgraph* made, CUgraph original) {
    Call& call = as_call(context);
    if (call.api().cuGraphClone == nullptr) {
        return call.unsupported(call.op());
    }
    const CUresult result = call.api().cuGraphClone(made, original);
    if (result == CUDA_SUCCESS) {
        call.process().graphs.book.note_memory(*made,
                                               call.process().graphs.book.memory_of(original));
        call.process().graphs.book.note_clone(original, *made);
    }
    return result;
}

CUresult cuGraphExecChildGraphNodeSetParams(CallContext& context, CUgraphExec exec,
                                            CUgraphNode node, CUgraph child) {
    Call& call = as_call(context);
    if (call.api().cuGraphExecChildGraphNodeSetParams == nullptr) {
        return call.unsupported(call.op());
    }
    const CUresult result = call.api().cuGraphExecChildGraphNodeSetParams(exec, node, child);
    if (result == CUDA_SUCCESS) {
        call.process().graphs.book.replaced_child(
            call.process().objects.handle_of(reinterpret_cast<std::uint64_t>(exec),
                                             HandleKind::kGraphExec),
            node, child);
    }
    return result;
}

}  // namespace served

}  // namespace gantry::worker
