// What the handlers of graph nodes share: handles in a command as the driver's, and the books about
// nodes that were made or changed.
#pragma once

#include "host-daemon/execution/dispatch/handlers.h"
#include "proto/cuda/gen/worker_dispatch.h"
#include "proto/cuda/wire_hand.h"

namespace gantry::worker {

inline CUresult read_dependencies(Call& call, std::uint64_t count,
                                  std::span<const std::byte>& trailing,
                                  std::vector<CUgraphNode>* out) {
    const auto handles = Call::read_array<std::uint64_t>(trailing, count);
    if (!handles) {
        return call.malformed(call.op(), "dependencies longer than the command");
    }
    for (const std::uint64_t handle : *handles) {
        out->push_back(
            call.process().objects.native_as<CUgraphNode>(handle, HandleKind::kGraphNode));
        if (out->back() == nullptr) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
    }
    return CUDA_SUCCESS;
}

template <typename Handle>
CUresult need(Call& call, std::uint64_t handle, HandleKind kind, Handle* out) {
    *out = call.process().objects.native_as<Handle>(handle, kind);
    return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

inline CUresult need_in_exec(Call& call, std::uint64_t exec_handle, std::uint64_t node_handle,
                             CUgraphExec* exec, CUgraphNode* node) {
    std::uint64_t native = 0;
    CUresult result = call.resolve(HandleKind::kGraphExec, exec_handle, &native);
    *exec = reinterpret_cast<CUgraphExec>(native);
    if (result == CUDA_SUCCESS) {
        result = call.resolve(HandleKind::kGraphNode, node_handle, &native);
        *node = reinterpret_cast<CUgraphNode>(native);
    }
    return result;
}

/// Handles that the guest offers for nodes without a name.
struct NewNames {
    std::uint64_t first = 0;
    std::uint64_t count = 0;
    std::uint64_t used = 0;
};

/// Handles of native nodes; such as a capture made get theirs from what the guest offers.
inline CUresult name_nodes(Call& call, std::uint64_t owner, std::span<const CUgraphNode> nodes,
                           NewNames* names, std::vector<std::uint64_t>* out) {
    ObjectTable& objects = call.process().objects;
    for (const CUgraphNode node : nodes) {
        const auto native = reinterpret_cast<std::uint64_t>(node);
        std::uint64_t handle = objects.handle_of(native, HandleKind::kGraphNode);
        if (handle == 0) {
            if (names->used >= names->count) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            handle = names->first + names->used++ * cuda::kHandleStep;
            if (call.reserve(HandleKind::kGraphNode, handle) != CUDA_SUCCESS ||
                call.add_object(handle, native, owner) != CUDA_SUCCESS) {
                return CUDA_ERROR_INVALID_HANDLE;
            }
        }
        out->push_back(handle);
    }
    return CUDA_SUCCESS;
}

/// A copy of an exec whose change the driver has refused, because one of its ends would be memory
/// of another kind: see calls/graph_again.cc. CUDA_ERROR_INVALID_VALUE when that is not why.
CUresult set_copy_again(Call& call, std::uint64_t exec, CUgraphNode native,
                        const CUDA_MEMCPY3D_v2& wanted);

inline void note_configured(Call& call, HandleKind kind, std::uint64_t handle,
                            std::span<const std::byte> trailing) {
    call.configured(kind, handle, Recipe{call.op(), call.args(), trailing});
}

/// A host node that runs `function(user_data)` in the guest. The callback lives as long as the
/// process: instances of the graph may outlive the node.
inline CUDA_HOST_NODE_PARAMS_v1 host_node(Call& call, std::uint64_t function,
                                          std::uint64_t user_data,
                                          gantry::wire::CallbackKind kind) {
    gantry::wire::CallbackReply reply{};
    reply.function = function;
    reply.user_data = user_data;
    reply.kind = kind;
    return {[](void* callback) { CallbackBroker::run(callback, CUDA_SUCCESS); },
            call.process().channel.callbacks.add_repeating(reply)};
}

/// Runs `add` with the graph and the dependencies, and notes the new node.
template <typename NodeCall, typename Add>
CUresult add_node(Call& call, const NodeCall& node, std::span<const std::byte> trailing, Add add) {
    CUgraph graph = nullptr;
    std::vector<CUgraphNode> dependencies;
    CUresult result = need(call, node.graph, HandleKind::kGraph, &graph);
    if (result == CUDA_SUCCESS) {
        result = call.reserve(HandleKind::kGraphNode, node.node);
    }
    if (result == CUDA_SUCCESS) {
        result = read_dependencies(call, node.dependency_count, trailing, &dependencies);
    }
    CUgraphNode made = nullptr;
    if (result == CUDA_SUCCESS) {
        result = add(&made, graph, dependencies, trailing);
    }
    return result == CUDA_SUCCESS
               ? call.add_object(node.node, reinterpret_cast<std::uint64_t>(made), node.graph)
               : result;
}

/// Runs `add(&made, graph, dependencies, count)` where a stream's capture has come to, and lets the
/// capture go on behind the new node.
template <typename Add>
CUresult add_to_capture(Call& call, std::uint64_t stream_handle, Add add) {
    const driver::DriverApi& api = call.api();
    CUstream stream = nullptr;
    if (const CUresult result = call.stream(stream_handle, &stream); result != CUDA_SUCCESS) {
        return result;
    }
    auto status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUgraph graph = nullptr;
    const CUgraphNode* tips = nullptr;
    const CUgraphEdgeData* edges = nullptr;
    std::size_t count = 0;
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;
    if (api.cuStreamGetCaptureInfo_v3 != nullptr &&
        api.cuStreamUpdateCaptureDependencies_v2 != nullptr) {
        result =
            api.cuStreamGetCaptureInfo_v3(stream, &status, nullptr, &graph, &tips, &edges, &count);
    } else if (api.cuStreamGetCaptureInfo_v2 != nullptr &&
               api.cuStreamUpdateCaptureDependencies != nullptr) {
        result = api.cuStreamGetCaptureInfo_v2(stream, &status, nullptr, &graph, &tips, &count);
    } else {
        return call.unsupported(call.op());
    }
    if (result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        return status == CU_STREAM_CAPTURE_STATUS_INVALIDATED
                   ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                   : CUDA_ERROR_ILLEGAL_STATE;
    }
    // The driver's arrays are good until its next call about this stream.
    const std::vector<CUgraphNode> dependencies(tips, tips + count);
    CUgraphNode made = nullptr;
    if (result == CUDA_SUCCESS) {
        result = add(&made, graph, dependencies.data(), dependencies.size());
    }
    if (result == CUDA_SUCCESS) {
        result = api.cuStreamUpdateCaptureDependencies_v2 != nullptr
                     ? api.cuStreamUpdateCaptureDependencies_v2(stream, &made, nullptr, 1,
                                                                CU_STREAM_SET_CAPTURE_DEPENDENCIES)
                     : api.cuStreamUpdateCaptureDependencies(stream, &made, 1,
                                                             CU_STREAM_SET_CAPTURE_DEPENDENCIES);
    }
    return result;
}

}  // namespace gantry::worker
