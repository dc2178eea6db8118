// Execution: executes the commands of one guest process, and stops and hands over that work.
//
// WHAT. It takes the commands that the loop takes from the ring: control commands and CUDA calls
// with hand-written payloads go to the handlers (calls/), all others to generated dispatch. What
// may block runs on the calling lane's executor thread; everything else on the consumer thread.
//
// ANSWERS. A synchronous command is answered exactly once, by whoever runs it. Errors of commands
// without an answer are kept per lane and reported by that lane's next answer; a sticky error is
// put into HostWords.sticky_error as well (process/error_ledger.h).
//
// Owner: the worker's service; it outlives no guest. Threads: the control thread. Failure: what the
// guest sends can fail only its own calls; a broken ring closes the channel and is reported by
// on_breach.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "host-daemon/execution/dispatch/call_waits.h"
#include "host-daemon/execution/dispatch/channel_state.h"
#include "host-daemon/execution/process/guest_process.h"
#include "host-daemon/execution/ring/command_loop.h"

namespace gantry::worker {

class Execution {
public:
    Execution(Device& device, OutputCapture& output, const ProcessOptions& options);
    ~Execution();
    Execution(const Execution&) = delete;
    Execution& operator=(const Execution&) = delete;

    /// Serves a channel from its beginning (generation << kGenerationShift). Not one whose program
    /// has begun (guest.worker_lost): that is told that its worker is dead.
    Result<void> serve(std::unique_ptr<ChannelMemory> memory, std::uint64_t generation);
    /// Takes a channel over where another worker left it: publishes every host-owned word and the
    /// kept answers again, then goes on.
    Result<void> take_over(std::unique_ptr<ChannelMemory> memory, const ChannelState& state,
                           std::uint64_t epoch);
    /// Ends serving; the channel's memory is given back. The guest gets no further answer.
    std::unique_ptr<ChannelMemory> detach();
    [[nodiscard]] bool serving() const { return process_.channel.is_open(); }
    /// The guest is gone: ends what waits for it.
    void abandon() { process_.channel.callbacks.cancel(); }
    /// Tells the guest that a migration is under way (or no longer).
    void announce(bool migrating);
    /// The session was granted away: the guest here gets a hard error for whatever it does. Memory
    /// that a hypervisor moves is written only if `guest_is_here`: else the guest runs elsewhere,
    /// and may be pulling that very page.
    void disown(bool guest_is_here);
    /// Undoes disown, for a session that came back unserved.
    void own_again();

    /// Stops at a command boundary and drains the device. On error it runs on as before.
    Result<std::chrono::microseconds> freeze(std::chrono::microseconds deadline);
    void thaw();
    [[nodiscard]] bool frozen() const { return frozen_; }
    [[nodiscard]] Result<ChannelState> channel_state() const;  ///< Only while frozen.
    /// The driver's streams hold work that was carried to another worker: they must never run on.
    [[nodiscard]] bool has_carried_work() const { return has_carried_work_; }

    [[nodiscard]] GuestProcess& process() { return process_; }
    [[nodiscard]] const GuestProcess& process() const { return process_; }
    [[nodiscard]] CommandLoop& loop() { return loop_; }

    // Set before a channel is served; called on the loop's thread.
    std::function<void(const std::string&)> on_breach;
    /// The first command that no other worker has executed, behind a take-over.
    std::function<void(std::uint64_t)> on_first_command;

private:
    CommandLoop::Hooks hooks(const ProcessOptions& options);
    void execute(const Command& command);
    bool execute_batch(std::span<const Command> batch);
    void callback_command(const wire::CommandView& view, std::span<const std::byte> args);
    [[nodiscard]] std::uint64_t kept_from();
    /// False: the call needs no device.
    bool refuse_for_lost_context(Call& call);
    [[nodiscard]] bool is_drained_to_callbacks();
    void go_on_with_profile(const ChannelMemory& memory, const ChannelState& state,
                            std::uint64_t epoch);
    /// No call runs or waits on any thread.
    [[nodiscard]] bool is_quiet() const {
        return process_.executors().busy_count() == 0 && waits_.count() == 0;
    }

    /// Only the loop's thread uses these once a channel is served.
    struct OfLoopThread {
        bool is_first_command_due = false;
        /// Below it commands may be executed again, after a move.
        std::uint64_t first_new_position = 0;
    };

    GuestProcess process_;
    bool frozen_ = false;
    std::chrono::system_clock::time_point freeze_began_;
    bool has_carried_work_ = false;
    OfLoopThread on_loop_;
    CallWaits waits_;
    CommandLoop loop_;
};

}  // namespace gantry::worker
