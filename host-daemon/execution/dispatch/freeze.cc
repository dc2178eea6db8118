// Execution: stopping at a command boundary, with the device run dry or nothing left but what
// waits for host callbacks, and the state of the channel that then goes to another worker.
#include <fmt/format.h>

#include <algorithm>

#include "host-daemon/driver/driver_library.h"
#include "host-daemon/execution/dispatch/execution.h"

namespace gantry::worker {

namespace region = gantry::wire;

namespace {

/// How long a freeze lets the guest finish its host callbacks before it carries them.
constexpr std::chrono::milliseconds kCallbackGrace{20};
/// ... and how long it then looks whether all else comes to rest.
constexpr std::chrono::milliseconds kCarryPatience{200};

}  // namespace

/// Everything has come to rest but what waits for host callbacks in the guest, and all of that can
/// be done again from the ring. Only while the loop is sealed.
bool Execution::is_drained_to_callbacks() {
    const HeldWork& held = process_.held;
    const CallbackBroker& callbacks = process_.channel.callbacks;
    if (!held.active() || !held.is_regular() || process_.graphs.captures.any() ||
        waits_.waits_elsewhere() || callbacks.outstanding() != held.root_count() ||
        !callbacks.has_reached(held.first_roots()) || process_.memory.device.has_parked() ||
        kept_from() == 0 || !waits_.are_all_held()) {
        return false;
    }
    const auto is_busy = [&](std::uint64_t key, CUstream stream) {
        return held.is_free(key, stream) &&
               process_.device.api().cuStreamQuery(stream) == CUDA_ERROR_NOT_READY;
    };
    for (const Object& stream : process_.objects.list_kind(HandleKind::kStream)) {
        if (is_busy(stream.handle, reinterpret_cast<CUstream>(stream.native))) {
            return false;
        }
    }
    for (std::uint32_t lane = 0; lane < region::kLaneCount; ++lane) {
        for (const CUstream stream : process_.streams.of_lanes().of_lane(lane)) {
            if (is_busy(HeldWork::key_of_lane(lane), stream)) {
                return false;
            }
        }
    }
    return !is_busy(0, nullptr);
}

Result<std::chrono::microseconds> Execution::freeze(std::chrono::microseconds deadline) {
    const auto begin = std::chrono::steady_clock::now();
    const auto end = begin + deadline;
    if (!serving()) {
        return Error{Code::kFailedPrecondition, "worker.state", "no guest is being served"};
    }
    freeze_began_ = std::chrono::system_clock::now();
    if (!loop_.hold(end)) {
        return Error{Code::kDeadlineExceeded, "drain.deadline",
                     "the command in hand did not end in time"};
    }
    process_.contexts.bind_thread();
    CallbackBroker& callbacks = process_.channel.callbacks;
    LaneExecutors& executors = process_.executors();
    auto drained = std::make_shared<std::atomic<int>>(-1);
    bool is_posted = false;
    bool is_sealed = false;
    bool is_carried = false;
    auto change_at = begin + kCallbackGrace;  // When to seal, or to give up being sealed.
    for (;;) {
        // Nothing of a poisoned context is waited for: its callbacks may never come.
        if (callbacks.outstanding() != 0 && process_.finds_broken() && is_quiet()) {
            break;
        }
        // A synchronisation is worth starting only when no callback can be queued any more.
        if (!is_posted && callbacks.outstanding() == 0 && is_quiet()) {
            is_posted = true;
            executors.post(LaneExecutors::kChoreLane, [this, drained] {
                drained->store(static_cast<int>(process_.streams.synchronise_device()));
            });
        }
        const auto now = std::chrono::steady_clock::now();
        if (is_posted && drained->load() >= 0 && is_quiet()) {
            break;
        }
        is_carried = is_sealed && !is_posted && is_drained_to_callbacks() && !process_.is_broken();
        if (is_carried) {
            break;
        }
        if (now >= end) {
            const std::uint32_t open = callbacks.outstanding();
            loop_.resume();
            return Error{
                Code::kDeadlineExceeded, "drain.deadline",
                fmt::format("the device did not run dry in {} ms: {} host callbacks are "
                            "open, {} calls wait. On a busy host it may take longer: try again; "
                            "only a kernel that waits for the CPU never ends by itself",
                            std::chrono::duration_cast<std::chrono::milliseconds>(deadline).count(),
                            open, executors.busy_count())};
        }
        if (!is_posted && now >= change_at && (is_sealed || process_.held.active())) {
            is_sealed ? loop_.unseal() : loop_.seal();
            is_sealed = !is_sealed;
            change_at = now + (is_sealed ? kCarryPatience : kCallbackGrace);
        }
        executors.wait_idle(std::min(end, now + std::chrono::milliseconds(1)));
    }
    loop_.seal();
    process_.launch_gate.rest();
    process_.device.bind_thread();
    if (driver::is_sticky(static_cast<CUresult>(drained->load()))) {
        process_.errors.note_sticky(static_cast<CUresult>(drained->load()));
    }
    if (!is_carried && !process_.is_broken()) {
        process_.memory.device.settle();
    }
    // Nobody asks about them anew where the region stays.
    process_.streams.look_at_events(GuestStreams::Look::kAll);
    process_.streams.look_at_bulk_copies();
    process_.channel.output.collect();
    process_.graphs.user_objects.shut();
    frozen_ = true;
    hold_mirror(*process_.channel.memory(), true);
    return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() -
                                                                 begin);
}

