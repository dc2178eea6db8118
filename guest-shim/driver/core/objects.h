// What the guest keeps of each object, so that queries and checks need no host.
#pragma once

#include <atomic>
#include <cstdint>

#include "guest-shim/driver/core/captures.h"
#include "guest-shim/driver/core/slot_table.h"
#include "guest-shim/session/session.h"
#include "proto/cuda/abi.h"
#include "proto/cuda/wire_hand.h"
#include "proto/wire/control_ops.h"

namespace gantry::shim {

using cuda::HandleKind;

inline constexpr int kMaxDevices = 16;

// ---- contexts (context.cc) ----------------------------------------------------------------------

struct Context {
    std::uint64_t handle;
    std::uint64_t id;
    int device;
    std::uint32_t flags;
    std::uint32_t references;  ///< Primary: retains. Others: 1 while alive (plus cuCtxAttach).
    bool primary;
    std::atomic<bool> active;  ///< The host has it.
    CUfunc_cache cache_config;
    CUsharedconfig shared_config;
};

/// The context behind a handle, primary ones also while they are not active; null for garbage.
Context* find_context(std::uint64_t handle) noexcept;
Context* current() noexcept;
Context* primary_context(int device) noexcept;
/// Device of the current context, or 0 without one.
int current_device() noexcept;

// ---- code (module.cc, kernel.cc) ---------------------------------------------------------------

struct Kernel {
    std::uint64_t handle;
    std::uint64_t owner;  ///< Module or library.
    std::uint64_t twin;   ///< The CUfunction of a CUkernel, once asked for; else 0.
    std::uint64_t next;   ///< Next kernel of the same owner. Changed with the owner's mutex.
    char* name;
    cuda::wire_hand::KernelParam* params;
    std::uint32_t param_count;
    std::uint32_t param_bytes;
    bool layout_known;
    bool has_padding;
    bool shares_parts;  ///< A twin: name and params belong to the kernel.
    std::int32_t attributes[cuda::wire_hand::kFunctionAttributeCount];
    std::uint32_t attribute_status[cuda::wire_hand::kFunctionAttributeCount];
    /// The most dynamic shared memory that the driver has granted so far: less is granted too.
    std::int32_t granted_dynamic_bytes;
    /// Two launches, by what was wanted of them, that the driver accepted (launch_attributes.cc).
    std::uint64_t accepted[2];
};

struct Module {
    std::uint64_t handle;
    std::uint64_t context;  ///< For a module that was loaded as one; else 0.
    std::uint64_t library;  ///< For the module of a library; else 0.
    session::FutexMutex* mutex;
    /// For a library: its module handle once asked for.
    std::uint64_t module GANTRY_GUARDED_BY(*mutex);
    std::uint64_t first_kernel GANTRY_GUARDED_BY(*mutex);
    void* managed;  ///< Pool extent of its managed variables, or null.
};

extern SlotTable<Kernel> g_kernels;
extern SlotTable<Module> g_modules;  ///< Modules and libraries.

/// Accepts a CUfunction or a CUkernel.
inline Kernel* find_kernel(const void* function) noexcept {
    return g_kernels.find(reinterpret_cast<std::uint64_t>(function));
}

// ---- streams and events ------------------------------------------------------------------------

struct Stream {
    std::uint64_t handle;
    std::uint64_t context;
    std::uint64_t id;
    std::uint32_t flags;
    int priority;
};

struct Event {
    static constexpr std::uint64_t kInCapture = ~0ull;
    std::uint64_t handle;
    std::uint64_t context;
    std::uint32_t flags;
    /// Ring position of the newest record; 0: never recorded; kInCapture: the host knows more.
    std::atomic<std::uint64_t> recorded;
    /// Other processes have it too, or may: the host knows more, and has to know of what is done
    /// with it before they are told (event.cc).
    std::atomic<bool> shared;
    bool opened;  ///< Another process's.
};

/// An executable graph: known by its name, so that a launch of one that is gone fails at once.
struct GraphExec {
    std::uint64_t handle;
};

extern SlotTable<Stream> g_streams;
extern SlotTable<Event> g_events;
extern SlotTable<GraphExec> g_graph_execs;

/// Waits until the host has executed what this thread posted with this result (ipc.cc).
CUresult settle(CUresult posted) noexcept;
/// This process has given memory to others, which open it by its handle until it is freed.
bool gives_memory() noexcept;
/// From now on other processes may have the event.
void share_event(Event* event) noexcept;
/// A graph was launched with this result: it may have recorded events that others have too.
CUresult settle_graph_events(CUresult launched) noexcept;

inline std::uint64_t bits(const void* handle) noexcept {
    return reinterpret_cast<std::uint64_t>(handle);
}

/// 0, 1 (legacy), 2 (per thread), or a live stream's handle.
inline bool is_stream(CUstream stream) noexcept {
    return bits(stream) <= 2 || g_streams.find(bits(stream)) != nullptr;
}

// ---- helpers -----------------------------------------------------------------------------------

/// A call with a fixed argument structure and no answer but its status.
template <typename Call>
CUresult call_status(cuda::Op op, const Call& arguments) noexcept {
    return session::call(op, &arguments, sizeof(arguments), nullptr, 0, nullptr, 0, nullptr, 0,
                         nullptr);
}

template <typename Call, typename Reply>
CUresult call_reply(cuda::Op op, const Call& arguments, Reply* reply) noexcept {
    return session::call(op, &arguments, sizeof(arguments), nullptr, 0, reply, sizeof(*reply),
                         nullptr, 0, nullptr);
}

template <typename Call>
CUresult post_args(cuda::Op op, const Call& arguments) noexcept {
    return session::post(op, &arguments, sizeof(arguments), nullptr, 0);
}

/// Waits for all work of the current context, as native calls with an implicit synchronisation do.
CUresult synchronize_context() noexcept;
CUresult synchronize_stream(std::uint64_t stream) noexcept;

/// True while this stream is being captured. Asks the host when any is.
bool is_captured(CUstream stream) noexcept;

/// What a call answers that has queued a kernel or a graph with this result: with
/// CUDA_LAUNCH_BLOCKING it waits for them, and their own errors are the call's.
inline CUresult launched(CUresult queued, CUstream stream) noexcept {
    if (__builtin_expect(!session::launches_block(), 1) || queued != CUDA_SUCCESS ||
        (captures_open() && is_captured(stream))) {
        return queued;
    }
    return synchronize_stream(bits(stream));
}

/// The handle that the graph of a stream's capture will have; 0 if unknown.
std::uint64_t capture_graph(CUstream stream) noexcept;

}  // namespace gantry::shim
