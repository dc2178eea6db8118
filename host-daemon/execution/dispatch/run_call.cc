#include "host-daemon/execution/dispatch/run_call.h"

#include <mutex>
#include <shared_mutex>

#include "host-daemon/execution/dispatch/handlers.h"
#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry::worker {
namespace {

CUresult handle(Call& call) {
    if (const Handler handler = find_handler(call.number()); handler != nullptr) {
        return handler(call);
    }
    return dispatch(call, call.op(), call.args(), call.trailing_bytes(), call);
}

void note_work(const Call& call, GuestProcess& process, CUresult result) {
    if (call.is_deferred() || process.graphs.captures.any()) {
        process.held.mark_irregular();
        return;
    }
    process.held.note(call.command(), result == CUDA_SUCCESS);
}

/// On a card that was full the first of the guest's calls that needs a context tries again to have
/// one: its result is that call's, and the next one tries anew.
CUresult enter_context(Call& call) {
    GuestProcess& process = call.process();
    if (__builtin_expect(!process.device.has_context(), 0) && call.number() >= cuda::kFirstOp &&
        !process.device.make_context().ok()) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return process.contexts.enter(call.header().context);
}

}  // namespace

void run_call(Call& call) {
    GuestProcess& process = call.process();
    std::shared_lock changes(process.lane_changes, std::defer_lock);
    if (call.may_wait() && !is_pollable(call)) {
        changes.lock();
    }
    LayoutHold layout;
    if (call.has(kEndsCode)) {
        process.launches.forget_all();
    }
    if (call.has(kEndsMemory)) {
        layout = process.memory.device.hold_layout();
    }
    CUresult result = enter_context(call);
    const bool is_noted = process.held.begin_touches(call.command(), process.graphs.captures.any());
    result = result == CUDA_SUCCESS ? call.failure() : result;
    if (result == CUDA_SUCCESS && !call.has_ended()) {
        result = handle(call);
    }
    if (layout.owns_lock()) {
        layout.unlock();
    }
    if (is_noted && !call.may_wait()) {
        note_work(call, process, result);
    }
    if (call.is_deferred()) {
        process.executors().post(call.lane(), [kept = call.keep()] { run_call(*kept); });
        return;
    }
    if (call.has(kMayBlock)) {
        if (!call.has_ended()) {  // Nothing was asked that could have printed.
            process.channel.output.collect();
        }
        if (process.memory.device.has_parked()) {
            process.memory.device.reap(false);
        }
    }
    if (call.has(kTellsOfCompletion)) {
        process.streams.look_at_events(GuestStreams::Look::kAll);
        if (process.streams.bulk_board.has_arrivals()) {
            // Others free room only: the next look is soon enough.
            process.streams.look_at_bulk_copies();
        }
    }
    call.finish(result);
}

CUresult replay(GuestProcess& process, const RecordedCommand& recorded, Replay why,
                std::uint64_t wanted_native) {
    Command command;
    command.header.op = recorded.op;
    command.header.lane = recorded.lane;
    command.header.context = recorded.context;
    command.header.args_bytes = static_cast<std::uint32_t>(recorded.args.size());
    command.header.trailing_bytes = static_cast<std::uint32_t>(recorded.trailing.size());
    command.args = recorded.args;
    command.trailing = recorded.trailing;
    Call call(process, command);
    call.mark_replay(why, wanted_native);
    const CUresult entered = process.contexts.enter(recorded.context);
    return entered == CUDA_SUCCESS ? handle(call) : entered;
}

}  // namespace gantry::worker
