// GuestProcess: calls that wait for the device: where they do so, and how their end is noticed. And
// between these looks, what events and bulk copies have come to.
//
// HERE. The call of a guest that uses one lane waits on the loop's own thread, as soon as the ring
// has nothing more; the loop is lent meanwhile (command_loop.h). It waits inside the driver, as
// natively, and nothing else is asked of the driver or the device; but where the command right in
// front of it has queued work in the same stream, it first looks at a word for a while
// (synchronise_stream()). Such a word is on its way while the device is at work, and shows its end
// 0.5 to 1 us before the driver does (H200, driver 580); on a device that has nothing to do it
// takes 4 us. Behind that very work it waits for nothing else: not in the legacy stream either,
// where it would for what blocking streams got meanwhile. The word is queued right behind the work
// where the guest says that it will wait (kCommandIsAwaited), or its wait is in the ring by then.
// BY A WORD. Else the driver is asked whether the call would wait, and if so the device writes a
// word behind the work, which the loop looks at between commands.
// ON A LANE'S THREAD. What has no word, or has waited for long, goes to its lane's executor.
#include <algorithm>
#include <cstring>

#include "host-daemon/execution/process/call.h"
#include "host-daemon/execution/process/guest_process.h"
#include "host-daemon/execution/process/handlers.h"

