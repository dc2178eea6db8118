// Execution: a channel from its beginning or from where another worker left it, until it is
// given back; and what the guest is told of a migration.
#include <fmt/format.h>

#include <cstring>

#include "host-daemon/execution/dispatch/execution.h"

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

Result<void> Execution::serve(std::unique_ptr<ChannelMemory> channel, std::uint64_t generation) {
    if (channel->has_begun(generation)) {
        channel->host_words().worker_state.store(region::WorkerState::kDead,
                                                 std::memory_order_release);
        return Error{Code::kFailedPrecondition, "guest.worker_lost",
                     "the worker of this program has ended, and no other knows what it had done; "
                     "the program has to be started again"};
    }
    clear_answers(*channel);
    process_.channel.open(std::move(channel));
    ChannelMemory& memory = *process_.channel.memory();
    auto& words = memory.host_words();
    process_.errors.attach(&words);
    process_.memory.device.set_pinned_pool(memory.layout().pinned_bytes);
    process_.memory.pinned_writes.enable(is_moved_by_hypervisor(memory), memory.pinned());
    waits_.begin();
    words.worker_state.store(region::WorkerState::kRunning, std::memory_order_release);
    process_.channel.event_board.attach(&words, generation << region::kGenerationShift);
    process_.streams.bulk_board.attach(&words);
    process_.channel.profile.attach(&words);
    loop_.start(&memory, generation << region::kGenerationShift, {});
    return {};
}

Result<void> Execution::take_over(std::unique_ptr<ChannelMemory> channel, const ChannelState& state,
                                  std::uint64_t epoch) {
    for (const PinnedBytes& pinned : state.pinned) {
        if (pinned.offset > channel->layout().pinned_bytes ||
            pinned.bytes.size() > channel->layout().pinned_bytes - pinned.offset) {
            return Error{Code::kInvalidArgument, "snapshot.pinned",
                         fmt::format("{} bytes at {} do not lie in the pinned pool",
                                     pinned.bytes.size(), pinned.offset)};
        }
    }
    GANTRY_TRY(process_.channel.replies.load(state.answers, state.confirmed));
    const bool stays = state.mirror && is_region_of(*channel, *state.mirror);
    if (state.mirror && !stays) {
        GANTRY_TRY(load_mirror(*channel, *state.mirror, state.next_position));
    }
    process_.channel.open(std::move(channel));
    ChannelMemory& memory = *process_.channel.memory();
    auto& words = memory.host_words();
    process_.errors.attach(&words);
    process_.memory.pinned_writes.enable(is_moved_by_hypervisor(memory), memory.pinned());
    // Before any answer and before the announcement ends: either lets the guest read its buffers.
    // Where both workers share the region these bytes are there already: nobody may write them
    // between the freeze and the confirm that the guest still waits for.
    for (const PinnedBytes& pinned : stays ? std::vector<PinnedBytes>{} : state.pinned) {
        std::memcpy(memory.pinned().data() + pinned.offset, pinned.bytes.data(),
                    pinned.bytes.size());
    }
    process_.channel.output.load(state.pending_output);
    process_.errors.load(state.async_errors);
    go_on_with_profile(memory, state, epoch);
    words.epoch.store(epoch, std::memory_order_release);
    words.announce.store((words.announce.load() + 1) & ~1u, std::memory_order_release);
    words.consumer_sleeps.store(0, std::memory_order_release);
    words.sticky_error.store(process_.errors.sticky(), std::memory_order_release);
    words.device_bytes.store(0, std::memory_order_relaxed);
    waits_.begin();
    words.head.store(state.next_position, std::memory_order_release);
    process_.channel.replies.republish();
    words.worker_state.store(region::WorkerState::kRunning, std::memory_order_release);
    if (state.open_callback) {
        process_.channel.callbacks.load_open(*state.open_callback);
    }
    for (const region::CallbackReply& callback : state.loose_callbacks) {
        process_.channel.callbacks.run_loose(callback);
    }
    if (state.parked_callback) {
        process_.channel.callbacks.wait(*state.parked_callback);
    }
    // What nobody but the restore has held ends now.
    process_.device.bind_thread();
    for (const auto& [object, count] : process_.graphs.user_objects.take_held()) {
        process_.device.api().cuUserObjectRelease(object, count);
    }
    process_.graphs.user_objects.open();
    process_.launches.hold_back(true);
    on_loop_.is_first_command_due = true;
    on_loop_.first_new_position =
        state.executed_ahead.empty() ? state.next_position : *state.executed_ahead.rbegin() + 1;
    process_.channel.event_board.attach(&words, on_loop_.first_new_position);
    process_.streams.bulk_board.attach(&words);
    for (const std::uint32_t error : state.async_errors) {
        if (error != 0) {
            process_.channel.event_board.late_error();
        }
    }
    hold_mirror(memory, false);
    loop_.start(&memory, state.next_position, state.executed_ahead);
    return {};
}

