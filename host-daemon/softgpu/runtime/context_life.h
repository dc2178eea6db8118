// How a context starts and ends: what every layer does for it, in order.
// Threads: start_context() before the context is shown to anybody; reset_context() any thread.
#pragma once

#include "host-daemon/softgpu/core/context.h"

namespace gantry::softgpu {

/// Makes the legacy stream of a context that has its handle.
void start_context(Context& context);
/// Ends all work, frees what the context owns. For a primary context: back to inactive.
void reset_context(Context& context);

}  // namespace gantry::softgpu