void Execution::thaw() {
    if (frozen_) {
        frozen_ = false;
        process_.channel.profile.paused(std::chrono::system_clock::now() - freeze_began_, false);
        hold_mirror(*process_.channel.memory(), false);
        process_.graphs.user_objects.open();
        loop_.resume();
    }
}

Result<ChannelState> Execution::channel_state() const {
    const GuestChannel& channel = process_.channel;
    const HeldWork& held = process_.held;
    ChannelMemory& memory = *channel.memory();
    ChannelState state;
    state.next_position = loop_.next();
    state.executed_ahead = loop_.executed_ahead();
    if (held.active() && !process_.is_broken()) {  // Of a poisoned context nothing is done again.
        // Back to the first open callback: what is behind it and was executed is skipped.
        state.next_position = held.first_position();
        state.executed_ahead.merge(held.executed());
        for (const std::uint64_t position : waits_.positions()) {
            state.executed_ahead.erase(position);
        }
    }
    if (!process_.is_broken()) {  // Else nothing stands behind it any more.
        state.open_callback = channel.callbacks.open();
        state.loose_callbacks = channel.callbacks.loose();
    }
    state.answers = channel.replies.log();
    state.confirmed = channel.replies.confirmed();
    state.parked_callback = channel.callbacks.parked();
    state.async_errors = process_.errors.save();
    state.pending_output = channel.output.save();
    if (channel.profile.is_on()) {
        state.profile = channel.profile.word();
        state.frozen_unix_ns =
            std::chrono::duration_cast<std::chrono::nanoseconds>(freeze_began_.time_since_epoch())
                .count();
    }
    const auto carry = [&](std::uint64_t offset, std::uint64_t bytes) {
        const auto now = memory.pinned().subspan(offset, bytes);
        state.pinned.push_back({offset, {now.begin(), now.end()}});
    };
    // The stream's position first: what comes meanwhile comes again.
    GANTRY_ASSIGN(state.mirror, save_mirror(memory, state.next_position));
    if (state.mirror) {
        GANTRY_ASSIGN(const std::vector<PoolExtent> used, used_pool(memory));
        for (const PoolExtent& extent : used) {
            carry(extent.offset, extent.bytes);
        }
        return state;
    }
    GANTRY_ASSIGN(const std::vector<PinnedWrites::Range> left,
                  process_.memory.pinned_writes.left());
    for (const PinnedWrites::Range& range : left) {
        if (memory.pinned_contains(range.address, range.bytes)) {
            carry(range.address - region::kPinnedBase, range.bytes);
        }
    }
    return state;
}

}  // namespace gantry::worker
