// CommandLoop: the one thread that takes commands from the ring, in ring order, each exactly once.
//
// WHAT. peek, copy, check, execute, advance. The executor that it calls must not block; what may
// block goes to the lanes' executors. Guest-owned bytes are copied before anything looks at them;
// only the trailing bytes of pure data commands (kWriteDevice, kStageImage) are read where they
// lie.
//
// HOLDING. hold() stops the loop at a command boundary: next() does not move any more. Until
// seal(), commands that concern host callbacks are still executed out of order, because a stream
// that waits for a callback in the guest could not drain otherwise; their positions are remembered
// and skipped later (executed_ahead(), part of the snapshot). The same happens while a driver holds
// the loop up inside a command (help_callbacks()). resume() goes on as if nothing had happened.
//
// LENDING. A call that waits inside the driver may do so on the loop's own thread, which spares a
// short wait the way to another thread and back: the thread lends the loop (lend()), makes the
// call, answers, and takes the loop back (take_back()). A second thread, the stand-in, looks every
// kStandInNap whether the loop is lent for longer than that; then it goes on with the loop, and the
// thread that waited stands in from then on. So a wait that never ends holds up the other lanes,
// and a hold(), for two naps at most. The loop is lent at a command boundary with an empty ring
// only.
//
// SLEEPING. Spins for spin_us, then tells the guest (HostWords.consumer_sleeps) and sleeps on the
// doorbell; with a VM border in between it naps in growing steps instead. A guest whose last pause
// was shorter than long_spin_us is spun for that long: waking up takes as long as a launch. So is
// one that is about to be answered (Hooks::awake_us), and its wait is no pause of its own.
//
// BATCHES. Commands that wait in the ring one behind the other may be executed together
// (Hooks::batches): those that have been waiting when the command before them had ended, each
// looked at once. The loop is at no command boundary between them, and whatever does not fit is
// executed by itself.
//
// FAILURE. A malformed record ends the loop: on_breach is called once with the reason.
// Threads: the loop has one at a time, of the two that run(); lend() and take_back() are called on
// it, the other calls come from the control thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "host-daemon/execution/ring/channel_memory.h"
#include "host-daemon/execution/ring/command.h"
#include "proto/base/mutex.h"
#include "proto/wire/ring.h"

namespace gantry::worker {

/// Fewer processors have better things to do than to wait.
inline bool has_processors_to_spin() {
    constexpr unsigned kCpusToSpin = 4;
    return std::thread::hardware_concurrency() >= kCpusToSpin;
}

class CommandLoop {
public:
    enum class Waited {
        kNot,       ///< Nothing waits that may do so here.
        kHere,      ///< The loop was lent and taken back.
        kReplaced,  ///< ... or not: the stand-in has it.
    };
    /// Commands that may be executed together where they stand in the ring one behind the other.
    struct Batches {
        std::size_t size = 0;  ///< So many; 0: never.
        std::uint16_t op = 0;  ///< All have this one, and want no answer.
        /// Whether `next` may follow those; an empty batch: whether it may be the first.
        std::function<bool(std::span<const Command> batch, const Command& next)> joins = nullptr;
        /// False: none of them was executed.
        std::function<bool(std::span<const Command>)> execute = nullptr;
    };
    /// Keeps commands in the ring that may not be executed yet.
    struct Gate {
        /// Where the word is that is 0 while the gate is open; null: there is no gate.
        const std::atomic<const std::atomic<std::uint32_t>*>* word = nullptr;
        /// Not asked while it is open. False: not yet, having waited a little.
        std::function<bool(const wire::CommandView&)> may_pass = nullptr;
        std::function<bool()> may_batch = nullptr;
        /// The loop must not sleep for long: it has to tell when work ends.
        std::function<bool()> has_marks = nullptr;
        [[nodiscard]] bool is_open() const {
            return word == nullptr ||
                   word->load(std::memory_order_acquire)->load(std::memory_order_relaxed) == 0;
        }
    };
    struct Hooks {
        std::function<void()> on_start;  ///< In each thread that may be the loop's, first.
        std::function<void(const Command&)> execute;
        /// Looks at what is pending without blocking; true while something is, and then it is asked
        /// again without a pause.
        std::function<bool()> poll;
        /// Executes a command of host callbacks out of order, without a call of the driver's.
        std::function<void(const wire::CommandView&, std::span<const std::byte> args)> on_callback;
        std::function<void(const std::string&)> on_breach;
        /// From where on the ring is not given back to the guest although executed; 0: nothing.
        std::function<std::uint64_t()> kept_from;
        /// The loop passes a command that was executed before its turn, or by another worker.
        std::function<void(std::uint64_t)> on_passed;
        /// The ring is empty. May lend the loop for as long as a call waits. Null: no stand-in.
        std::function<Waited()> wait_here = nullptr;
        /// True while poll() is due at once: it is asked before the loop looks at anything else.
        std::function<bool()> is_poll_due = nullptr;
        /// How long to stay awake at least, because a call waits on another thread: the guest goes
        /// on as soon as that answers. 0: none does.
        std::function<std::uint32_t()> awake_us = nullptr;
        Batches batches = {};
        Gate gate = {};
        std::function<void()> on_idle = nullptr;  ///< The ring is empty.
        /// The longest sleep: the bound on noticing a change of mode when its wake-up was missed.
        std::uint64_t sleep_slice_ns = 50'000'000;
    };

