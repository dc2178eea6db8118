#include "host-daemon/execution/ring/command_loop.h"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstring>

#include "host-daemon/execution/ring/reply_board.h"

namespace gantry::worker {
namespace {

constexpr std::uint64_t kHeadStepBytes = 32 * 1024;  // A store a step, not one a command.
constexpr int kLooks = 256;      // At the ring, between two looks at everything else.
constexpr int kFirstLooks = 24;  // At the ring right behind a command, before anything else.
constexpr int kWatches = 8;      // The same while calls wait: each asks the driver about them.
constexpr std::int64_t kNapNs = 200'000;        // At most, where a guest cannot wake the loop
constexpr std::int64_t kAwaitedNapNs = 50'000;  // ... and where it is about to be answered.

/// Sleeps while it has to be told when work ends.
constexpr std::uint64_t kMarkedNapNs = 100'000;

constexpr std::size_t kMostCallbackArgs = 64;

/// Longer than the waits that are worth waiting on the loop's thread, and short beside those that
/// are not: what other threads of the guest may lose. Twenty looks a millisecond while calls wait.
constexpr long kStandInNapNs = 50'000;
constexpr unsigned long kStandInSlackNs = 5'000;
constexpr unsigned kQuietNaps = 100;  // Then the stand-in sleeps until the loop is lent again.

constexpr bool is_lent(std::uint64_t turn) { return turn % 2 != 0; }

bool has_data_trailing(std::uint16_t op) {
    return op == static_cast<std::uint16_t>(wire::ControlOp::kWriteDevice) ||
           op == static_cast<std::uint16_t>(wire::ControlOp::kStageImage);
}

}  // namespace

void CommandLoop::start(ChannelMemory* memory, std::uint64_t next, std::set<std::uint64_t> skip) {
    memory_ = memory;
    ring_.attach(memory->ring(), memory->layout().ring_bytes, next);
    next_.store(next, std::memory_order_release);
    skip_ = skip;
    {
        const MutexLock lock(ahead_mutex_);
        executed_ahead_ = std::move(skip);
        callbacks_done_ = 0;
    }
    head_published_ = next;
    no_batch_before_ = next;
    memory_->host_words().head.store(next, std::memory_order_release);
    mode_.store(Mode::kRunning, std::memory_order_release);
    turn_.store(0, std::memory_order_release);
    begin_stand_in();
    threads_.emplace_back([this] { run(true); });
}

void CommandLoop::begin_stand_in() {
    if (hooks_.wait_here && threads_.empty()) {
        threads_.emplace_back([this] { run(false); });
    }
}

void CommandLoop::stop() {
    if (threads_.empty()) {
        return;
    }
    set_mode(Mode::kStopping);
    for (std::thread& thread : threads_) {
        thread.join();
    }
    threads_.clear();
}

void CommandLoop::set_mode(Mode mode) {
    {
        MutexLock lock(mutex_);
        mode_.store(mode, std::memory_order_release);
    }
    changed_.notify_all();
    ring_stand_in();
    wake();
}

void CommandLoop::wake() {
    if (memory_ != nullptr && memory_->sleep() == wire::Sleep::kFutex) {
        wire::futex_wake_all(&memory_->guest_words().doorbell);
    }
}

bool CommandLoop::hold(std::chrono::steady_clock::time_point deadline) {
    set_mode(Mode::kHolding);
    MutexLock lock(mutex_);
    while (seen_ != Mode::kHolding) {
        const auto now = std::chrono::steady_clock::now();
        if (now >= deadline) {
            lock.unlock();
            resume();
            return false;
        }
        changed_.wait_until(lock, std::min(deadline, now + std::chrono::milliseconds(2)));
        wake();  // The loop may have gone to sleep between our store and our wake-up.
    }
    return true;
}

void CommandLoop::seal() {
    set_mode(Mode::kSealed);
    MutexLock lock(mutex_);
    changed_.wait(lock, [this]() GANTRY_REQUIRES(mutex_) { return seen_ == Mode::kSealed; });
    lock.unlock();
    const MutexLock ahead(ahead_mutex_);  // Whoever helps has ended, and sees the seal next.
}

void CommandLoop::resume() { set_mode(Mode::kRunning); }

void CommandLoop::run(bool serves) {
    if (hooks_.on_start) {
        hooks_.on_start();
    }
    while (serves ? serve() : stand_in()) {
        serves = !serves;
    }
}

/// False when the loop is to stop, true when another thread has it.
bool CommandLoop::serve() {
    for (;;) {
        if (mode_.load(std::memory_order_acquire) != Mode::kRunning) {
            if (!stay_held()) {
                return false;
            }
        }
        if (!hooks_.gate.is_open() && stays_back()) {
            continue;
        }
        if (!breached_ && step()) {
            is_streaming_ = true;
            if (was_idle_) {
                end_pause();
            }
        } else if (!idle()) {
            return true;
        }
    }
}

/// True while the next command is a launch that may not go to the driver yet.
bool CommandLoop::stays_back() {
    wire::RingConsumer scout = ring_;
    wire::CommandView view;
    const char* reason = nullptr;
    if (breached_ || scout.peek(&view, &reason) != wire::PeekStatus::kReady ||
        hooks_.gate.may_pass(view)) {
        return false;
    }
    publish_head(true);
    hooks_.poll();
    return true;
}

/// False when the loop is to stop, true when it is this thread's.
bool CommandLoop::stand_in() {
    prctl(PR_SET_TIMERSLACK, kStandInSlackNs);
    std::uint64_t seen = 0;
    for (unsigned quiet_naps = 0;;) {
        if (mode_.load(std::memory_order_acquire) == Mode::kStopping) {
            return false;
        }
        std::uint64_t turn = turn_.load(std::memory_order_acquire);
        if (is_lent(turn) && turn == seen) {
            if (turn_.compare_exchange_strong(turn, turn + 1, std::memory_order_acq_rel)) {
                return true;
            }
            continue;
        }
        quiet_naps = turn == seen ? quiet_naps + 1 : 0;
        seen = turn;
        if (quiet_naps > kQuietNaps) {
            quiet_naps = 0;
            const std::uint32_t bell = stand_in_bell_.load();
            stand_in_sleeps_.store(true);
            if (turn_.load() == turn && mode_.load() != Mode::kStopping) {
                stand_in_bell_.wait(bell);
            }
            stand_in_sleeps_.store(false);
            continue;
        }
        const timespec nap{0, kStandInNapNs};
        nanosleep(&nap, nullptr);
    }
}

void CommandLoop::ring_stand_in() {
    if (stand_in_sleeps_.load()) {
        stand_in_bell_.fetch_add(1);
        stand_in_bell_.notify_one();
    }
}

void CommandLoop::lend() {
    turn_.fetch_add(1);  // Before the look at who sleeps.
    ring_stand_in();
}

bool CommandLoop::take_back() {
    std::uint64_t turn = turn_.load(std::memory_order_relaxed);
    return is_lent(turn) &&
           turn_.compare_exchange_strong(turn, turn + 1, std::memory_order_acq_rel);
}

/// False when the loop is to stop, true when it is to go on.
bool CommandLoop::stay_held() {
    MutexLock lock(mutex_);
    publish_head(true);
    ahead_ = ring_;
    for (;;) {
        seen_ = mode_.load(std::memory_order_relaxed);
        changed_.notify_all();
        if (seen_ == Mode::kRunning || seen_ == Mode::kStopping) {
            return seen_ == Mode::kRunning;
        }
        if (seen_ == Mode::kSealed) {
            changed_.wait(
                lock, [this]() GANTRY_REQUIRES(mutex_) { return mode_.load() != Mode::kSealed; });
            continue;
        }
        lock.unlock();
        look_ahead();
        hooks_.poll();
        lock.lock();
        changed_.wait_for(lock, std::chrono::microseconds(200), [this]() GANTRY_REQUIRES(mutex_) {
            return mode_.load() != Mode::kHolding;
        });
    }
}

void CommandLoop::execute_ahead(const wire::CommandView& view, std::span<const std::byte> args) {
    // In ring order, whoever executes them: so one mark tells what is done.
    if (view.position + 1 > callbacks_done_ && !executed_ahead_.contains(view.position)) {
        hooks_.on_callback(view, args);
        executed_ahead_.insert(view.position);
        callbacks_done_ = view.position + 1;
    }
}

void CommandLoop::look_ahead() {
    wire::CommandView view;
    const char* reason = nullptr;
    MutexLock lock(ahead_mutex_);
    while (!breached_ && ahead_.peek(&view, &reason) == wire::PeekStatus::kReady) {
        std::byte args[kMostCallbackArgs];
        if (wire::is_callback_op(view.op) && view.args_bytes <= sizeof(args)) {
            std::memcpy(args, view.args, view.args_bytes);
            execute_ahead(view, std::span(args, view.args_bytes));
        }
        ahead_.advance(view);
    }
}

void CommandLoop::help_callbacks() {
    MutexLock lock(ahead_mutex_);
    const Mode mode = mode_.load(std::memory_order_acquire);
    if (mode == Mode::kSealed || mode == Mode::kStopping) {
        return;
    }
    const std::uint64_t at = next();
    if (helped_at_ != at) {
        helped_at_ = at;  // It moves: if it is still here next time, it is held up.
        return;
    }
    wire::RingConsumer scout;
    scout.attach(memory_->ring(), memory_->layout().ring_bytes, at);
    wire::CommandView view;
    const char* reason = nullptr;
    while (scout.peek(&view, &reason) == wire::PeekStatus::kReady) {
        std::byte args[kMostCallbackArgs];
        const bool wanted = wire::is_callback_op(view.op) && view.args_bytes <= sizeof(args);
        if (wanted) {
            std::memcpy(args, view.args, view.args_bytes);
        }
        // What lies at and behind next() is not overwritten by the guest.
        if (next() != at) {
            return;
        }
        if (wanted) {
            execute_ahead(view, std::span(args, view.args_bytes));
        }
        scout.advance(view);
    }
}

void CommandLoop::end_pause() {
    const auto pause = std::chrono::steady_clock::now() - idle_since_;
    spin_now_us_ = pause < std::chrono::microseconds(long_spin_us_) ? long_spin_us_ : spin_us_;
    was_idle_ = false;
}

bool CommandLoop::step() {
    if (step_batch()) {
        return true;
    }
    // It stays where it is put together: a copy would wait for the narrow stores before it.
    const wire::CommandView& view = command_.header;
    const char* reason = nullptr;
    switch (ring_.peek(&command_.header, &reason)) {
        case wire::PeekStatus::kEmpty: return false;
        case wire::PeekStatus::kMalformed:
            breached_ = true;
            hooks_.on_breach(reason);
            return false;
        case wire::PeekStatus::kReady: break;
    }
    if ((view.flags & wire::kCommandWantsReply) != 0) {
        memory_->own_reply(view.lane);
    }
    if (!skip_.empty() && skip_.erase(view.position) != 0) {
        MutexLock lock(ahead_mutex_);
        executed_ahead_.erase(view.position);
        pass(view.position);
        if (wire::is_callback_op(view.op)) {
            callbacks_done_ = std::max(callbacks_done_, view.position + 1);
        }
    } else if (wire::is_callback_op(view.op)) {
        MutexLock lock(ahead_mutex_);
        if (executed_ahead_.erase(view.position) == 0) {
            execute();
        } else {
            pass(view.position);
        }
        callbacks_done_ = std::max(callbacks_done_, view.position + 1);
    } else {
        execute();
    }
    ring_.advance(view);
    next_.store(ring_.next(), std::memory_order_release);
    publish_head(false);
    return true;
}

/// Executes the next commands together, if as many as a batch has wait in the ring.
bool CommandLoop::step_batch() {
    if (!is_streaming_ || hooks_.batches.size == 0 || ring_.next() < no_batch_before_ ||
        !skip_.empty() || (!hooks_.gate.is_open() && !hooks_.gate.may_batch())) {
        return false;
    }
    wire::RingConsumer scout = ring_;
    if (!collect_batch(&scout) || !hooks_.batches.execute(batch_)) {
        no_batch_before_ = scout.next();
        return false;
    }
    ring_ = scout;
    executed_count_.store(executed_count() + batch_.size(), std::memory_order_relaxed);
    next_.store(ring_.next(), std::memory_order_release);
    publish_head(false);
    return true;
}

/// False: there are not so many; `scout` is behind the one that does not fit, or where none is.
bool CommandLoop::collect_batch(wire::RingConsumer* scout) {
    const Batches& batches = hooks_.batches;
    batch_.clear();
    batch_.reserve(batches.size);
    batch_copies_.resize(batches.size);
    while (batch_.size() < batches.size) {
        Command next;
        const char* reason = nullptr;
        if (scout->peek(&next.header, &reason) != wire::PeekStatus::kReady) {
            return false;  // A malformed one is told of when it is its turn.
        }
        const wire::CommandView view = next.header;
        bool joins = view.op == batches.op && view.flags == 0;
        if (joins) {
            take_bytes(&next, &batch_copies_[batch_.size()]);
            joins = batches.joins(batch_, next);
        }
        if (joins || batch_.empty()) {  // Else it may be the first of the next.
            scout->advance(view);
        }
        if (!joins) {
            return false;
        }
        batch_.push_back(next);
    }
    return true;
}

std::optional<wire::CommandView> CommandLoop::next_command() const {
    wire::RingConsumer scout = ring_;
    scout.advance(command_.header);
    wire::CommandView view;
    const char* reason = nullptr;
    return scout.peek(&view, &reason) == wire::PeekStatus::kReady ? std::optional(view)
                                                                  : std::nullopt;
}

void CommandLoop::pass(std::uint64_t position) {
    if (hooks_.on_passed) {
        hooks_.on_passed(position);
    }
}

/// Copies what the command has in the ring, and lets it point there.
void CommandLoop::take_bytes(Command* command, std::vector<std::byte>* copy) {
    wire::CommandView& view = command->header;
    command->trailing_is_shared = has_data_trailing(view.op);
    const std::size_t args_room = wire::align_up(view.args_bytes, 8);
    const std::size_t bytes =
        command->trailing_is_shared ? view.args_bytes : args_room + view.trailing_bytes;
    if (copy->size() < bytes) {
        copy->resize(bytes);
    }
    if (bytes != 0) {
        std::memcpy(copy->data(), view.args, bytes);
    }
    command->args = std::span(*copy).first(view.args_bytes);
    command->trailing = command->trailing_is_shared
                            ? std::span(view.trailing, view.trailing_bytes)
                            : std::span<const std::byte>(*copy).subspan(std::min(args_room, bytes),
                                                                        view.trailing_bytes);
    view.args = command->args.data();
    view.trailing = command->trailing.data();
}

/// The command that peek() has found.
void CommandLoop::execute() {
    wire::CommandView& view = command_.header;
    take_bytes(&command_, &copy_);
    if (is_streaming_) {
        ring_.ask_ahead(view);  // While the driver is busy.
    }
    hooks_.execute(command_);
    // Only this thread counts, so no locked instruction is needed.
    executed_count_.store(executed_count() + 1, std::memory_order_relaxed);
}

void CommandLoop::publish_head(bool force) {
    const std::uint64_t kept = hooks_.kept_from ? hooks_.kept_from() : 0;
    const std::uint64_t next = kept != 0 ? std::min(kept, ring_.next()) : ring_.next();
    if (next == head_published_ || (!force && next - head_published_ < kHeadStepBytes)) {
        return;
    }
    head_published_ = next;
    auto& head = memory_->host_words().head;
    head.store(next, std::memory_order_release);
    if (memory_->sleep() != wire::Sleep::kFutex) {
        return;
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (memory_->guest_words().ring_waiting.load(std::memory_order_relaxed) != 0) {
        wake_word(head);
    }
}

/// A guest that has just got its answer may ask again in less time than the rest takes. True when
/// it has; not looked for while a call waits, nor for long.
bool CommandLoop::is_next_due() {
    if (was_idle_ || breached_ || (hooks_.is_poll_due && hooks_.is_poll_due())) {
        return false;
    }
    for (int look = 0; look < kFirstLooks; ++look) {
        if (ring_.has_next()) {
            return true;
        }
        wire::cpu_relax();
    }
    return false;
}

/// False when the loop is another thread's.
bool CommandLoop::idle() {
    is_streaming_ = false;
    if (is_next_due()) {
        return true;
    }
    publish_head(true);
    if (hooks_.on_idle) {
        hooks_.on_idle();
    }
    if (hooks_.wait_here && !breached_) {
        const Waited waited = hooks_.wait_here();
        if (waited != Waited::kNot) {
            return waited == Waited::kHere;
        }
    }
    bool pending = hooks_.poll();
    // While a call waits, asking the driver is all the pause there is: its answer is due as soon
    // as the device is done.
    for (int look = 0; pending && look < kWatches; ++look) {
        if (!breached_ && ring_.has_next()) {
            return true;
        }
        pending = hooks_.poll();
        if (pending && look + 1 == kWatches) {
            was_idle_ = false;
            return true;
        }
    }
    for (int look = 0; look < kLooks; ++look) {
        if (!breached_ && ring_.has_next()) {
            return true;
        }
        wire::cpu_relax();
    }
    const auto now = std::chrono::steady_clock::now();
    const std::uint32_t awake_us = hooks_.awake_us ? hooks_.awake_us() : 0;
    const bool was_answered = was_awaited_ && awake_us == 0;
    if (!was_idle_ || was_answered) {
        was_idle_ = true;
        idle_since_ = now;
    }
    was_awaited_ = awake_us != 0;
    const auto idle_for = now - idle_since_;
    if (pending || idle_for < std::chrono::microseconds(std::max(spin_now_us_, awake_us))) {
        if (!has_processors_) {
            sched_yield();  // The guest, or its device, may wait for this very one.
        }
        return true;
    }
    if (memory_->sleep() == wire::Sleep::kPoll) {
        // 5 us after the spin, then growing with the time idle.
        const auto nap =
            std::min<std::int64_t>(awake_us != 0 ? kAwaitedNapNs : kNapNs,
                                   5'000 + std::chrono::nanoseconds(idle_for).count() / 8);
        timespec time{0, static_cast<long>(nap)};
        nanosleep(&time, nullptr);
        return true;
    }
    auto& words = memory_->host_words();
    const std::uint32_t bell = memory_->guest_words().doorbell.load(std::memory_order_acquire);
    words.consumer_sleeps.store(sleeps_.next(), std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    wire::CommandView view;
    const char* reason = nullptr;
    if (mode_.load(std::memory_order_acquire) == Mode::kRunning &&
        (breached_ || ring_.peek(&view, &reason) == wire::PeekStatus::kEmpty)) {
        const bool is_short = hooks_.gate.has_marks && hooks_.gate.has_marks();
        wire::futex_wait(&memory_->guest_words().doorbell, bell,
                         is_short ? kMarkedNapNs : hooks_.sleep_slice_ns);
    }
    words.consumer_sleeps.store(0, std::memory_order_relaxed);
    return true;
}

}  // namespace gantry::worker
