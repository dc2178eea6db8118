// The guest process's one connection to its worker, as the driver's calls see it.
//
// What: commands go into the ring (post: no answer; call: waits for it), with handles that are
// minted here. Threads: every function may be called from any thread; a thread's commands are
// executed in its order. Failure: a lost worker, a sticky CUDA error or a process that cannot use
// CUDA (not initialised, forked, ending) is the CUresult that each function returns; nothing hangs.
// Cost: post is one compare-and-swap, one copy, one fence; it neither allocates nor locks.
#pragma once

#include <atomic>
#include <cstdint>

#include "proto/cuda/abi.h"
#include "proto/cuda/handle_bits.h"
#include "proto/cuda/handle_kinds.h"

namespace gantry::cuda {
enum class Op : std::uint16_t;
}  // namespace gantry::cuda

namespace gantry::wire {
enum class ControlOp : std::uint16_t;
struct DeviceFacts;
}  // namespace gantry::wire

namespace gantry::session {

using cuda::HandleKind;

/// Life of the process's session. Only kReady lets commands through.
enum class State : std::uint32_t {
    kUnused = 0,  ///< cuInit has not succeeded: 3.
    kReady = 1,
    kForked = 2,  ///< Child of a process that used CUDA: 3 for ever.
    kEnded = 3,   ///< The process is ending: 4.
    kBroken = 4,  ///< The worker is gone, or a sticky error: see broken_result.
};

/// What every call must look at first; written rarely, so that reading it costs nothing.
struct Gate {
    std::atomic<State> state{State::kUnused};
    std::atomic<std::uint32_t> broken_result{0};
};
extern Gate g_gate;

CUresult closed_result() noexcept;

/// 0 when the session takes commands, else what the call must return.
inline CUresult gate() noexcept {
    if (__builtin_expect(g_gate.state.load(std::memory_order_acquire) == State::kReady, 1)) {
        return CUDA_SUCCESS;
    }
    return closed_result();
}

/// As gate(), but lets calls through that native answers even after a sticky error (counts,
/// attributes, current context).
inline CUresult gate_local() noexcept {
    const State state = g_gate.state.load(std::memory_order_acquire);
    if (__builtin_expect(state == State::kReady || state == State::kBroken, 1)) {
        return CUDA_SUCCESS;
    }
    return closed_result();
}

/// Connects, claims a channel, says hello and reads the device facts. Later calls return the first
/// one's result. Prints one line to stderr when the configuration or the peer is at fault.
CUresult start() noexcept;
/// Says goodbye to the host, if the process has a session: no call is served any more.
void end() noexcept;

/// Device facts read at start; null when the ordinal is out of range.
std::uint32_t device_count() noexcept;
const wire::DeviceFacts* device_facts(int device) noexcept;
std::uint32_t driver_version() noexcept;
/// CUDA_LAUNCH_BLOCKING, read at start: a kernel has ended when its launch returns.
bool launches_block() noexcept;

CUresult post(cuda::Op op, const void* args, std::uint32_t args_bytes, const void* trailing,
              std::uint32_t trailing_bytes) noexcept;

/// `reply` receives reply_bytes exactly (zero-filled when the host sent fewer). `reply_trailing`
/// receives up to its capacity; *reply_trailing_bytes tells how many came.
CUresult call(cuda::Op op, const void* args, std::uint32_t args_bytes, const void* trailing,
              std::uint32_t trailing_bytes, void* reply, std::uint32_t reply_bytes,
              void* reply_trailing, std::uint32_t reply_trailing_capacity,
              std::uint32_t* reply_trailing_bytes) noexcept;

/// A new handle of a kind that has no slot table in the driver part.
std::uint64_t mint(HandleKind kind) noexcept;
/// The first of `count` new handles, each cuda::kHandleStep above the one before.
std::uint64_t mint_many(HandleKind kind, std::uint64_t count) noexcept;
/// Of `count` handles from `first`, the newest, only `used` are in use: others may have the rest.
void unmint(std::uint64_t first, std::uint64_t count, std::uint64_t used) noexcept;

// ---- pieces of post for calls that build their payload in place --------------------------------

/// A reserved record: write args() and trailing(), then finish(). Between the two nothing may fail.
struct Record {
    std::byte* args;
    std::byte* trailing;
    void* header;
    std::uint64_t position;
};

/// Reserves a posted record. Waits while the ring is full; fails when the session is closed.
CUresult reserve(std::uint16_t op, std::uint32_t args_bytes, std::uint32_t trailing_bytes,
                 Record* out) noexcept;
CUresult finish(const Record& record) noexcept;

/// A control command of the same shape as above.
CUresult post_control(wire::ControlOp op, const void* args, std::uint32_t args_bytes,
                      const void* trailing, std::uint32_t trailing_bytes) noexcept;

/// Most trailing bytes that one record can carry beside `args_bytes` of arguments.
std::uint32_t max_trailing(std::uint32_t args_bytes) noexcept;

// ---- what is known without asking ---------------------------------------------------------------

enum class EventState {
    kDone,
    kPending,
    kUnknown,  ///< The host must be asked.
};

/// State of an event whose newest record has the ring position `recorded` (0: never recorded), from
/// what the host shows. kDone and kPending are what a query would have told: kPending only if
/// nothing that this process was told by CUDA says otherwise, and the host is asked to look.
EventState look_at_event(std::uint64_t event, std::uint64_t recorded) noexcept;
/// From now on look_at_event() knows nothing: events are recorded in ways that are not followed.
void stop_following_events() noexcept;
bool follows_events() noexcept;

/// The calling thread's last command has waited for all work in `stream`.
void note_synchronised(std::uint64_t stream) noexcept;
/// True when nothing was queued anywhere in this process since, and nothing went wrong.
bool is_synchronised(std::uint64_t stream) noexcept;

// ---- bulk memory --------------------------------------------------------------------------------

/// Streams host bytes to the device in pieces, in ring order. Returns when the last piece is in the
/// ring: the source may then be reused.
CUresult write_device(std::uint64_t address, const void* source, std::uint64_t bytes,
                      std::uint64_t stream) noexcept;

/// Copies device bytes to host memory; returns when they are there.
CUresult read_device(void* target, std::uint64_t address, std::uint64_t bytes,
                     std::uint64_t stream) noexcept;

/// Stages an image (or a part of it) under an id that new_image_id gave.
std::uint64_t new_image_id() noexcept;
CUresult stage_image(std::uint64_t image_id, std::uint64_t total_bytes, std::uint64_t offset,
                     const void* source, std::uint64_t bytes) noexcept;

// ---- threads ------------------------------------------------------------------------------------

struct ProfiledThread;

/// A thread's current-context stack; the top travels with each of its commands.
struct Thread {
    std::uint32_t lane;
    std::uint32_t depth;
    std::uint32_t capacity;
    std::uint32_t in_callback;  ///< Inside a host callback: CUDA calls are not permitted.
    std::uint64_t current;      ///< contexts[depth - 1], or 0.
    std::uint64_t* contexts;
    std::uint32_t capture_mode;  ///< CUstreamCaptureMode of cuThreadExchangeStreamCaptureMode.
    std::uint32_t next_flags;    ///< CommandFlag bits for this thread's next command.
    std::uint32_t errors_seen;   ///< HostWords.late_errors when this thread last asked the host.
    std::uint64_t answered_end;  ///< Ring position behind this thread's last answered command.
    std::uint64_t synced_end;    ///< The same of the last one that waited for synced_stream ...
    std::uint64_t synced_stream;
    std::uint64_t synced_context;  ///< ... in this context; synced_end 0: none did.
    ProfiledThread* profile;       ///< Null: nothing was noted of it (profile.h).
};

/// The calling thread's state, made at first use; null when memory is out.
Thread* thread() noexcept;
/// Other threads have the calling one's lane too, and with it its own stream: there are more than
/// lanes.
bool shares_lane() noexcept;
/// What the next command of this thread queues is what it waits for right after it.
void wait_follows() noexcept;
std::uint64_t current_context() noexcept;
CUresult push_context(std::uint64_t context) noexcept;
std::uint64_t pop_context() noexcept;
/// Replaces the top (0 pops it), as cuCtxSetCurrent does.
CUresult set_context(std::uint64_t context) noexcept;

/// True while a migration of this guest is announced (region.h).
bool migration_announced() noexcept;

// ---- the pinned pool ----------------------------------------------------------------------------

/// Page-aligned extents of the pinned pool (host, managed, and staging memory): an address that is
/// valid in this process and on the device, or null when the pool is full.
void* pinned_allocate(std::uint64_t bytes) noexcept;
void pinned_free(void* address) noexcept;
std::uint64_t pinned_bytes() noexcept;

/// Offset of the pool in the region's descriptor, to map pool pages elsewhere; -1 without a pool.
int region_descriptor() noexcept;
std::uint64_t pinned_region_offset() noexcept;

/// Starts the thread that runs the application's host callbacks. Idempotent.
CUresult start_callbacks() noexcept;
bool callbacks_started() noexcept;

}  // namespace gantry::session
