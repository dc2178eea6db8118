#include "host-daemon/execution/dispatch/execution.h"

#include <cstring>

#include "host-daemon/execution/base/crash_log.h"
#include "host-daemon/execution/base/log.h"
#include "host-daemon/execution/dispatch/run_call.h"
#include "proto/cuda/gen/op_flags.h"
#include "proto/cuda/gen/op_table.h"
#include "proto/cuda/gen/wire_structs.h"

namespace gantry::worker {
namespace {

/// A guest that computes between its calls, for no longer than this, finds its worker awake.
std::uint32_t long_spin_us(std::uint32_t spin_us) {
    constexpr std::uint32_t kPauseUs = 500;
    return spin_us != 0 && has_processors_to_spin() ? kPauseUs : 0;
}

bool may_ever_wait_here(const ProcessOptions& options) {
    return options.wait_here == ProcessOptions::WaitHere::kWithProcessorsToSpare
               ? options.spin_us != 0 && has_processors_to_spin()
               : options.wait_here == ProcessOptions::WaitHere::kAlways;
}

constexpr std::size_t kPollEvery = 64;  // Look at waiting calls that often while the ring is full.

/// Of the ring's own commands those that ask nothing of the device.
bool needs_device(std::uint16_t op) {
    using wire::ControlOp;
    if (op >= cuda::kFirstOp) {
        return true;
    }
    switch (static_cast<ControlOp>(op)) {
        case ControlOp::kWriteDevice:
        case ControlOp::kReadDevice:
        case ControlOp::kLookAtEvent:
        case ControlOp::kWriteFromBulk:
        case ControlOp::kReadToBulk:
        case ControlOp::kLookAtBulk: return true;
        default: return false;
    }
}

bool launches(std::uint16_t op) {
    switch (static_cast<cuda::Op>(op)) {
        case cuda::Op::cuLaunchKernel:
        case cuda::Op::cuLaunchKernelEx:
        case cuda::Op::cuLaunchCooperativeKernel:
        case cuda::Op::cuGraphLaunch: return true;
        default: return false;
    }
}

/// Others that may block take long by themselves: they load code.
bool waits_for_device(const Call& call) {
    return call.number() == static_cast<std::uint16_t>(wire::ControlOp::kReadDevice) ||
           (cuda::op_flags(call.op()) & cuda::kOpMayBlock) != 0;
}

/// What the next launch's times are known by. Read from the ring: a guest that changes it meanwhile
/// gets another prediction for itself.
std::uint64_t key_of(const wire::CommandView& view) {
    if (view.op == static_cast<std::uint16_t>(cuda::Op::cuGraphLaunch)) {
        gantry::cuda::wire::cuGraphLaunch_call graph{};
        if (view.args_bytes >= sizeof(graph)) {
            std::memcpy(&graph, view.args, sizeof(graph));
        }
        return graph.hGraph;
    }
    cuda::wire_hand::LaunchCall launch{};
    if (view.args_bytes >= sizeof(launch)) {
        std::memcpy(&launch, view.args, sizeof(launch));
    }
    return launch_key(launch);
}

}  // namespace

Execution::Execution(Device& device, OutputCapture& output, const ProcessOptions& options)
    : process_(device, output, options),
      waits_(process_, loop_, options.spin_us),
      loop_(hooks(options), options.spin_us, long_spin_us(options.spin_us)) {
    process_.channel.help_callbacks = [this] { loop_.help_callbacks(); };
    if (!device.can_place()) {
        // Every lane's thread now: a stack that is mapped later would change where the driver puts
        // what it allocates then (channel_memory.cc).
        for (std::uint32_t lane = 0; lane <= LaneExecutors::kChoreLane; ++lane) {
            process_.executors().post(lane, [] {});
        }
    }
}

Execution::~Execution() {
    abandon();
    loop_.stop();
    process_.stop_executors();
}

CommandLoop::Hooks Execution::hooks(const ProcessOptions& options) {
    CommandLoop::Hooks hooks;
    hooks.on_start = [this] { process_.contexts.bind_thread(); };
    hooks.execute = [this](const Command& command) { execute(command); };
    hooks.poll = [this] {
        process_.launch_gate.poll(false);
        return waits_.poll();
    };
    hooks.gate.word = &process_.launch_gate.word();
    hooks.gate.may_pass = [this](const wire::CommandView& view) {
        const bool may_pass = !launches(view.op) || process_.launch_gate.may_launch(key_of(view));
        if (__builtin_expect(process_.channel.profile.is_on(), 0)) {
            process_.channel.profile.held(!may_pass);
        }
        return may_pass;
    };
    hooks.gate.may_batch = [this] { return process_.launch_gate.may_batch(); };
    hooks.gate.has_marks = [this] { return process_.launch_gate.has_marks(); };
    hooks.on_idle = [this] { process_.launch_gate.poll(true); };
    hooks.on_callback = [this](const wire::CommandView& view, std::span<const std::byte> args) {
        callback_command(view, args);
    };
    hooks.on_breach = [this](const std::string& reason) {
        log_line("the ring is malformed: %s; the channel stops", reason.c_str());
        if (on_breach) {
            on_breach(reason);
        }
    };
    hooks.kept_from = [this] { return kept_from(); };
    hooks.on_passed = [this](std::uint64_t position) {
        if (process_.held.active()) {
            process_.held.begin(position);
        }
    };
    if (may_ever_wait_here(options)) {
        hooks.wait_here = [this] { return waits_.wait_here(); };
    }
    hooks.is_poll_due = [this] { return waits_.is_poll_due(); };
    hooks.awake_us = [this] { return waits_.awake_us(); };
    hooks.batches.size = process_.launches.batch_size();
    hooks.batches.op = static_cast<std::uint16_t>(cuda::Op::cuLaunchKernel);
    hooks.batches.joins = [this](std::span<const Command> batch, const Command& next) {
        return process_.launches.joins(batch, next);
    };
    hooks.batches.execute = [this](std::span<const Command> batch) { return execute_batch(batch); };
    return hooks;
}

void Execution::execute(const Command& command) {
    if (on_loop_.is_first_command_due && command.header.position >= on_loop_.first_new_position) {
        on_loop_.is_first_command_due = false;
        process_.launches.hold_back(false);
        if (on_first_command) {
            on_first_command(command.header.position);
        }
    }
    note_command(command.header.op);
    Call call(process_, command);
    waits_.note_lane(call.lane());
    if (__builtin_expect((command.header.flags & wire::kCommandNewThread) != 0, 0)) {
        // Natively the calls that failed told the thread that has ended.
        static_cast<void>(process_.errors.take(call.lane()));
        process_.streams.drop_lane_capture(call.lane());
    }
    if (__builtin_expect(process_.errors.has_lost_context(), 0) && refuse_for_lost_context(call)) {
        return;
    }
    if (command.header.op != static_cast<std::uint16_t>(wire::ControlOp::kConfirm)) {
        process_.memory.pinned_writes.note_work();
    }
    if (process_.held.active()) {
        process_.held.begin(command.header.position);
    }
    if (call.has(kMayBlock)) {
        if (__builtin_expect(process_.channel.profile.is_on(), 0) && waits_for_device(call)) {
            call.begin_device_wait();
        }
        waits_.wait_or_run(call);
    } else {
        run_call(call);
    }
    waits_.expect_wait(call);
    if (loop_.executed_count() % kPollEvery == 0) {
        waits_.poll();
    }
}

/// False where it does nothing: then each of them is executed by itself.
bool Execution::execute_batch(std::span<const Command> batch) {
    const std::optional<CUstream> stream = process_.launches.launch_batch(batch);
    if (!stream) {
        return false;
    }
    if (!process_.launch_gate.is_open()) {
        const auto last = batch.back().arguments<cuda::wire_hand::LaunchCall>();
        process_.launch_gate.launched(*stream, last ? launch_key(*last) : 0);
    }
    waits_.note_batch(batch, *stream);
    waits_.poll();
    return true;
}

void Execution::callback_command(const wire::CommandView& view, std::span<const std::byte> args) {
    if (view.op == static_cast<std::uint16_t>(wire::ControlOp::kWaitCallback)) {
        process_.channel.callbacks.wait({view.position, view.lane});
    } else if (wire::CallbackDoneCall done{}; args.size() == sizeof(done)) {
        std::memcpy(&done, args.data(), sizeof(done));
        (void)process_.callback_done(done.callback_id);
    }
}

/// What is held must stay in the ring; but a ring that is full of it would stop the guest for good,
/// so a move rather waits for the callbacks.
std::uint64_t Execution::kept_from() {
    if (!process_.held.active() || !process_.held.is_regular()) {
        return 0;
    }
    const std::uint64_t first = process_.held.first_position();
    if (first != 0 && loop_.next() - first > process_.channel.memory()->layout().ring_bytes / 2) {
        process_.held.mark_irregular();
        return 0;
    }
    return first;
}

bool Execution::refuse_for_lost_context(Call& call) {
    if (!needs_device(call.number())) {
        return false;
    }
    // A context with such an error cannot be reset.
    const bool resets =
        call.number() == static_cast<std::uint16_t>(cuda::Op::cuDevicePrimaryCtxReset_v2);
    call.finish(resets ? CUDA_ERROR_NOT_PERMITTED
                       : static_cast<CUresult>(process_.errors.sticky()));
    return true;
}

}  // namespace gantry::worker