/// By the hosts' wall clocks. Before the guest is answered: it reads this behind its answer.
void Execution::go_on_with_profile(const ChannelMemory& memory, const ChannelState& state,
                                   std::uint64_t epoch) {
    ProfileBoard& board = process_.channel.profile;
    const std::uint64_t former_epoch = memory.host_words().epoch.load();
    board.attach(&memory.host_words());
    board.load(state.profile);
    if (board.is_on()) {
        const std::chrono::nanoseconds frozen(state.frozen_unix_ns);
        const auto now = std::chrono::system_clock::now().time_since_epoch();
        // Not replaced on this host, where the guest runs on.
        const bool clock_stood =
            is_moved_by_hypervisor(memory) && !state.mirror && former_epoch != epoch;
        board.paused(now - frozen, clock_stood);
    }
}

std::unique_ptr<ChannelMemory> Execution::detach() {
    loop_.stop();
    has_carried_work_ = frozen_ && process_.held.active();
    if (!has_carried_work_) {  // A driver may wait for the device first.
        process_.bulk_pages.unlock();
    }
    frozen_ = false;
    process_.channel.profile.attach(nullptr);
    process_.channel.event_board.attach(nullptr, 0);
    process_.streams.bulk_board.attach(nullptr);
    process_.errors.attach(nullptr);
    return process_.channel.close();
}

void Execution::announce(bool migrating) {
    if (!serving()) {
        return;
    }
    EventBoard& event_board = process_.channel.event_board;
    BulkBoard& bulk_board = process_.streams.bulk_board;
    process_.contexts
        .bind_thread();  // Asks the driver, which a capture of another thread must not forbid.
    auto& word = process_.channel.memory()->host_words().announce;
    const std::uint32_t now = word.load(std::memory_order_relaxed);
    if (migrating) {
        event_board.announce(true);  // First: what is shown later would take a confirmed answer.
        bulk_board.announce(true);
    }
    process_.memory.pinned_writes.announce(migrating);
    if (((now & 1) != 0) != migrating) {
        word.store(now + 1, std::memory_order_release);
    }
    event_board.announce(migrating);
    bulk_board.announce(migrating);
}

void Execution::disown(bool guest_is_here) {
    const ChannelMemory* const memory = process_.channel.memory();
    if (memory == nullptr ||
        (!guest_is_here && is_moved_by_hypervisor(*memory) && !is_mirrored(*memory))) {
        return;
    }
    auto& words = memory->host_words();
    words.worker_state.store(region::WorkerState::kDisowned, std::memory_order_release);
    for (std::uint32_t lane = 0; lane < region::kLaneCount; ++lane) {
        wake_word(memory->reply(lane).seq);
        wake_word(words.confirm_seq[lane]);
    }
    wake_word(words.head);
}

void Execution::own_again() {
    if (serving()) {
        process_.channel.memory()->host_words().worker_state.store(region::WorkerState::kRunning,
                                                                   std::memory_order_release);
    }
}

}  // namespace gantry::worker
