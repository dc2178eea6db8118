// GuestProcess: stopping at a command boundary, with the device run dry or nothing left but what
// waits for host callbacks, and the state of the channel that then goes to another worker.
#include <fmt/format.h>

#include <algorithm>

#include "host-daemon/driver/driver_library.h"
#include "host-daemon/execution/process/call.h"
#include "host-daemon/execution/process/guest_process.h"

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
bool GuestProcess::is_drained_to_callbacks() {
    if (!held.active() || !held.is_regular() || captures.load() != 0 || waits_elsewhere() ||
        callbacks.outstanding() != held.root_count() ||
        !callbacks.has_reached(held.first_roots()) || memory.has_parked() || kept_from() == 0) {
        return false;
    }
    for (const Waiting& waiting : waiting_) {
        if (!held.waits(waiting.call->command())) {
            return false;
        }
    }
    const auto is_busy = [this](std::uint64_t key, CUstream stream) {
        return held.is_free(key, stream) &&
               device.api().cuStreamQuery(stream) == CUDA_ERROR_NOT_READY;
    };
    for (const Object& stream : objects.list_kind(HandleKind::kStream)) {
        if (is_busy(stream.handle, reinterpret_cast<CUstream>(stream.native))) {
            return false;
        }
    }
    for (std::uint32_t lane = 0; lane < region::kLaneCount; ++lane) {
        for (const CUstream stream : lane_streams_.of_lane(lane)) {
            if (is_busy(HeldWork::key_of_lane(lane), stream)) {
                return false;
            }
        }
    }
    return !is_busy(0, nullptr);
}

Result<std::chrono::microseconds> GuestProcess::freeze(std::chrono::microseconds deadline) {
    const auto begin = std::chrono::steady_clock::now();
    const auto end = begin + deadline;
    if (memory_ == nullptr) {
        return Error{Code::kFailedPrecondition, "worker.state", "no guest is being served"};
    }
    if (!loop_.hold(end)) {
        return Error{Code::kDeadlineExceeded, "drain.deadline",
                     "the command in hand did not end in time"};
    }
    bind_thread();
    auto drained = std::make_shared<std::atomic<int>>(-1);
    bool is_posted = false;
    bool is_sealed = false;
    bool is_carried = false;
    auto change_at = begin + kCallbackGrace;  // When to seal, or to give up being sealed.
    for (;;) {
        // Nothing of a poisoned context is waited for: its callbacks may never come.
        if (callbacks.outstanding() != 0 && finds_broken() && executors_->busy_count() == 0 &&
            waiting_count() == 0) {
            break;
        }
        // A synchronisation is worth starting only when no callback can be queued any more.
        if (!is_posted && callbacks.outstanding() == 0 && executors_->busy_count() == 0 &&
            waiting_count() == 0) {
            is_posted = true;
            executors_->post(LaneExecutors::kChoreLane, [this, drained] {
                drained->store(static_cast<int>(synchronise_device()));
            });
        }
        const auto now = std::chrono::steady_clock::now();
        if (is_posted && drained->load() >= 0 && executors_->busy_count() == 0 &&
            waiting_count() == 0) {
            break;
        }
        is_carried = is_sealed && !is_posted && is_drained_to_callbacks() && !is_broken();
        if (is_carried) {
            break;
        }
        if (now >= end) {
            const std::uint32_t open = callbacks.outstanding();
            loop_.resume();
            return Error{
                Code::kDeadlineExceeded, "drain.deadline",
                fmt::format("the device did not run dry in {} ms: {} host callbacks are "
                            "open, {} calls wait; a kernel that waits for the CPU never "
                            "ends by itself",
                            std::chrono::duration_cast<std::chrono::milliseconds>(deadline).count(),
                            open, executors_->busy_count())};
        }
        if (!is_posted && now >= change_at && (is_sealed || held.active())) {
            is_sealed ? loop_.unseal() : loop_.seal();
            is_sealed = !is_sealed;
            change_at = now + (is_sealed ? kCarryPatience : kCallbackGrace);
        }
        executors_->wait_idle(std::min(end, now + std::chrono::milliseconds(1)));
    }
    loop_.seal();
    device.bind_thread();
    if (driver::is_sticky(static_cast<CUresult>(drained->load()))) {
        note_sticky(static_cast<CUresult>(drained->load()));
    }
    if (!is_carried && !is_broken()) {
        memory.settle();
    }
    look_at_events(Look::kAll);  // Nobody asks about them anew where the region stays.
    look_at_bulk_copies();
    output.collect();
    frozen_ = true;
    hold_mirror(*memory_, true);
    return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() -
                                                                 begin);
}

void GuestProcess::thaw() {
    if (frozen_) {
        frozen_ = false;
        hold_mirror(*memory_, false);
        loop_.resume();
    }
}

Result<ChannelState> GuestProcess::channel_state() const {
    ChannelState state;
    state.next_position = loop_.next();
    state.executed_ahead = loop_.executed_ahead();
    if (held.active() && !is_broken()) {  // Of a poisoned context nothing is done again.
        // Back to the first open callback: what is behind it and was executed is skipped.
        state.next_position = held.first_position();
        state.executed_ahead.merge(held.executed());
        for (const Waiting& waiting : waiting_) {
            state.executed_ahead.erase(waiting.call->header().position);
        }
    }
    if (!is_broken()) {  // Else nothing stands behind it any more.
        state.open_callback = callbacks.open();
    }
    state.answers = replies.log();
    state.confirmed = replies.confirmed();
    state.parked_callback = callbacks.parked();
    for (std::uint32_t lane = 0; lane < region::kLaneCount; ++lane) {
        state.async_errors[lane] = async_errors_[lane].load();
    }
    state.pending_output = output.save();
    const auto carry = [&](std::uint64_t offset, std::uint64_t bytes) {
        const auto now = memory_->pinned().subspan(offset, bytes);
        state.pinned.push_back({offset, {now.begin(), now.end()}});
    };
    // The stream's position first: what comes meanwhile comes again.
    GANTRY_ASSIGN(state.mirror, save_mirror(*memory_, state.next_position));
    if (state.mirror) {
        GANTRY_ASSIGN(const std::vector<PoolExtent> used, used_pool(*memory_));
        for (const PoolExtent& extent : used) {
            carry(extent.offset, extent.bytes);
        }
        return state;
    }
    GANTRY_ASSIGN(const std::vector<PinnedWrites::Range> left, pinned_writes.left());
    for (const PinnedWrites::Range& range : left) {
        if (memory_->pinned_contains(range.address, range.bytes)) {
            carry(range.address - region::kPinnedBase, range.bytes);
        }
    }
    return state;
}

}  // namespace gantry::worker