namespace gantry::worker {
namespace {

using std::chrono::steady_clock;

/// How often a stream is asked for errors while a word in it is waited for.
constexpr std::chrono::microseconds kErrorsEvery{20};
constexpr std::chrono::microseconds kEventsEvery{1};
/// Commands of one lane in a row after which the guest counts as one thread's.
constexpr std::uint32_t kAloneAfter = 16;

}  // namespace

void GuestProcess::begin_wait(const Call& call) {
    Waiting waiting{call.keep(), steady_clock::now(), {}, {}, {}};
    waiting.may_have_word = true;
    waiting_.push_back(std::move(waiting));
    waiting_count_.store(waiting_.size());
}

bool GuestProcess::may_use_words() const {
    return may_skip_waits() && sticky_error.load() == 0 && captures.load() == 0 &&
           objects.count_kind(HandleKind::kContext) <= 1;
}

void GuestProcess::note_landed(CUstream stream, steady_clock::time_point now) {
    landed_stream_ = stream;
    landed_at_ = now;
}

/// Queues the word, where the end of a stream is all that the call waits for.
void GuestProcess::begin_watch(Waiting& waiting, steady_clock::time_point now) {
    waiting.may_have_word = false;
    if (waiting.call->awaited() && may_use_words()) {
        waiting.stream = *waiting.call->awaited();
        waiting.word = wait_words.queue(waiting.stream);
        waiting.ask_at = now + kErrorsEvery;
    }
}

bool GuestProcess::has_come(Waiting& waiting, steady_clock::time_point now) {
    if (waiting.word) {
        if (wait_words.has_landed(*waiting.word)) {
            note_landed(waiting.stream, now);
            waiting.call->saw_end();
            return true;
        }
        if (now < waiting.ask_at) {
            return false;
        }
        waiting.ask_at = now + kErrorsEvery;
    }
    if (look_at_wait(*waiting.call)) {
        return true;
    }
    if (waiting.may_have_word) {
        begin_watch(waiting, now);
    }
    return false;
}

bool GuestProcess::poll() {
    const auto now = std::chrono::steady_clock::now();
    if (now >= events_due_) {
        look_at_events(Look::kSome);
        look_at_bulk_copies();
        show_memory();
        events_due_ = now + kEventsEvery;
    } else if (bulk_board.has_arrivals()) {
        look_at_bulk_copies();
    }
    const bool is_copying = bulk_board.is_pending(now, std::chrono::microseconds(wait_spin_us_));
    return watch_waiting(now) || is_copying;
}

void GuestProcess::look_at_events(Look look) {
    if (captures.load(std::memory_order_relaxed) == 0) {  // A capture does not like questions.
        note_result(0, look == Look::kAll ? event_board.look_at_all() : event_board.look(), true);
    }
}

void GuestProcess::look_at_bulk_copies() {
    if (captures.load(std::memory_order_relaxed) == 0) {
        const auto before_arrivals = [this](CUstream stream) {
            note_landed(stream, std::chrono::steady_clock::now());
            look_at_events(Look::kAll);
        };
        note_result(0, bulk_board.look(before_arrivals), true);
    }
}

void GuestProcess::show_memory() {
    if (const std::uint64_t bytes = memory.mapped_bytes(); bytes != shown_bytes_) {
        shown_bytes_ = bytes;
        memory_->host_words().device_bytes.store(bytes, std::memory_order_relaxed);
    }
}

bool GuestProcess::watch_waiting(steady_clock::time_point now) {
    if (waiting_.empty()) {
        return false;
    }
    bool is_any_due = false;
    std::erase_if(waiting_, [&](Waiting& waiting) {
        if (held.active() && held.waits(waiting.call->command()) && !finds_broken(now)) {
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

void GuestProcess::note_lane(std::uint32_t lane) {
    commands_of_lane_ = lane == last_lane_ ? commands_of_lane_ + 1 : 0;
    last_lane_ = lane;
}

/// Nobody else is known to want the loop meanwhile: no other lane, no callback, no copy that
/// another thread of the guest awaits. A guess only: the stand-in mends a wrong one; so no call
/// waits here while another does, since there would be nobody left to take the loop.
bool GuestProcess::is_alone() const {
    return loop_.has_stand_in() && commands_of_lane_ >= kAloneAfter && waiting_.empty() &&
           waits_here_.load() == 0 && !held.active() &&
           captures.load(std::memory_order_relaxed) == 0 && callbacks.outstanding() == 0 &&
           !bulk_board.has_arrivals();
}

/// Notes where the call has queued work. If the next command waits for that, as the guest says or
/// the ring shows, its word is queued now: behind a small copy each step that comes first is seen
/// in its time.
void GuestProcess::expect_wait(const Call& call) {
    queued_.reset();
    const std::optional<CUstream> stream = call.queued();
    if (!stream) {
        return;
    }
    queued_ = BusyStream{*stream};
    const auto is_next = [&] {
        const auto next = loop_.next_command();
        return next && next->lane == call.lane() && next->context == call.header().context &&
               ends_with(*next, *stream);
    };
    if (((call.header().flags & wire::kCommandIsAwaited) != 0 || is_next()) && is_alone() &&
        may_use_words()) {
        queued_->word = wait_words.queue(*stream);
    }
}

/// Whether the end of the stream is all that the command waits for. A guess: the guest may still
/// change what it asks for.
bool GuestProcess::ends_with(const wire::CommandView& wait, CUstream stream) const {
    switch (static_cast<cuda::Op>(wait.op)) {
        case cuda::Op::cuStreamSynchronize: {
            std::uint64_t handle = 0;
            if (wait.args_bytes < sizeof(handle)) {
                return false;
            }
            std::memcpy(&handle, wait.args, sizeof(handle));
            return find_stream(handle, wait.lane) == stream;
        }
        case cuda::Op::cuCtxSynchronize: return stream == nullptr && has_one_stream();
        default: return false;
    }
}

/// The guest's call waits for the device, as far as is known without asking the driver.
void GuestProcess::wait_or_run(Call& call) {
    if (held.active() && !is_broken() && held.waits(call.command())) {
        begin_wait(call);
    } else if (is_alone() && may_wait_here(call)) {
        begin_wait(call);
        waiting_.back().waits_here = true;
        if (loop_.is_streaming() && queued_) {
            waiting_.back().call->set_busy(*queued_);
        }
    } else if (look_at_wait(call)) {
        run_call(call);
    } else {
        begin_wait(call);
    }
}

CommandLoop::Waited GuestProcess::wait_here() {
    if (waiting_.size() != 1 || !waiting_.front().waits_here) {
        return CommandLoop::Waited::kNot;
    }
    const std::shared_ptr<Call> call = std::move(waiting_.front().call);
    waiting_.clear();
    waits_here_.fetch_add(1);  // First: a freeze must not miss it.
    waiting_count_.store(0);
    loop_.lend();
    run_call(*call);
    waits_here_.fetch_sub(1);
    return loop_.take_back() ? CommandLoop::Waited::kHere : CommandLoop::Waited::kReplaced;
}

}  // namespace gantry::worker
