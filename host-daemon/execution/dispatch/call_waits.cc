#include "host-daemon/execution/dispatch/call_waits.h"

#include <algorithm>

#include "host-daemon/execution/dispatch/handlers.h"
#include "host-daemon/execution/dispatch/run_call.h"
#include "proto/cuda/gen/op_table.h"

namespace gantry::worker {
namespace {

using std::chrono::steady_clock;

/// How often a stream is asked for errors while a word in it is waited for.
constexpr std::chrono::microseconds kErrorsEvery{20};
constexpr std::chrono::microseconds kEventsEvery{1};
/// Between two questions whether the context is broken, while calls wait for host callbacks, which
/// may never come any more.
constexpr std::chrono::milliseconds kBrokenEvery{5};
/// Commands of one lane in a row after which the guest counts as one thread's.
constexpr std::uint32_t kAloneAfter = 16;

/// Native waits spin, and so do a waiting guest and what it is about to ask, where there are
/// processors for it: to wake a thread takes tens of microseconds.
std::uint32_t awake_for_us(std::uint32_t spin_us) {
    constexpr std::uint32_t kLongSpinUs = 10'000;
    return spin_us != 0 && has_processors_to_spin() ? kLongSpinUs : 0;
}

}  // namespace

CallWaits::CallWaits(GuestProcess& process, CommandLoop& loop, std::uint32_t spin_us)
    : process_(process),
      loop_(loop),
      awake_us_(awake_for_us(spin_us)),
      wait_spin_us_(std::max(spin_us, awake_us_)) {}

void CallWaits::begin_wait(const Call& call) {
    Waiting waiting{call.keep(), steady_clock::now(), {}, {}, {}};
    waiting.may_have_word = true;
    on_loop_.waiting.push_back(std::move(waiting));
    count_.store(on_loop_.waiting.size());
}

/// Queues the word, where the end of a stream is all that the call waits for.
void CallWaits::begin_watch(Waiting& waiting, Time now) {
    waiting.may_have_word = false;
    if (waiting.call->awaited() && process_.streams.may_use_words()) {
        waiting.stream = *waiting.call->awaited();
        waiting.word = process_.streams.wait_words.queue(waiting.stream);
        waiting.ask_at = now + kErrorsEvery;
    }
}

bool CallWaits::has_come(Waiting& waiting, Time now) {
    if (waiting.word) {
        if (process_.streams.wait_words.has_landed(*waiting.word)) {
            process_.streams.note_landed(waiting.stream, now);
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

bool CallWaits::poll() {
    GuestStreams& streams = process_.streams;
    const auto now = steady_clock::now();
    if (now >= on_loop_.events_due) {
        streams.look_at_events(GuestStreams::Look::kSome);
        streams.look_at_bulk_copies();
        show_memory();
        on_loop_.events_due = now + kEventsEvery;
    } else if (streams.bulk_board.has_arrivals()) {
        streams.look_at_bulk_copies();
    }
    const bool is_copying =
        streams.bulk_board.is_pending(now, std::chrono::microseconds(wait_spin_us_));
    return watch_waiting(now) || is_copying;
}

void CallWaits::show_memory() {
    const std::uint64_t bytes = process_.memory.device.mapped_bytes();
    if (bytes != on_loop_.shown_bytes) {
        on_loop_.shown_bytes = bytes;
        process_.channel.memory()->host_words().device_bytes.store(bytes,
                                                                   std::memory_order_relaxed);
    }
}

bool CallWaits::finds_broken(Time now) {
    if (now < on_loop_.broken_due) {
        return process_.is_broken();
    }
    on_loop_.broken_due = now + kBrokenEvery;
    return process_.finds_broken();
}

bool CallWaits::watch_waiting(Time now) {
    if (on_loop_.waiting.empty()) {
        return false;
    }
    bool is_any_due = false;
    std::erase_if(on_loop_.waiting, [&](Waiting& waiting) {
        if (process_.held.active() && process_.held.waits(waiting.call->command()) &&
            !finds_broken(now)) {
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
        process_.executors().post(waiting.call->lane(), [call = waiting.call] { run_call(*call); });
        return true;
    });
    count_.store(on_loop_.waiting.size());
    return is_any_due;
}

void CallWaits::note_lane(std::uint32_t lane) {
    on_loop_.commands_of_lane = lane == on_loop_.last_lane ? on_loop_.commands_of_lane + 1 : 0;
    on_loop_.last_lane = lane;
}

/// Nobody else is known to want the loop meanwhile: no other lane, no callback, no copy that
/// another thread of the guest awaits. A guess only: the stand-in mends a wrong one; so no call
/// waits here while another does, since there would be nobody left to take the loop.
bool CallWaits::is_alone() const {
    return loop_.has_stand_in() && on_loop_.commands_of_lane >= kAloneAfter &&
           on_loop_.waiting.empty() && here_count_.load() == 0 && !process_.held.active() &&
           !process_.graphs.captures.any() && process_.channel.callbacks.outstanding() == 0 &&
           !process_.streams.bulk_board.has_arrivals();
}

void CallWaits::expect_wait(const Call& call) {
    on_loop_.queued.reset();
    const std::optional<CUstream> stream = call.queued();
    if (!stream) {
        return;
    }
    on_loop_.queued = BusyStream{*stream};
    const auto is_next = [&] {
        const auto next = loop_.next_command();
        return next && next->lane == call.lane() && next->context == call.header().context &&
               ends_with(*next, *stream);
    };
    if (((call.header().flags & wire::kCommandIsAwaited) != 0 || is_next()) && is_alone() &&
        process_.streams.may_use_words()) {
        on_loop_.queued->word = process_.streams.wait_words.queue(*stream);
    }
}

void CallWaits::note_batch(std::span<const Command> batch, CUstream stream) {
    for (const Command& command : batch) {
        note_lane(command.header.lane);
    }
    on_loop_.queued = BusyStream{stream};
}

/// Whether the end of the stream is all that the command waits for. A guess: the guest may still
/// change what it asks for.
bool CallWaits::ends_with(const wire::CommandView& wait, CUstream stream) const {
    const cuda::OpFacts& fields = cuda::op_facts(static_cast<cuda::Op>(wait.op));
    const std::size_t needed = std::size_t{fields.waited.offset} + fields.waited.bytes;
    switch (fields.waits_for) {
        case cuda::OpWait::kStream:
            return wait.args_bytes >= needed &&
                   process_.streams.find(fields.waited.read({wait.args, needed}), wait.lane) ==
                       stream;
        case cuda::OpWait::kContext:
            return fields.waited.bytes == 0 && stream == nullptr && process_.streams.has_one();
        default: return false;
    }
}

void CallWaits::wait_or_run(Call& call) {
    if (process_.held.active() && !process_.is_broken() && process_.held.waits(call.command())) {
        begin_wait(call);
    } else if (is_alone() && may_wait_here(call)) {
        begin_wait(call);
        on_loop_.waiting.back().waits_here = true;
        if (loop_.is_streaming() && on_loop_.queued) {
            on_loop_.waiting.back().call->set_busy(*on_loop_.queued);
        }
    } else if (look_at_wait(call)) {
        run_call(call);
    } else {
        begin_wait(call);
    }
}

CommandLoop::Waited CallWaits::wait_here() {
    if (on_loop_.waiting.size() != 1 || !on_loop_.waiting.front().waits_here) {
        return CommandLoop::Waited::kNot;
    }
    const std::shared_ptr<Call> call = std::move(on_loop_.waiting.front().call);
    on_loop_.waiting.clear();
    here_count_.fetch_add(1);  // First: a freeze must not miss it.
    count_.store(0);
    loop_.lend();
    run_call(*call);
    here_count_.fetch_sub(1);
    return loop_.take_back() ? CommandLoop::Waited::kHere : CommandLoop::Waited::kReplaced;
}

bool CallWaits::are_all_held() const {
    return std::all_of(
        on_loop_.waiting.begin(), on_loop_.waiting.end(),
        [this](const Waiting& waiting) { return process_.held.waits(waiting.call->command()); });
}

std::set<std::uint64_t> CallWaits::positions() const {
    std::set<std::uint64_t> positions;
    for (const Waiting& waiting : on_loop_.waiting) {
        positions.insert(waiting.call->header().position);
    }
    return positions;
}

}  // namespace gantry::worker
