// What this process knows without asking: completed events, streams that have just run dry.
//
// A query may say "not ready" of an event that has completed a moment ago, but not after anything
// that CUDA told this process has said otherwise. The host shows completed events before each
// answer that tells of completed work; so what HostWords shows is enough, but where host callbacks
// run, which tell of completed work without an answer: there the host is asked. Words that a kernel
// writes into page-locked memory tell of it too, and are the one way to see an older event late.
#include "guest-shim/session/connection.h"
#include "proto/cuda/handle_bits.h"

namespace gantry::session {
namespace {

constexpr std::uint32_t kLooksPerCheck = 64;  // Of a worker that may be gone: a system call.

std::atomic<bool> g_stopped{false};
std::atomic<std::uint32_t> g_migrations{0};     // Announcements, begun and ended, that were seen.
std::atomic<std::uint64_t> g_unknown_below{0};  // Position: another host may have had the record.
std::atomic<bool> g_asking{false};              // Guards the two below.
std::atomic<std::uint64_t> g_asked{0};          // Position plus 1 of the last kLookAtEvent.
std::atomic<std::uint32_t> g_unanswered{0};

}  // namespace

/// No migration is announced either, and the session is not another host's: a guest that was left
/// behind gets errors, no answers.
bool is_quiet(Thread* self, const wire::HostWords& words) noexcept {
    const std::uint32_t errors = words.late_errors.load(std::memory_order_acquire);
    const wire::WorkerState state = words.worker_state.load(std::memory_order_acquire);
    if (state == wire::WorkerState::kDead || state == wire::WorkerState::kDisowned ||
        words.sticky_error.load(std::memory_order_acquire) != 0 || errors != self->errors_seen ||
        (words.announce.load(std::memory_order_acquire) & 1) != 0) {
        self->errors_seen = errors;
        return false;
    }
    return true;
}

namespace {

/// Has the host look, unless it has been told to and has not come to it yet. False when it never
/// will.
bool ask_to_look(std::uint64_t event, std::uint64_t recorded) noexcept {
    if (g_asking.exchange(true, std::memory_order_acquire)) {
        return true;  // Another thread does.
    }
    bool fine = true;
    if (g_connection.host->looked.load(std::memory_order_acquire) <
        g_asked.load(std::memory_order_relaxed)) {
        const std::uint32_t looks = g_unanswered.load(std::memory_order_relaxed) + 1;
        g_unanswered.store(looks, std::memory_order_relaxed);
        fine = looks % kLooksPerCheck != 0 || !worker_is_gone();
    } else {
        g_unanswered.store(0, std::memory_order_relaxed);
        const wire::LookAtEventCall arguments{event, recorded};
        Record record;
        fine = reserve(static_cast<std::uint16_t>(wire::ControlOp::kLookAtEvent), sizeof(arguments),
                       0, &record) == CUDA_SUCCESS;
        if (fine) {
            *reinterpret_cast<wire::LookAtEventCall*>(record.args) = arguments;
            g_asked.store(record.position + 1, std::memory_order_relaxed);
            fine = finish(record) == CUDA_SUCCESS;
        }
    }
    g_asking.store(false, std::memory_order_release);
    return fine;
}

/// A worker shows nothing of what was recorded before a migration: the host is asked for it. Every
/// record of this thread's that precedes the end of one lies below the ring's end now.
bool may_be_of_another_host(std::uint64_t recorded) noexcept {
    const std::uint32_t announced = g_connection.host->announce.load(std::memory_order_acquire);
    if (announced != g_migrations.load(std::memory_order_acquire)) {
        const std::uint64_t end = g_connection.ring.tail();
        std::uint64_t below = g_unknown_below.load(std::memory_order_relaxed);
        while (below < end && !g_unknown_below.compare_exchange_weak(below, end)) {
        }
        g_migrations.store(announced, std::memory_order_release);
    }
    return recorded < g_unknown_below.load(std::memory_order_acquire);
}

}  // namespace

EventState look_at_event(std::uint64_t event, std::uint64_t recorded) noexcept {
    if (gate() != CUDA_SUCCESS || g_stopped.load(std::memory_order_relaxed) ||
        g_connection.environment.synchronous) {
        return EventState::kUnknown;
    }
    Thread* self = thread();
    const wire::HostWords& words = *g_connection.host;
    if (self == nullptr || self->in_callback != 0 ||
        words.shows_events.load(std::memory_order_relaxed) == 0) {
        return EventState::kUnknown;
    }
    const std::uint64_t done = words.event_done[cuda::handle_slot(event) % wire::kEventWords].load(
        std::memory_order_acquire);
    if (!is_quiet(self, words)) {
        return EventState::kUnknown;
    }
    if (recorded == 0 || done == recorded + 1) {
        return EventState::kDone;
    }
    // A later record of another event has the word: nothing is known of this one.
    if (done > recorded || may_be_of_another_host(recorded) || callbacks_started() ||
        !ask_to_look(event, recorded)) {
        return EventState::kUnknown;
    }
    return EventState::kPending;
}

void stop_following_events() noexcept { g_stopped.store(true, std::memory_order_relaxed); }

bool follows_events() noexcept { return !g_stopped.load(std::memory_order_relaxed); }

void note_synchronised(std::uint64_t stream) noexcept {
    if (Thread* self = thread(); self != nullptr) {
        self->synced_end = self->answered_end;
        self->synced_stream = stream;
        self->synced_context = self->current;
    }
}

bool is_synchronised(std::uint64_t stream) noexcept {
    if (gate() != CUDA_SUCCESS || g_connection.environment.synchronous) {
        return false;
    }
    Thread* self = thread();
    return self != nullptr && self->in_callback == 0 && self->synced_end != 0 &&
           self->synced_stream == stream && self->synced_context == self->current &&
           self->synced_end == g_connection.ring.tail() && is_quiet(self, *g_connection.host);
}

}  // namespace gantry::session
