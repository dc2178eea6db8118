// GuestProcess: a channel from its beginning or from where another worker left it, until it is
// given back; and what the guest is told of a migration.
#include <fmt/format.h>

#include <cstring>

#include "host-daemon/execution/process/guest_process.h"

namespace gantry::worker {

namespace region = gantry::wire;

namespace {

/// A guest with a kernel of its own: its memory moves by a hypervisor that sees no host writes.
bool is_moved_by_hypervisor(const ChannelMemory& memory) {
    return memory.sleep() != region::Sleep::kFutex;
}

/// What the host told the channel's last program, its sticky error and an announcement of a move
/// among it. The guest does not look there before it is served.
void clear_answers(const ChannelMemory& memory) {
    std::memset(static_cast<void*>(&memory.host_words()), 0, sizeof(region::HostWords));
    for (std::uint32_t lane = 0; lane < region::kLaneCount; ++lane) {
        memory.reply(lane).seq.store(0, std::memory_order_release);
    }
}

}  // namespace

Result<void> GuestProcess::serve(std::unique_ptr<ChannelMemory> channel, std::uint64_t generation) {
    if (channel->has_begun(generation)) {
        channel->host_words().worker_state.store(region::WorkerState::kDead,
                                                 std::memory_order_release);
        return Error{Code::kFailedPrecondition, "guest.worker_lost",
                     "the worker of this program has ended, and no other knows what it had done; "
                     "the program has to be started again"};
    }
    memory_ = std::move(channel);
    clear_answers(*memory_);
    memory.set_pinned_pool(memory_->layout().pinned_bytes);
    replies.attach(memory_.get());
    pinned_writes.enable(is_moved_by_hypervisor(*memory_), memory_->pinned());
    auto& words = memory_->host_words();
    shown_bytes_ = 0;
    words.worker_state.store(region::WorkerState::kRunning, std::memory_order_release);
    event_board.attach(&words, generation << region::kGenerationShift);
    bulk_board.attach(&words);
    loop_.start(memory_.get(), generation << region::kGenerationShift, {});
    return {};
}

Result<void> GuestProcess::take_over(std::unique_ptr<ChannelMemory> channel,
                                     const ChannelState& state, std::uint64_t epoch) {
    for (const PinnedBytes& pinned : state.pinned) {
        if (pinned.offset > channel->layout().pinned_bytes ||
            pinned.bytes.size() > channel->layout().pinned_bytes - pinned.offset) {
            return Error{Code::kInvalidArgument, "snapshot.pinned",
                         fmt::format("{} bytes at {} do not lie in the pinned pool",
                                     pinned.bytes.size(), pinned.offset)};
        }
    }
    GANTRY_TRY(replies.load(state.answers, state.confirmed));
    const bool stays = state.mirror && is_region_of(*channel, *state.mirror);
    if (state.mirror && !stays) {
        GANTRY_TRY(load_mirror(*channel, *state.mirror, state.next_position));
    }
    memory_ = std::move(channel);
    replies.attach(memory_.get());
    pinned_writes.enable(is_moved_by_hypervisor(*memory_), memory_->pinned());
    // Before any answer and before the announcement ends: either lets the guest read its buffers.
    // Where both workers share the region these bytes are there already: nobody may write them
    // between the freeze and the confirm that the guest still waits for.
    for (const PinnedBytes& pinned : stays ? std::vector<PinnedBytes>{} : state.pinned) {
        std::memcpy(memory_->pinned().data() + pinned.offset, pinned.bytes.data(),
                    pinned.bytes.size());
    }
    output.load(state.pending_output);
    for (std::uint32_t lane = 0; lane < region::kLaneCount; ++lane) {
        async_errors_[lane].store(state.async_errors[lane]);
    }
    auto& words = memory_->host_words();
    words.epoch.store(epoch, std::memory_order_release);
    words.announce.store((words.announce.load() + 1) & ~1u, std::memory_order_release);
    words.consumer_sleeps.store(0, std::memory_order_release);
    words.sticky_error.store(sticky_error.load(), std::memory_order_release);
    words.device_bytes.store(shown_bytes_ = 0, std::memory_order_relaxed);
    words.head.store(state.next_position, std::memory_order_release);
    replies.republish();
    words.worker_state.store(region::WorkerState::kRunning, std::memory_order_release);
    if (state.open_callback) {
        callbacks.load_open(*state.open_callback);
    }
    if (state.parked_callback) {
        callbacks.wait(*state.parked_callback);
    }
    first_command_ = true;
    first_new_position_ =
        state.executed_ahead.empty() ? state.next_position : *state.executed_ahead.rbegin() + 1;
    event_board.attach(&words, first_new_position_);
    bulk_board.attach(&words);
    for (const std::uint32_t error : state.async_errors) {
        if (error != 0) {
            event_board.late_error();
        }
    }
    hold_mirror(*memory_, false);
    loop_.start(memory_.get(), state.next_position, state.executed_ahead);
    return {};
}

std::unique_ptr<ChannelMemory> GuestProcess::detach() {
    loop_.stop();
    has_carried_work_ = frozen_ && held.active();
    if (!has_carried_work_) {  // A driver may wait for the device first.
        unregister_bulk();
    }
    frozen_ = false;
    event_board.attach(nullptr, 0);
    bulk_board.attach(nullptr);
    return std::move(memory_);
}

void GuestProcess::abandon() { callbacks.cancel(); }

void GuestProcess::announce(bool migrating) {
    if (memory_ == nullptr) {
        return;
    }
    bind_thread();  // Asks the driver, which a capture of another thread must not forbid.
    auto& word = memory_->host_words().announce;
    const std::uint32_t now = word.load(std::memory_order_relaxed);
    if (migrating) {
        event_board.announce(true);  // First: what is shown later would take a confirmed answer.
        bulk_board.announce(true);
    }
    pinned_writes.announce(migrating);
    if (((now & 1) != 0) != migrating) {
        word.store(now + 1, std::memory_order_release);
    }
    event_board.announce(migrating);
    bulk_board.announce(migrating);
}

void GuestProcess::disown(bool guest_is_here) {
    if (memory_ == nullptr ||
        (!guest_is_here && is_moved_by_hypervisor(*memory_) && !is_mirrored(*memory_))) {
        return;
    }
    auto& words = memory_->host_words();
    words.worker_state.store(region::WorkerState::kDisowned, std::memory_order_release);
    for (std::uint32_t lane = 0; lane < region::kLaneCount; ++lane) {
        wake_word(memory_->reply(lane).seq);
        wake_word(words.confirm_seq[lane]);
    }
    wake_word(words.head);
}

void GuestProcess::own_again() {
    if (memory_ != nullptr) {
        memory_->host_words().worker_state.store(region::WorkerState::kRunning,
                                                 std::memory_order_release);
    }
}

}  // namespace gantry::worker
