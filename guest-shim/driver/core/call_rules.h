// What the guest does around the marshalling of a call: the rules that rows of the API table name
// (proto/cuda/driver_api, lines `check`, `answer`, `note` and `settle`). Generated code calls them
// with the call's own arguments, before these are checked: any pointer may be null.
//
// A `check` refuses the call, or lets it cross; it may put the device's name of an address in the
// place of the guest's. An `answer` is the call's result, and nothing crosses; without one it
// crosses. A `note` keeps what a call that succeeded has made, changed or ended. A `settle` sees
// every result and may change it. Each stands in the file of its area. Threads: any.
#pragma once

#include <cstdint>

#include "guest-shim/driver/core/objects.h"
#include "proto/cuda/abi.h"

namespace gantry::shim::rules {

/// The result of a call that the guest answers, or none.
class Answer {
public:
    constexpr Answer() noexcept = default;
    constexpr Answer(CUresult result) noexcept : result_(result), is_given_(true) {}

    explicit operator bool() const noexcept { return is_given_; }
    CUresult operator*() const noexcept { return result_; }

private:
    CUresult result_ = CUDA_SUCCESS;
    bool is_given_ = false;
};

// ---- contexts (context/context.cc)
void note_context_flags(unsigned flags) noexcept;
void note_cache_config(CUfunc_cache config) noexcept;
/// From now on limits are the host's to tell.
CUresult limits_change() noexcept;
Answer unchanged_limit(std::size_t* value, CUlimit limit) noexcept;

// ---- streams and events (stream/event.cc, stream/capture.cc, memory/stream_memory.cc)
/// What another process may see is done before it is answered.
CUresult shared_event(CUresult posted, CUevent event) noexcept;
Answer nothing_captures(CUstream stream, CUstreamCaptureStatus* status) noexcept;
/// A value of `bytes` bytes that a stream writes or waits for.
CUresult stream_value(CUstream stream, CUdeviceptr* address, std::uint64_t bytes) noexcept;

// ---- memory (memory/memset.cc, memory.cc, vmm.cc, pool.cc, ipc.cc)
/// Answers what is wrong or empty. `width` in elements.
Answer fill_rows(CUstream stream, CUdeviceptr* address, std::uint64_t pitch, std::uint64_t width,
                 std::uint64_t height, std::uint64_t element_bytes) noexcept;
CUresult wants_memory(CUdeviceptr* address, std::size_t bytes) noexcept;
void memory_allocated(CUdeviceptr address, std::size_t bytes) noexcept;
void range_reserved(CUdeviceptr address, std::size_t bytes) noexcept;
void range_freed(CUdeviceptr address) noexcept;
void range_mapped(CUdeviceptr address, std::size_t bytes) noexcept;
void range_unmapped(CUdeviceptr address, std::size_t bytes) noexcept;
void pool_chosen(CUdevice device, CUmemoryPool pool) noexcept;
void pool_ended(CUmemoryPool pool) noexcept;
/// Memory or an event that other processes may have; the address becomes its range's first.
CUresult may_give(CUdeviceptr* address) noexcept;
CUresult may_give(CUevent event) noexcept;
void memory_given() noexcept;
void event_given(CUevent event) noexcept;
void memory_opened(CUdeviceptr address, const CUipcMemHandle_v1& handle) noexcept;

// ---- code (code/link.cc)
CUresult live_link(CUlinkState state) noexcept;
/// It is gone, whatever the host says.
CUresult link_ended(CUresult result, CUlinkState state) noexcept;

// ---- graphs (graph/graph_node.cc, graph/graph.cc)
/// Nodes that device code updates are refused, as launches of such are: a kernel node is none.
Answer updatable_node(CUgraphNode node, CUkernelNodeAttrID attribute,
                      CUkernelNodeAttrValue_v1* value) noexcept;
Answer updatable_node(CUgraphNode node, CUkernelNodeAttrID attribute,
                      const CUkernelNodeAttrValue_v1* value) noexcept;
Answer known_node_type(CUgraphNode node, CUgraphNodeType* type) noexcept;
void graph_ended(CUgraph graph) noexcept;
void exec_ended(CUgraphExec exec) noexcept;
void child_graph_named(CUgraph graph) noexcept;
/// `heir` runs what `owner` runs: its staged copies too (memory/graph_copy.cc).
void copies_go_on(CUgraph heir, CUgraph owner) noexcept;
void copies_go_on(CUgraphExec heir, CUgraph owner) noexcept;

}  // namespace gantry::shim::rules
