// What each thread has current: its contexts, its default streams, its place in captures.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "host-daemon/softgpu/core/context.h"
#include "host-daemon/softgpu/core/errors.h"
#include "proto/cuda/abi.h"

namespace gantry::softgpu {

/// Lives until the thread ends; the main thread's is never freed.
struct ThreadState {
    std::vector<std::shared_ptr<Context>> stack;
    std::map<Context*, std::shared_ptr<Stream>> default_streams;
    bool in_host_callback = false;
    CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
};
ThreadState& thread_state();

/// What is done with a thread's state when it ends, before the state is freed.
void set_thread_end(void (*at_end)(ThreadState& state));

/// The calling thread's current context with everything checked: ready, a context, no sticky
/// error, not in a host callback.
CUresult current_context(std::shared_ptr<Context>& context);
/// The same without the sticky error's check.
CUresult current_context_even_poisoned(std::shared_ptr<Context>& context);

}  // namespace gantry::softgpu

/// Declares `name` as the current context, or returns the error.
#define GANTRY_CURRENT(name)                        \
    std::shared_ptr<gantry::softgpu::Context> name; \
    GANTRY_CU(gantry::softgpu::current_context(name))
