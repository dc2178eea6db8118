// Allocation of every kind of CUDA memory, and its end. Shared by the API, pools, graphs, arrays.
// Threads: any. The context given owns the memory: it goes when the context is reset.
#pragma once

#include <cstdint>
#include <memory>

#include "host-daemon/softgpu/core/context.h"
#include "host-daemon/softgpu/memory/map.h"

namespace gantry::softgpu {

/// Device-side memory of kind kDevice, kManaged, kPooled or kDriver.
CUresult allocate_device(Context& context, MemoryKind kind, std::uint64_t bytes, unsigned flags,
                         std::shared_ptr<void> owner, std::uint64_t& address);
/// Gives back what allocate_device returned. CUDA_ERROR_INVALID_VALUE when there is none.
CUresult free_device(std::uint64_t address, MemoryKind kind);

/// Page-locked host memory.
CUresult allocate_pinned(Context& context, std::uint64_t bytes, unsigned flags, void** pointer);
CUresult free_pinned(void* pointer);

/// Everything that the context allocated and still has.
void free_all_of(const Context& context);

}  // namespace gantry::softgpu