    /// `long_spin_us`: at least `spin_us`; 0: the same.
    CommandLoop(Hooks hooks, std::uint32_t spin_us, std::uint32_t long_spin_us = 0)
        : hooks_(std::move(hooks)),
          spin_us_(spin_us),
          long_spin_us_(std::max(spin_us, long_spin_us)),
          spin_now_us_(spin_us) {
        // Now: a stack that is mapped when the guest has begun would change where a driver puts
        // what it allocates then (channel_memory.cc).
        begin_stand_in();
    }
    ~CommandLoop() { stop(); }
    CommandLoop(const CommandLoop&) = delete;
    CommandLoop& operator=(const CommandLoop&) = delete;

    /// `next` is the position of the first command; `skip` those behind it that were executed.
    void start(ChannelMemory* memory, std::uint64_t next, std::set<std::uint64_t> skip);
    void stop();

    /// False when the loop did not come to a boundary in time (then it is not held).
    bool hold(std::chrono::steady_clock::time_point deadline);
    /// While held: from now on no callback command is executed any more either. Returns when the
    /// loop has noticed.
    void seal();
    /// Back from sealed to held.
    void unseal() { set_mode(Mode::kHolding); }
    void resume();

    [[nodiscard]] std::uint64_t next() const { return next_.load(std::memory_order_acquire); }
    /// Only while sealed.
    [[nodiscard]] std::set<std::uint64_t> executed_ahead() const {
        const MutexLock lock(ahead_mutex_);
        return executed_ahead_;
    }
    [[nodiscard]] std::uint64_t executed_count() const {
        return executed_count_.load(std::memory_order_relaxed);
    }
    /// Executes the host callbacks' commands that lie behind the one the loop is busy with. A
    /// driver may hold the loop up inside a launch until a callback has ended, and what says so
    /// lies behind that launch. For the threads that wait for a callback's end; cheap while the
    /// loop moves.
    void help_callbacks();
    /// Nudges the loop out of its sleep.
    void wake();

    /// On the loop's thread, in a command: it was there when the one before it had ended.
    [[nodiscard]] bool is_streaming() const { return is_streaming_; }
    /// On the loop's thread, in a command that is executed by itself: the one behind it, if it is
    /// there already. Its arguments lie in the region: by its turn the guest may have changed them.
    [[nodiscard]] std::optional<wire::CommandView> next_command() const;
    [[nodiscard]] bool has_stand_in() const { return hooks_.wait_here != nullptr; }
    /// On the loop's thread, inside Hooks::wait_here: it will be away for a while.
    void lend();
    /// It is back. False: the loop is another thread's by now.
    [[nodiscard]] bool take_back();

private:
    enum class Mode : std::uint32_t { kRunning, kHolding, kSealed, kStopping };

    void run(bool serves);
    bool serve();
    bool stand_in();
    void begin_stand_in();
    void ring_stand_in();
    void end_pause();
    bool step();  ///< False when the ring is empty or malformed.
    bool step_batch();
    bool stays_back();
    bool collect_batch(wire::RingConsumer* scout);
    void take_bytes(Command* command, std::vector<std::byte>* copy);
    void execute();
    void pass(std::uint64_t position);
    void publish_head(bool force);
    bool idle();
    bool is_next_due();
    void look_ahead();
    void execute_ahead(const wire::CommandView& view, std::span<const std::byte> args)
        GANTRY_REQUIRES(ahead_mutex_);
    bool stay_held();
    void set_mode(Mode mode);

    Hooks hooks_;
    std::uint32_t spin_us_;
    std::uint32_t long_spin_us_;
    const bool has_processors_ = has_processors_to_spin();
    std::uint32_t spin_now_us_;  ///< The loop's thread: one of the two.
    ChannelMemory* memory_ = nullptr;
    wire::RingConsumer ring_;
    wire::RingConsumer ahead_;
    wire::SleepNumbers sleeps_;  ///< The loop's thread.
    Command command_;            ///< The loop's thread: the one in hand, and its bytes.
    std::vector<std::byte> copy_;
    std::vector<Command> batch_;  ///< The loop's thread.
    std::vector<std::vector<std::byte>> batch_copies_;
    std::uint64_t no_batch_before_ = 0;  ///< What lies in front of it was looked at.
    mutable Mutex ahead_mutex_;          ///< Who executes a callback's command holds it.
    std::set<std::uint64_t> executed_ahead_ GANTRY_GUARDED_BY(ahead_mutex_);
    /// Position + 1 of the last one.
    std::uint64_t callbacks_done_ GANTRY_GUARDED_BY(ahead_mutex_) = 0;
    /// next_ at the last help.
    std::uint64_t helped_at_ GANTRY_GUARDED_BY(ahead_mutex_) = 0;
    std::uint64_t head_published_ = 0;
    std::set<std::uint64_t> skip_;  ///< The loop's thread: executed before start().
    std::chrono::steady_clock::time_point idle_since_{};
    bool was_idle_ = false;
    bool was_awaited_ = false;   ///< The loop's thread: awake_us said so when it was last idle.
    bool is_streaming_ = false;  ///< The last command was there when the one before had ended.
    bool breached_ = false;
    std::atomic<std::uint64_t> next_{0};
    std::atomic<std::uint64_t> executed_count_{0};
    std::atomic<Mode> mode_{Mode::kRunning};
    Mutex mutex_;
    CondVar changed_;
    /// The mode the loop's thread acts on.
    Mode seen_ GANTRY_GUARDED_BY(mutex_) = Mode::kRunning;
    /// Odd while the loop is lent; who makes it even again has the loop.
    alignas(64) std::atomic<std::uint64_t> turn_{0};
    std::atomic<std::uint32_t> stand_in_bell_{0};
    std::atomic<bool> stand_in_sleeps_{false};
    std::vector<std::thread> threads_;
};

}  // namespace gantry::worker
