// CallWaits: calls that wait for the device: where they do so, and how their end is noticed. And
// between these looks, what events and bulk copies have come to.
//
// HERE. The call of a guest that uses one lane waits on the loop's own thread, as soon as the ring
// has nothing more; the loop is lent meanwhile (command_loop.h). It waits inside the driver, as
// natively, and nothing else is asked of the driver or the device; but where the command right in
// front of it has queued work in the same stream, it first looks at a word for a while
// (GuestStreams::synchronise()). Such a word is on its way while the device is at work, and shows
// its end 0.5 to 1 us before the driver does (H200, driver 580); on a device that has nothing to do
// it takes 4 us. Behind that very work it waits for nothing else: not in the legacy stream either,
// where it would for what blocking streams got meanwhile. The word is queued right behind the work
// where the guest says that it will wait (kCommandIsAwaited), or its wait is in the ring by then.
// BY A WORD. Else the driver is asked whether the call would wait, and if so the device writes a
// word behind the work, which the loop looks at between commands.
// ON A LANE'S THREAD. What has no word, or has waited for long, goes to its lane's executor.
//
// Owner: Execution. Threads: the loop's, which is one at a time; the counts: any. What concerns the
// waiting calls themselves may also be asked while the loop is sealed. Cost: a command that does
// not wait costs a few comparisons.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "host-daemon/execution/dispatch/call.h"
#include "host-daemon/execution/process/guest_process.h"
#include "host-daemon/execution/ring/command_loop.h"

namespace gantry::worker {

class CallWaits {
public:
    /// `loop` is used once commands are executed.
    CallWaits(GuestProcess& process, CommandLoop& loop, std::uint32_t spin_us);
    CallWaits(const CallWaits&) = delete;
    CallWaits& operator=(const CallWaits&) = delete;

    // ---- the loop's thread
    /// A channel is served from now on.
    void begin() { on_loop_.shown_bytes = 0; }
    void note_lane(std::uint32_t lane);
    /// The guest's call waits for the device, as far as is known without asking the driver.
    void wait_or_run(Call& call);
    /// Notes where the call has queued work. If the next command waits for that, as the guest says
    /// or the ring shows, its word is queued now: behind a small copy each step that comes first is
    /// seen in its time.
    void expect_wait(const Call& call);
    /// These launches have queued work in the stream.
    void note_batch(std::span<const Command> batch, CUstream stream);
    /// True while something is to be looked at again without a pause.
    bool poll();
    [[nodiscard]] bool is_poll_due() const {
        return !on_loop_.waiting.empty() || process_.streams.bulk_board.has_arrivals();
    }
    /// Lends the loop while the call that may wait here does.
    CommandLoop::Waited wait_here();
    /// How long the loop stays awake because a call waits on another thread; 0: none does.
    [[nodiscard]] std::uint32_t awake_us() const { return waits_elsewhere() ? awake_us_ : 0; }

    // ---- any thread
    [[nodiscard]] std::size_t count() const {
        const std::size_t waiting = count_.load();  // First: they go from here to there.
        return waiting + here_count_.load();
    }
    /// A call waits on another thread than the loop's.
    [[nodiscard]] bool waits_elsewhere() const {
        return here_count_.load() != 0 || process_.executors().busy_count() != 0;
    }

    // ---- while the loop is sealed
    /// All of them wait for host callbacks.
    [[nodiscard]] bool are_all_held() const;
    [[nodiscard]] std::set<std::uint64_t> positions() const;

private:
    using Time = std::chrono::steady_clock::time_point;
    struct Waiting {
        std::shared_ptr<Call> call;
        Time since;
        CUstream stream = nullptr;              ///< The word's.
        std::optional<WaitWords::Ticket> word;  ///< Lands when what the call waits for has ended.
        Time ask_at;                            ///< ... or the driver tells an error.
        bool may_have_word = false;             ///< It was not tried yet.
        bool waits_here = false;                ///< Unless another call comes to wait first.
    };
    /// Only the loop's thread uses these.
    struct OfLoopThread {
        std::vector<Waiting> waiting;
        std::uint32_t last_lane = 0;
        std::uint32_t commands_of_lane = 0;  ///< Of the last one, in a row.
        std::optional<BusyStream> queued;    ///< Where the last command has queued work.
        Time events_due;
        Time broken_due;
        std::uint64_t shown_bytes = 0;
    };

    void begin_wait(const Call& call);
    bool watch_waiting(Time now);
    bool has_come(Waiting& waiting, Time now);
    void begin_watch(Waiting& waiting, Time now);
    [[nodiscard]] bool is_alone() const;
    [[nodiscard]] bool ends_with(const wire::CommandView& wait, CUstream stream) const;
    /// Asks now and then only.
    bool finds_broken(Time now);
    /// Shows the guest's other programs how much memory this one has (nvidia-smi).
    void show_memory();

    GuestProcess& process_;
    CommandLoop& loop_;
    OfLoopThread on_loop_;
    std::atomic<std::size_t> count_{0};       ///< Of on_loop_.waiting.
    std::atomic<std::size_t> here_count_{0};  ///< On threads that lent the loop.
    const std::uint32_t awake_us_;  ///< How long the loop stays awake while a call waits elsewhere.
    const std::uint32_t wait_spin_us_;  ///< How long a call that waits is looked at before a thread
                                        ///< of its own waits for it.
};

}  // namespace gantry::worker
