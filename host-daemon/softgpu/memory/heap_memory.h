// Device memory for the heap of malloc() and free() in kernels. Thread-safe.
#pragma once

#include <cstdint>

#include "host-daemon/softgpu/core/context.h"

namespace gantry::softgpu {

/// Makes the context's heap if there is none; false when memory is short.
bool ensure_heap(Context& context, std::uint64_t bytes);
/// Makes the heap at an address (restore). False when it cannot lie there or lies elsewhere.
bool ensure_heap_at(Context& context, DeviceHeap::Range wanted);
void release_heap(Context& context);

}  // namespace gantry::softgpu
