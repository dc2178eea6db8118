// Nodes of executable graphs that change to memory of another kind.
//
// To the driver mapped memory, which is what all of the guest's allocations are, has no context; a
// module's variables and page-locked memory have one. It lets no copy or memset of an exec change
// from one kind to the other (CUDA_ERROR_INVALID_VALUE; seen with driver 580.159 on an H200). The
// guest would see one kind, and JAX does change them. So the exec is instantiated again from its
// clone, in which that node is changed, and gets all its other changes again; with conditional
// nodes, where there is no clone, from the guest's own graph, which is as before afterwards.
#include <cstring>
#include <optional>
#include <utility>

#include "host-daemon/execution/calls/graph_calls.h"
#include "host-daemon/execution/calls/native_copy.h"
#include "host-daemon/execution/dispatch/run_call.h"

namespace gantry::worker {
namespace {

bool has_context(Call& call, std::uint64_t address) {
    CUcontext context = nullptr;
    const driver::DriverApi& api = call.api();
    return api.cuPointerGetAttribute != nullptr &&
           api.cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, address) ==
               CUDA_SUCCESS &&
           context != nullptr;
}

bool is_of_other_kind(Call& call, std::uint64_t now, std::uint64_t wanted) {
    return has_context(call, now) != has_context(call, wanted);
}

bool is_line(const CUDA_MEMCPY3D_v2& copy) {
    return copy.srcArray == nullptr && copy.dstArray == nullptr && copy.Height <= 1 &&
           copy.Depth <= 1;
}

/// The newest launch of the old exec ends before the new one's first begins.
CUevent end_of_last_launch(Call& call, std::uint64_t exec) {
    const driver::DriverApi& api = call.api();
    const auto last = call.process().graphs.book.last_launch(exec);
    CUstream stream = nullptr;
    CUevent end = nullptr;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!last || call.stream(*last, &stream) != CUDA_SUCCESS ||
        api.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
        status != CU_STREAM_CAPTURE_STATUS_NONE ||
        api.cuEventCreate(&end, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
        return nullptr;
    }
    api.cuEventRecord(end, stream);
    return end;
}

CUresult change_again(Call& call, CUgraphExec made, const CudaGraphBook::Exec& exec) {
    CudaGraphBook& book = call.process().graphs.book;
    for (const auto& [node, child] : exec.children) {
        const CUresult result = call.api().cuGraphExecChildGraphNodeSetParams(made, node, child);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    const CUgraphNode outer = std::exchange(book.restored_node, nullptr);
    CUresult result = CUDA_SUCCESS;
    for (const auto& [key, command] : exec.changes) {
        book.restored_node = key.second;
        result = replay(call.process(), command);
        if (result != CUDA_SUCCESS) {
            break;
        }
    }
    book.restored_node = outer;
    const CUresult entered = call.process().contexts.enter(call.header().context);
    return result == CUDA_SUCCESS ? entered : result;
}

/// What an exec is made from again, and the node in it.
struct Origin {
    CudaGraphBook::Exec exec;
    CUgraph graph = nullptr;
    CUgraphNode node = nullptr;
    bool is_guests = false;  ///< Conditional nodes: no clone, and one exec at a time.
};

std::optional<Origin> origin_of(Call& call, std::uint64_t handle, CUgraphNode native) {
    CudaGraphBook& book = call.process().graphs.book;
    auto exec = book.find(handle);
    if (!exec || exec->updated_from != nullptr) {
        return std::nullopt;
    }
    Origin origin{std::move(*exec)};
    if (origin.exec.described != nullptr) {
        origin.graph =
            call.process().objects.native_as<CUgraph>(origin.exec.source, HandleKind::kGraph);
        origin.node = native;
        origin.is_guests = true;
    } else {
        origin.graph = origin.exec.made_from;
        origin.node = book.in_clone(handle, native);
    }
    return origin.graph != nullptr && origin.node != nullptr ? std::optional(origin) : std::nullopt;
}

/// The arguments of the newest change of this kind to the node; none: it is as in its graph.
template <typename Arguments>
std::optional<Arguments> newest_change(const Origin& origin, cuda::Op op) {
    Arguments arguments;
    const auto change = origin.exec.changes.find({static_cast<std::uint16_t>(op), origin.node});
    if (change == origin.exec.changes.end() || change->second.args.size() < sizeof(arguments)) {
        return std::nullopt;
    }
    std::memcpy(&arguments, change->second.args.data(), sizeof(arguments));
    return arguments;
}

CUresult instantiate(Call& call, const Origin& origin, CUevent after, CUgraphExec* made) {
    const driver::DriverApi& api = call.api();
    CUresult result = api.cuGraphInstantiateWithFlags(made, origin.graph, origin.exec.flags);
    if (result != CUDA_SUCCESS && origin.is_guests && after != nullptr) {
        api.cuEventSynchronize(after);  // The one before may count as long as it runs.
        result = api.cuGraphInstantiateWithFlags(made, origin.graph, origin.exec.flags);
    }
    return result;
}

/// Puts an exec that is made from `origin`, whose node is as `set` makes it, in the place of the
/// one that the guest has. When it fails the guest's is as before, or, with conditional nodes, gone
/// if it cannot be made a second time either.
template <typename Set, typename Reset>
CUresult instantiate_again(Call& call, std::uint64_t handle, const Origin& origin, Set set,
                           Reset reset) {
    const driver::DriverApi& api = call.api();
    CudaGraphBook& book = call.process().graphs.book;
    ObjectTable& objects = call.process().objects;
    CudaGraphBook::Exec others = origin.exec;
    others.changes.erase({static_cast<std::uint16_t>(call.op()), origin.node});
    const std::uint64_t old = objects.native(handle, HandleKind::kGraphExec);
    CUresult result = set();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const CUevent after = end_of_last_launch(call, handle);
    const auto make = [&](const CudaGraphBook::Exec& changes) {
        CUgraphExec made = nullptr;
        CUresult status = instantiate(call, origin, after, &made);
        if (status == CUDA_SUCCESS) {
            objects.set_native(handle, reinterpret_cast<std::uint64_t>(made));
            status = change_again(call, made, changes);
            if (status != CUDA_SUCCESS) {
                api.cuGraphExecDestroy(made);
                objects.set_native(handle, origin.is_guests ? 0 : old);
            }
        }
        return status;
    };
    if (origin.is_guests) {
        api.cuGraphExecDestroy(reinterpret_cast<CUgraphExec>(old));
        objects.set_native(handle, 0);
    }
    result = make(others);
    if (result != CUDA_SUCCESS || origin.is_guests) {
        reset();  // The guest's graph is the guest's; the clone says what its exec is made from.
    }
    if (result != CUDA_SUCCESS && !origin.is_guests) {
        if (after != nullptr) {
            api.cuEventDestroy_v2(after);
        }
        return result;
    }
    if (result != CUDA_SUCCESS) {
        make(origin.exec);
    } else if (!origin.is_guests) {
        api.cuGraphExecDestroy(reinterpret_cast<CUgraphExec>(old));
    }
    book.made_again(handle, after);
    return result;
}

}  // namespace

CUresult set_copy_again(Call& call, std::uint64_t exec, CUgraphNode native,
                        const CUDA_MEMCPY3D_v2& wanted) {
    const driver::DriverApi& api = call.api();
    const auto origin = origin_of(call, exec, native);
    CUDA_MEMCPY3D_v2 before{};
    if (!origin || api.cuGraphMemcpyNodeGetParams(origin->node, &before) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUDA_MEMCPY3D_v2 now = before;
    const auto changed = newest_change<wire::cuGraphExecMemcpyNodeSetParams_call>(
        *origin, cuda::Op::cuGraphExecMemcpyNodeSetParams);
    if (changed && to_native_copy(call, changed->copy, &now) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!is_line(now) || !is_line(wanted) ||
        (!is_of_other_kind(call, now.srcDevice, wanted.srcDevice) &&
         !is_of_other_kind(call, now.dstDevice, wanted.dstDevice))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return instantiate_again(
        call, exec, *origin, [&] { return api.cuGraphMemcpyNodeSetParams(origin->node, &wanted); },
        [&] { api.cuGraphMemcpyNodeSetParams(origin->node, &before); });
}

CUresult on_cuGraphExecMemsetNodeSetParams(CallContext& context,
                                           const wire::cuGraphExecMemsetNodeSetParams_call& wanted,
                                           std::span<const std::byte> trailing, Reply& reply) {
    CUresult result =
        generated::on_cuGraphExecMemsetNodeSetParams(context, wanted, trailing, reply);
    Call& call = as_call(context);
    CUgraphExec exec = nullptr;
    CUgraphNode native = nullptr;
    if (result != CUDA_ERROR_INVALID_VALUE ||
        need_in_exec(call, wanted.hGraphExec, wanted.hNode, &exec, &native) != CUDA_SUCCESS) {
        return result;
    }
    const driver::DriverApi& api = call.api();
    const auto origin = origin_of(call, wanted.hGraphExec, native);
    CUDA_MEMSET_NODE_PARAMS_v1 before{};
    if (!origin || api.cuGraphMemsetNodeGetParams(origin->node, &before) != CUDA_SUCCESS) {
        return result;
    }
    const auto changed = newest_change<wire::cuGraphExecMemsetNodeSetParams_call>(
        *origin, cuda::Op::cuGraphExecMemsetNodeSetParams);
    const CUdeviceptr now = changed ? changed->memsetParams.dst : before.dst;
    if (!is_of_other_kind(call, now, wanted.memsetParams.dst)) {
        return result;
    }
    result = instantiate_again(
        call, wanted.hGraphExec, *origin,
        [&] { return api.cuGraphMemsetNodeSetParams(origin->node, &wanted.memsetParams); },
        [&] { api.cuGraphMemsetNodeSetParams(origin->node, &before); });
    if (result == CUDA_SUCCESS) {
        note_configured(call, HandleKind::kGraphExec, wanted.hGraphExec, trailing);
    }
    return result;
}

}  // namespace gantry::worker
