// Memory of graph allocation nodes: its address is fixed when the node is added, its bytes exist
// as long as the graph, an exec of it, or an allocation not yet freed needs them.
#pragma once

#include <cstdint>
#include <memory>

#include "host-daemon/softgpu/streams/operation.h"

namespace gantry::softgpu {

class GraphAllocation {
public:
    static CUresult create(Context& context, std::uint64_t bytes,
                           std::shared_ptr<GraphAllocation>& allocation);
    ~GraphAllocation();
    const std::uint64_t address;
    const std::uint64_t bytes;
    const int device;

private:
    GraphAllocation(std::uint64_t address_in, std::uint64_t bytes_in, int device_in)
        : address(address_in), bytes(bytes_in), device(device_in) {}
};

struct AllocOperation final : Operation {
    AllocOperation() : Operation(CU_GRAPH_NODE_TYPE_MEM_ALLOC) {}
    void run() const override;  ///< Makes the allocation live.
    CUDA_MEM_ALLOC_NODE_PARAMS params{};
    std::vector<CUmemAccessDesc> access;
    std::shared_ptr<GraphAllocation> allocation;
};

struct FreeOperation final : Operation {
    FreeOperation() : Operation(CU_GRAPH_NODE_TYPE_MEM_FREE) {}
    void run() const override;
    CUdeviceptr address = 0;
};

/// cuMemFree(Async) of a graph's allocation: true when the address was one.
bool free_graph_allocation(std::uint64_t address);
bool is_graph_allocation(std::uint64_t address);

struct GraphMemoryUse {
    std::uint64_t used = 0;
    std::uint64_t used_high = 0;
    std::uint64_t reserved = 0;
    std::uint64_t reserved_high = 0;
};
GraphMemoryUse graph_memory_use(int device);
void reset_graph_memory_high(int device, bool used);

}  // namespace gantry::softgpu
