// Memory nodes. Their memory comes from the arena, at a fixed address for as long as there are
// graphs; the driver sees empty nodes in their place (objects/cuda_graph_book.h).
#include "host-daemon/execution/calls/graph_calls.h"

#include <map>
#include <set>

namespace gantry::worker {
namespace {

void note(Call& call, CUgraph graph, std::uint64_t address, bool frees) {
    GraphMemory memory;
    (frees ? memory.frees : memory.allocates).insert(address);
    call.process().graphs.book.note_memory(graph, memory);
}

void give_back(Call& call, std::uint64_t address) {
    call.process().memory.device.free_later(DeviceVa{address}, std::nullopt);
    call.process().schedule_reap();
}

/// Allocated outside the graph, or by one; and not freed by this one already.
bool may_free(Call& call, CUgraph graph, std::uint64_t address) {
    const auto allocation = call.process().memory.device.find(DeviceVa{address});
    return allocation && allocation->address.value == address &&
           !call.process().graphs.book.memory_of(graph).frees.contains(address);
}

CUresult dependencies_of(Call& call, CUgraphNode node, std::vector<CUgraphNode>* out) {
    const driver::DriverApi& api = call.api();
    const auto list = [&](CUgraphNode* nodes, std::size_t* count) {
        if (api.cuGraphNodeGetDependencies_v2 != nullptr) {
            std::vector<CUgraphEdgeData> edges(nodes != nullptr ? *count : 0);
            return api.cuGraphNodeGetDependencies_v2(
                node, nodes, nodes != nullptr ? edges.data() : nullptr, count);
        }
        return api.cuGraphNodeGetDependencies != nullptr
                   ? api.cuGraphNodeGetDependencies(node, nodes, count)
                   : CUDA_ERROR_NOT_SUPPORTED;
    };
    std::size_t count = 0;
    CUresult result = list(nullptr, &count);
    out->resize(count);
    if (result == CUDA_SUCCESS && count != 0) {
        result = list(out->data(), &count);
    }
    return result;
}

/// What the graph has allocated and freed before these nodes: as natively, its address is used
/// again for as many bytes. 0: none.
std::uint64_t address_freed_before(Call& call, CUgraph graph, const std::vector<CUgraphNode>& nodes,
                                   std::uint64_t bytes) {
    std::map<CUgraphNode, std::uint64_t> candidates;
    for (const auto& [address, node] : call.process().graphs.book.freed_in(graph)) {
        const auto allocation = call.process().memory.device.find(DeviceVa{address});
        if (allocation && allocation->bytes == bytes) {
            candidates.emplace(node, address);
        }
    }
    if (candidates.empty()) {
        return 0;
    }
    std::vector<CUgraphNode> open = nodes;
    std::set<CUgraphNode> seen(open.begin(), open.end());
    while (!open.empty()) {
        const CUgraphNode node = open.back();
        open.pop_back();
        if (const auto found = candidates.find(node); found != candidates.end()) {
            return found->second;
        }
        std::vector<CUgraphNode> before;
        if (dependencies_of(call, node, &before) != CUDA_SUCCESS) {
            return 0;
        }
        for (const CUgraphNode earlier : before) {
            if (seen.insert(earlier).second) {
                open.push_back(earlier);
            }
        }
    }
    return 0;
}

/// The address that a new memory node may use again, if any.
CUresult find_freed(Call& call, const wire::cuGraphAddMemAllocNode_call& node,
                    std::span<const std::byte> trailing, std::uint64_t* address) {
    CUgraph graph = nullptr;
    std::vector<CUgraphNode> needs;
    CUresult result = need(call, node.graph, HandleKind::kGraph, &graph);
    if (result == CUDA_SUCCESS) {
        result = read_dependencies(call, node.dependency_count, trailing, &needs);
    }
    if (result == CUDA_SUCCESS) {
        *address = address_freed_before(call, graph, needs, node.bytes);
    }
    return result;
}

}  // namespace

CUresult allocate_in_capture(Call& call, std::uint64_t bytes, std::uint64_t stream,
                             std::uint64_t* address) {
    CUresult result = allocate_memory(call, bytes, address);
    if (result != CUDA_SUCCESS || call.is_deferred()) {
        return result;
    }
    result = add_to_capture(
        call, stream,
        [&](CUgraphNode* made, CUgraph graph, const CUgraphNode* needs, std::size_t count) {
            const CUresult added = call.api().cuGraphAddEmptyNode(made, graph, needs, count);
            if (added == CUDA_SUCCESS) {
                call.process().memory.device.keep_for_graphs(DeviceVa{*address}, false);
                note(call, graph, *address, false);
            }
            return added;
        });
    if (result != CUDA_SUCCESS) {
        give_back(call, *address);
    }
    return result;
}

CUresult free_in_capture(Call& call, std::uint64_t address, std::uint64_t stream) {
    return add_to_capture(
        call, stream,
        [&](CUgraphNode* made, CUgraph graph, const CUgraphNode* needs, std::size_t count) {
            if (!may_free(call, graph, address)) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            const CUresult added = call.api().cuGraphAddEmptyNode(made, graph, needs, count);
            if (added == CUDA_SUCCESS) {
                call.process().memory.device.keep_for_graphs(DeviceVa{address}, true);
                note(call, graph, address, true);
            }
            return added;
        });
}

CUresult on_cuGraphAddMemAllocNode(CallContext& context,
                                   const wire::cuGraphAddMemAllocNode_call& node,
                                   std::span<const std::byte> trailing, Reply& reply) {
    Call& call = as_call(context);
    wire::cuGraphAddMemAllocNode_reply answer{};
    CUresult result = find_freed(call, node, trailing, &answer.address);
    const bool is_new = result == CUDA_SUCCESS && answer.address == 0;
    if (is_new) {
        result = allocate_memory(call, node.bytes, &answer.address);
    }
    if (result != CUDA_SUCCESS || (is_new && call.is_deferred())) {
        return result;
    }
    result = add_node(call, node, trailing,
                      [&](CUgraphNode* made, CUgraph graph, const auto& dependencies,
                          std::span<const std::byte>) {
                          const CUresult added = call.api().cuGraphAddEmptyNode(
                              made, graph, dependencies.data(), dependencies.size());
                          if (added == CUDA_SUCCESS && is_new) {
                              call.process().memory.device.keep_for_graphs(DeviceVa{answer.address},
                                                                           false);
                              note(call, graph, answer.address, false);
                          } else if (added == CUDA_SUCCESS) {
                              call.process().graphs.book.allocates_again(graph, answer.address);
                          }
                          return added;
                      });
    if (result != CUDA_SUCCESS && is_new) {
        give_back(call, answer.address);
        return result;
    }
    reply.put(answer);
    return result;
}

CUresult on_cuGraphAddMemFreeNode(CallContext& context,
                                  const wire::cuGraphAddMemFreeNode_call& node,
                                  std::span<const std::byte> trailing, Reply&) {
    Call& call = as_call(context);
    return add_node(call, node, trailing,
                    [&](CUgraphNode* made, CUgraph graph, const auto& dependencies,
                        std::span<const std::byte>) {
                        if (!may_free(call, graph, node.address)) {
                            return CUDA_ERROR_INVALID_VALUE;
                        }
                        const CUresult added = call.api().cuGraphAddEmptyNode(
                            made, graph, dependencies.data(), dependencies.size());
                        if (added == CUDA_SUCCESS) {
                            call.process().memory.device.keep_for_graphs(DeviceVa{node.address},
                                                                         true);
                            note(call, graph, node.address, true);
                            call.process().graphs.book.note_free_node(graph, node.address, *made);
                        }
                        return added;
                    });
}

namespace served {

CUresult cuDeviceGetGraphMemAttribute(CallContext& context, CUdevice device,
                                      CUgraphMem_attribute attribute, void* value) {
    if (device != 0) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    const DeviceMemory::GraphUse use = as_call(context).process().memory.device.graph_use();
    auto* const out = static_cast<std::uint64_t*>(value);
    switch (attribute) {
        case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: *out = use.used; break;
        case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: *out = use.used_high; break;
        case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: *out = use.reserved; break;
        case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: *out = use.reserved_high; break;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult cuDeviceSetGraphMemAttribute(CallContext& context, CUdevice device,
                                      CUgraphMem_attribute attribute, void* value) {
    if (device != 0) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    // High marks can be reset, and nothing else.
    if (*static_cast<const std::uint64_t*>(value) != 0 ||
        (attribute != CU_GRAPH_MEM_ATTR_USED_MEM_HIGH &&
         attribute != CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    as_call(context).process().memory.device.reset_graph_use_high(attribute ==
                                                                  CU_GRAPH_MEM_ATTR_USED_MEM_HIGH);
    return CUDA_SUCCESS;
}

CUresult cuGraphAddChildGraphNode(CallContext& context, CUgraphNode* made, CUgraph graph,
                                  const CUgraphNode* dependencies, std::size_t count,
                                  CUgraph child) {
    Call& call = as_call(context);
    if (call.api().cuGraphAddChildGraphNode == nullptr) {
        return call.unsupported(call.op());
    }
    const CUresult result =
        call.api().cuGraphAddChildGraphNode(made, graph, dependencies, count, child);
    CudaGraphBook& graphs = call.process().graphs.book;
    if (result == CUDA_SUCCESS) {
        call.process().graphs.user_objects.note_clone(child, graph);
    }
    if (result == CUDA_SUCCESS && graphs.knows_memory()) {
        graphs.note_memory(graph, graphs.memory_of(child));
    }
    return result;
}

}  // namespace served

}  // namespace gantry::worker
