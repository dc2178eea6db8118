// GuestProcess: calls that wait for the device. The loop's thread looks at them for a while, by a
// word that lands behind the awaited work or by asking the driver; then a thread of the lane takes
// them. Between these looks it shows what events and bulk copies have come to.
#include <algorithm>

#include "host-daemon/worker/call.h"
#include "host-daemon/worker/guest_process.h"
#include "host-daemon/worker/handlers.h"

namespace gantry::worker {
namespace {

constexpr std::size_t kEventsAtOnce = 4;
constexpr std::chrono::microseconds kEventsEvery{1};
/// How often a stream is asked for errors while a word in it is waited for.
constexpr std::chrono::microseconds kErrorsEvery{20};

}  // namespace

void GuestProcess::begin_wait(const Call& call) {
    Waiting waiting{call.keep(), std::chrono::steady_clock::now(), {}, {}, {}};
    if (call.awaited() && may_skip_waits() && sticky_error.load() == 0 && captures.load() == 0 &&
        objects.count_kind(HandleKind::kContext) <= 1) {
        waiting.stream = *call.awaited();
        waiting.word = wait_words_.queue(waiting.stream);
        waiting.ask_at = waiting.since + kErrorsEvery;
    }
    waiting_.push_back(std::move(waiting));
    waiting_count_.store(waiting_.size());
}

bool GuestProcess::has_come(Waiting& waiting, std::chrono::steady_clock::time_point now) {
    if (waiting.word) {
        if (wait_words_.has_landed(*waiting.word)) {
            landed_stream_ = waiting.stream;
            landed_at_ = now;
            waiting.call->saw_end();
            return true;
        }
        if (now < waiting.ask_at) {
            return false;
        }
        waiting.ask_at = now + kErrorsEvery;
    }
    return look_at_wait(*waiting.call);
}

bool GuestProcess::poll() {
    const auto now = std::chrono::steady_clock::now();
    if (now >= events_due_) {
        look_at_events(kEventsAtOnce);
        look_at_bulk_copies();
        events_due_ = now + kEventsEvery;
    }
    const bool is_copying = bulk_board.is_pending(now, std::chrono::microseconds(wait_spin_us_));
    return watch_waiting(now) || is_copying;
}

void GuestProcess::look_at_events(std::size_t most) {
    if (captures.load(std::memory_order_relaxed) == 0) {  // A capture does not like questions.
        note_result(0, event_board.look(most), true);
    }
}

void GuestProcess::look_at_bulk_copies() {
    if (captures.load(std::memory_order_relaxed) == 0) {
        const auto before_arrivals = [this](CUstream stream) {
            landed_stream_ = stream;
            landed_at_ = std::chrono::steady_clock::now();
            look_at_events(EventBoard::kOpenMax);
        };
        note_result(0, bulk_board.look(before_arrivals), true);
    }
}

bool GuestProcess::watch_waiting(std::chrono::steady_clock::time_point now) {
    if (waiting_.empty()) {
        return false;
    }
    bool is_any_due = false;
    std::erase_if(waiting_, [&](Waiting& waiting) {
        if (held.active() && held.waits(*waiting.call)) {
            return false;  // Not begun: another worker may have to begin it.
        }
        if (has_come(waiting, now)) {
            run_call(*waiting.call);
            return true;
        }
        if (is_pollable(*waiting.call) &&
            now - waiting.since < std::chrono::microseconds(wait_spin_us_)) {
            is_any_due = true;
            return false;
        }
        executors_->post(waiting.call->lane(), [this, call = waiting.call] { run_call(*call); });
        return true;
    });
    waiting_count_.store(waiting_.size());
    return is_any_due;
}

}  // namespace gantry::worker
