// The state of the driver in this process: start-up, fork, exit, the sticky error, and what each
// thread has current. Created by cuInit, never destroyed (threads may outlive exit()).
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "host-daemon/softgpu/device.h"
#include "proto/cuda/abi.h"

namespace gantry::softgpu {

class Context;
class Stream;
class CaptureState;

struct Driver {
    std::vector<std::unique_ptr<Device>> devices;
};

/// cuInit's work; also makes the error permanent when it fails.
CUresult initialise();
/// 0 when calls may proceed: 3 before cuInit and in a forked child, 4 during exit.
CUresult check_ready();
/// 3 in a forked child, else 0: for calls that work before cuInit.
CUresult check_not_forked();
/// Only after check_ready() has answered 0.
Driver& driver();
Device* device_of(int ordinal);

/// The sticky error, or 0. Once set it stays until the process ends.
CUresult poison();
void set_poison(CUresult error, const std::string& text);

/// A sentence for a person: to stderr (unless GANTRY_SOFT_LOG=off) and to the extension's reader.
void report(const std::string& text);
/// Of what the program is told by a result, and of code by the JIT error log: only if
/// GANTRY_SOFT_LOG=refusals asks for it.
void report_refusal(const std::string& text);
void set_report_sink(void (*sink)(void* user, const char* text, std::size_t bytes), void* user);

/// What a thread has current. Lives until the thread ends; the main thread's is never freed.
struct ThreadState {
    std::vector<std::shared_ptr<Context>> stack;
    std::map<Context*, std::shared_ptr<Stream>> default_streams;
    bool in_host_callback = false;
    CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    /// Captures that this thread began and that are not ended (thread-local and global mode).
    int open_captures = 0;
};
ThreadState& thread_state();

/// The calling thread's current context with everything checked: ready, a context, no sticky
/// error, not in a host callback.
CUresult current_context(std::shared_ptr<Context>& context);
/// The same without the sticky error's check.
CUresult current_context_even_poisoned(std::shared_ptr<Context>& context);

/// Resolves a stream handle, the three default streams included, in the current context.
CUresult resolve_stream(const std::shared_ptr<Context>& context, CUstream handle,
                        std::shared_ptr<Stream>& stream);

}  // namespace gantry::softgpu

#define GANTRY_CU(expression)                                                       \
    do {                                                                            \
        if (const CUresult gantry_cu_ = (expression); gantry_cu_ != CUDA_SUCCESS) { \
            return gantry_cu_;                                                      \
        }                                                                           \
    } while (0)

/// Declares `name` as the current context, or returns the error.
#define GANTRY_CURRENT(name)                        \
    std::shared_ptr<gantry::softgpu::Context> name; \
    GANTRY_CU(gantry::softgpu::current_context(name))

/// Declares `name` as the stream behind a handle in `context`, or returns the error.
#define GANTRY_STREAM(name, context, handle)       \
    std::shared_ptr<gantry::softgpu::Stream> name; \
    GANTRY_CU(gantry::softgpu::resolve_stream(context, handle, name))
