#include "host-daemon/worker/guest_process.h"

#include <fmt/format.h>

#include <algorithm>

#include "host-daemon/worker/call.h"
#include "host-daemon/worker/handlers.h"
#include "host-daemon/worker/log.h"
#include "proto/cuda/gen/op_flags.h"
#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry::worker {

namespace region = gantry::wire;

namespace {

/// Context that this thread has made current; avoids a driver call per command.
thread_local CUcontext t_context = nullptr;

/// A guest with a kernel of its own: its memory moves by a hypervisor that sees no host writes.
bool is_moved_by_hypervisor(const ChannelMemory& memory) {
    return memory.sleep() != region::Sleep::kFutex;
}

/// Native waits spin. The loop's thread does it for the guest where there are processors for it;
/// handing a wait to a thread of its own costs tens of microseconds.
std::uint32_t wait_spin_us(std::uint32_t spin_us) {
    constexpr unsigned kCpusToSpin = 4;
    constexpr std::uint32_t kLongSpinUs = 10'000;
    return spin_us != 0 && std::thread::hardware_concurrency() >= kCpusToSpin
               ? std::max(spin_us, kLongSpinUs)
               : spin_us;
}

/// How long a freeze lets the guest finish its host callbacks before it carries them.
constexpr std::chrono::milliseconds kCallbackGrace{20};
/// ... and how long it then looks whether all else comes to rest.
constexpr std::chrono::milliseconds kCarryPatience{200};
constexpr std::size_t kPollEvery = 64;  // Look at waiting calls that often while the ring is full.
constexpr std::size_t kEventsAtOnce = 4;
constexpr std::chrono::microseconds kEventsEvery{1};
/// How often a stream is asked for errors while a word in it is waited for.
constexpr std::chrono::microseconds kErrorsEvery{20};
/// A driver knows of a stream's end a little later than a word behind its work lands: so long a
/// query right after one is tried again.
constexpr std::chrono::microseconds kSettles{50};
constexpr std::chrono::microseconds kSettlePatience{5};

}  // namespace

GuestProcess::GuestProcess(Device& device_in, OutputCapture& output_in, ProcessOptions options_in)
    : device(device_in),
      output(output_in),
      options(std::move(options_in)),
      objects(options.limits.object_count),
      memory(device, options.limits.device_memory_bytes != 0 ? options.limits.device_memory_bytes
                                                             : device.memory_bytes()),
      images(options.limits.image_bytes),
      callbacks([this](const CallbackBroker::Parked& parked, const region::CallbackReply& reply) {
          Answer answer;
          answer.position = parked.position;
          answer.lane = parked.lane;
          const auto bytes = std::as_bytes(std::span(&reply, 1));
          answer.payload.assign(bytes.begin(), bytes.end());
          replies.publish(answer);
      },
      [this] { loop_.help_callbacks(); }),
      staging(device),
      pinned_writes(device, memory),
      held(device),
      wait_spin_us_(wait_spin_us(options.spin_us)),
      executors_(std::make_unique<LaneExecutors>([this] { bind_thread(); })),
      loop_({[this] { bind_thread(); }, [this](const Command& command) { execute(command); },
             [this] { return poll(); },
             [this](const region::CommandView& view, std::span<const std::byte> args) {
                 callback_command(view, args);
             },
             [this](const std::string& reason) {
                 log_line("the ring is malformed: %s; the channel stops", reason.c_str());
                 if (on_breach) {
                     on_breach(reason);
                 }
             },
             [this] { return kept_from(); },
             [this](std::uint64_t position) {
                 if (held.active()) {
                     held.begin(position);
                 }
             }},
            options.spin_us) {
    if (!device.can_place()) {
        // Every lane's thread now: a stack that is mapped later would change where the driver puts
        // what it allocates then (channel_memory.cc).
        for (std::uint32_t lane = 0; lane <= LaneExecutors::kChoreLane; ++lane) {
            executors_->post(lane, [] {});
        }
    }
}

GuestProcess::~GuestProcess() {
    abandon();
    loop_.stop();
    executors_.reset();
    device.bind_thread();
    drop_lane_streams();
    unregister_bulk();
    virtual_memory.clear();
    memory.release_all();
}

void GuestProcess::bind_thread() {
    device.bind_thread();
    t_context = device.context();
    // A capture of one guest thread must not forbid what the worker does for another one.
    auto mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (device.api().cuThreadExchangeStreamCaptureMode != nullptr) {
        device.api().cuThreadExchangeStreamCaptureMode(&mode);
    }
}

void GuestProcess::serve(std::unique_ptr<ChannelMemory> channel, std::uint64_t generation) {
    memory_ = std::move(channel);
    memory.set_pinned_pool(memory_->layout().pinned_bytes);
    replies.attach(memory_.get());
    pinned_writes.enable(is_moved_by_hypervisor(*memory_), memory_->pinned());
    auto& words = memory_->host_words();
    words.worker_state.store(region::WorkerState::kRunning, std::memory_order_release);
    event_board.attach(&words, generation << region::kGenerationShift);
    bulk_board.attach(&words);
    loop_.start(memory_.get(), generation << region::kGenerationShift, {});
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
    memory_ = std::move(channel);
    replies.attach(memory_.get());
    pinned_writes.enable(is_moved_by_hypervisor(*memory_), memory_->pinned());
    // Before any answer and before the announcement ends: either lets the guest read its buffers.
    // Where both workers share the region these bytes are there already: nobody may write them
    // between the freeze and the confirm that the guest still waits for.
    for (const PinnedBytes& pinned : state.pinned) {
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
    first_new_position_ = state.executed_ahead.empty() ? state.next_position
                                                       : *state.executed_ahead.rbegin() + 1;
    event_board.attach(&words, first_new_position_);
    bulk_board.attach(&words);
    for (const std::uint32_t error : state.async_errors) {
        if (error != 0) {
            event_board.late_error();
        }
    }
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

void GuestProcess::disown() {
    if (memory_ == nullptr) {
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

void GuestProcess::execute(const Command& command) {
    if (first_command_ && command.header.position >= first_new_position_) {
        first_command_ = false;
        if (on_first_command) {
            on_first_command(command.header.position);
        }
    }
    Call call(*this, command);
    if (command.header.op != static_cast<std::uint16_t>(region::ControlOp::kConfirm)) {
        pinned_writes.note_work();
    }
    if (held.active()) {
        held.begin(command.header.position);
    }
    if (may_block(call)) {
        if (!(held.active() && held.waits(call)) && look_at_wait(call)) {
            run_call(call);
        } else {
            begin_wait(call);
        }
    } else {
        run_call(call);
    }
    if (loop_.executed_count() % kPollEvery == 0) {
        poll();
    }
}

void GuestProcess::begin_wait(const Call& call) {
    Waiting waiting{call.keep(), std::chrono::steady_clock::now(), {}, {}, {}};
    if (call.awaited() && may_skip_waits() && sticky_error.load() == 0 && captures.load() == 0 &&
        objects.count_kind(HandleKind::kContext) <= 1) {
        waiting.stream = *call.awaited();
        waiting.word = wait_words.queue(waiting.stream);
        waiting.ask_at = waiting.since + kErrorsEvery;
    }
    waiting_.push_back(std::move(waiting));
    waiting_count_.store(waiting_.size());
}

bool GuestProcess::has_come(Waiting& waiting, std::chrono::steady_clock::time_point now) {
    if (waiting.word) {
        if (wait_words.has_landed(*waiting.word)) {
            landed_stream_ = waiting.stream;
            landed_at_ = now;
            waiting.call->saw_end();
            return true;
        }
        if (now < waiting.ask_at) {
            return false;
        }
        waiting.ask_at = now + kErrorsEvery;
    }
    return look_at_wait(*waiting.call);
}

bool GuestProcess::poll() {
    const auto now = std::chrono::steady_clock::now();
    if (now >= events_due_) {
        look_at_events(kEventsAtOnce);
        look_at_bulk_copies();
        events_due_ = now + kEventsEvery;
    }
    const bool is_copying = bulk_board.is_pending(now, std::chrono::microseconds(wait_spin_us_));
    return watch_waiting(now) || is_copying;
}

void GuestProcess::look_at_events(std::size_t most) {
    if (captures.load(std::memory_order_relaxed) == 0) {  // A capture does not like questions.
        note_result(0, event_board.look(most), true);
    }
}

void GuestProcess::look_at_bulk_copies() {
    if (captures.load(std::memory_order_relaxed) == 0) {
        const auto before_arrivals = [this](CUstream stream) {
            landed_stream_ = stream;
            landed_at_ = std::chrono::steady_clock::now();
            look_at_events(EventBoard::kOpenMax);
        };
        note_result(0, bulk_board.look(before_arrivals), true);
    }
}

bool GuestProcess::watch_waiting(std::chrono::steady_clock::time_point now) {
    if (waiting_.empty()) {
        return false;
    }
    bool is_any_due = false;
    std::erase_if(waiting_, [&](Waiting& waiting) {
        if (held.active() && held.waits(*waiting.call)) {
            return false;  // Not begun: another worker may have to begin it.
        }
        if (has_come(waiting, now)) {
            run_call(*waiting.call);
            return true;
        }
        if (is_pollable(*waiting.call) &&
            now - waiting.since < std::chrono::microseconds(wait_spin_us_)) {
            is_any_due = true;
            return false;
        }
        executors_->post(waiting.call->lane(), [this, call = waiting.call] { run_call(*call); });
        return true;
    });
    waiting_count_.store(waiting_.size());
    return is_any_due;
}

void GuestProcess::run_call(Call& call) {
    CUresult result = enter_context(call.header().context);
    const bool is_noted = held.begin_touches(call);
    if (result == CUDA_SUCCESS && !call.has_ended()) {
        if (const Handler handler = find_handler(call.number()); handler != nullptr) {
            result = handler(call);
        } else {
            result = dispatch(call, call.op(), call.args(), call.trailing_bytes(), call);
        }
    }
    if (is_noted && !call.may_wait()) {
        note_work(call, result);
    }
    if (call.is_deferred()) {
        auto kept = call.keep();
        executors_->post(call.lane(), [this, kept] { run_call(*kept); });
        return;
    }
    if (may_block(call)) {
        if (!call.has_ended()) {  // Nothing was asked that could have printed.
            output.collect();
        }
        if (memory.has_parked()) {
            memory.reap(false);
        }
    }
    if (tells_of_completion(call)) {
        look_at_events(EventBoard::kOpenMax);
        look_at_bulk_copies();
    }
    call.finish(result);
}

void GuestProcess::callback_command(const region::CommandView& view,
                                    std::span<const std::byte> args) {
    if (view.op == static_cast<std::uint16_t>(region::ControlOp::kWaitCallback)) {
        callbacks.wait({view.position, view.lane});
    } else if (region::CallbackDoneCall done{}; args.size() == sizeof(done)) {
        std::memcpy(&done, args.data(), sizeof(done));
        (void)callback_done(done.callback_id);
    }
}

void GuestProcess::note_work(const Call& call, CUresult result) {
    if (call.is_deferred() || captures.load(std::memory_order_relaxed) != 0) {
        held.mark_irregular();
        return;
    }
    held.note(call, result == CUDA_SUCCESS);
}

/// What is held must stay in the ring; but a ring that is full of it would stop the guest for good,
/// so a move rather waits for the callbacks.
std::uint64_t GuestProcess::kept_from() {
    if (!held.active() || !held.is_regular()) {
        return 0;
    }
    const std::uint64_t first = held.first_position();
    if (first != 0 && loop_.next() - first > memory_->layout().ring_bytes / 2) {
        held.mark_irregular();
        return 0;
    }
    return first;
}

bool GuestProcess::callback_done(std::uint64_t callback_id) {
    const auto open = callbacks.open();
    if (!open || !callbacks.done(callback_id)) {
        return false;
    }
    if (open->position != 0) {
        held.close(open->position);
    }
    return true;
}

CUresult GuestProcess::replay(const RecordedCommand& recorded) {
    Command command;
    command.header.op = recorded.op;
    command.header.lane = recorded.lane;
    command.header.context = recorded.context;
    command.header.args_bytes = static_cast<std::uint32_t>(recorded.args.size());
    command.header.trailing_bytes = static_cast<std::uint32_t>(recorded.trailing.size());
    command.args = recorded.args;
    command.trailing = recorded.trailing;
    Call call(*this, command);
    call.mark_replay();
    const CUresult entered = enter_context(recorded.context);
    if (entered != CUDA_SUCCESS) {
        return entered;
    }
    if (const Handler handler = find_handler(call.number()); handler != nullptr) {
        return handler(call);
    }
    return dispatch(call, call.op(), call.args(), call.trailing_bytes(), call);
}

CUresult GuestProcess::enter_context(std::uint64_t context) {
    CUcontext wanted = device.context();
    if (context != 0 && context != cuda::primary_context_handle(0)) {
        wanted = objects.native_as<CUcontext>(context, HandleKind::kContext);
        if (wanted == nullptr) {
            return CUDA_ERROR_INVALID_CONTEXT;
        }
    }
    if (wanted == t_context) {
        return CUDA_SUCCESS;
    }
    const CUresult result = device.api().cuCtxSetCurrent(wanted);
    t_context = result == CUDA_SUCCESS ? wanted : nullptr;
    return result;
}

CUresult GuestProcess::resolve_stream(std::uint64_t stream, std::uint32_t lane, CUstream* out) {
    if (stream <= 1) {
        *out = nullptr;
        held.touch(0, nullptr);
        return CUDA_SUCCESS;
    }
    if (stream != 2) {
        *out = objects.native_as<CUstream>(stream, HandleKind::kStream);
        held.touch(stream, *out);
        return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    }
    std::lock_guard lock(lane_stream_mutex_);
    CUstream& own = lane_streams_[lane % region::kLaneCount];
    CUresult result = CUDA_SUCCESS;
    if (own == nullptr) {
        result = device.api().cuStreamCreateWithPriority(&own, CU_STREAM_DEFAULT, 0);
        has_lane_streams_ = true;
    }
    *out = own;
    held.touch(HeldWork::key_of_lane(lane), own);
    return result;
}

bool GuestProcess::may_query_streams() const {
    constexpr std::size_t kStreamsMax = 8;
    return captures.load(std::memory_order_relaxed) == 0 &&
           settled_streams_.load() == left_streams_.load() &&
           objects.count_kind(HandleKind::kStream) <= kStreamsMax &&
           objects.count_kind(HandleKind::kContext) <= 1;
}

CUresult GuestProcess::query_stream(CUstream stream) {
    CUresult result = device.api().cuStreamQuery(stream);
    const auto now = std::chrono::steady_clock::now;
    if (result == CUDA_ERROR_NOT_READY && stream == landed_stream_.load() &&
        now() < landed_at_.load() + kSettles) {
        const auto until = now() + kSettlePatience;
        while (result == CUDA_ERROR_NOT_READY && now() < until) {
            result = device.api().cuStreamQuery(stream);
        }
    }
    return result;
}

GuestProcess::StreamsSeen GuestProcess::query_streams(bool wants_others_only) {
    StreamsSeen seen;
    std::size_t busy = 0;
    const auto look = [&](CUstream stream) {
        const CUresult result = query_stream(stream);
        if (result == CUDA_ERROR_NOT_READY) {
            seen.busy = ++busy == 1 ? std::optional(stream) : std::nullopt;
        }
        if (result != CUDA_SUCCESS) {
            seen.result = result;
        }
        return busy < 2 && (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY);
    };
    if (!wants_others_only && !look(nullptr)) {
        return seen;
    }
    if (has_lane_streams_.load(std::memory_order_relaxed)) {
        std::lock_guard lock(lane_stream_mutex_);
        for (const CUstream stream : lane_streams_) {
            if (stream != nullptr && !look(stream)) {
                return seen;
            }
        }
    }
    if (objects.count_kind(HandleKind::kStream) != 0) {
        for (const std::uint64_t stream : objects.natives_of(HandleKind::kStream)) {
            if (!look(reinterpret_cast<CUstream>(stream))) {
                break;
            }
        }
    }
    return seen;
}

void GuestProcess::leave_stream(CUstream stream) {
    if (captures.load() != 0 || query_stream(stream) != CUDA_SUCCESS) {
        left_streams_.fetch_add(1);
    }
}

CUresult GuestProcess::synchronise_context() {
    const std::uint64_t left = left_streams_.load();
    const CUresult result = device.api().cuCtxSynchronize();
    std::uint64_t settled = settled_streams_.load();
    while (settled < left && !settled_streams_.compare_exchange_weak(settled, left)) {
    }
    return result;
}

void GuestProcess::drop_lane_streams() {
    std::lock_guard lock(lane_stream_mutex_);
    for (CUstream& stream : lane_streams_) {
        if (stream != nullptr) {
            device.api().cuStreamDestroy_v2(stream);
            stream = nullptr;
        }
    }
}

void GuestProcess::note_result(std::uint32_t lane, CUresult result, bool is_answered) {
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY) {
        return;
    }
    if (driver::is_sticky(result)) {
        std::uint32_t none = 0;
        sticky_error.compare_exchange_strong(none, static_cast<std::uint32_t>(result));
        if (memory_ != nullptr) {
            memory_->host_words().sticky_error.store(sticky_error.load(),
                                                     std::memory_order_release);
        }
    }
    if (!is_answered && lane < region::kLaneCount) {
        std::uint32_t none = 0;
        async_errors_[lane].compare_exchange_strong(none, static_cast<std::uint32_t>(result));
        event_board.late_error();
    }
}

std::uint32_t GuestProcess::take_async_error(std::uint32_t lane) {
    if (async_errors_[lane].load(std::memory_order_relaxed) == 0) {
        return 0;
    }
    return async_errors_[lane].exchange(0);
}

CUresult GuestProcess::synchronise_device() {
    CUresult worst = synchronise_context();
    const CUcontext own = t_context;
    for (const Object& context : objects.list_kind(HandleKind::kContext)) {
        const auto native = reinterpret_cast<CUcontext>(context.native);
        if (native == own || device.api().cuCtxSetCurrent(native) != CUDA_SUCCESS) {
            continue;
        }
        const CUresult result = device.api().cuCtxSynchronize();
        worst = worst == CUDA_SUCCESS ? result : worst;
        device.api().cuCtxSetCurrent(own);
    }
    return worst;
}

void GuestProcess::schedule_reap() {
    if (reap_scheduled_.exchange(true)) {
        return;
    }
    executors_->post(LaneExecutors::kChoreLane, [this] {
        reap_scheduled_.store(false);
        // Only what was parked before the synchronisation may go.
        const auto parked = memory.parked_now();
        synchronise_device();
        memory.reap_these(parked);
    });
}

bool GuestProcess::is_frequent_reader() {
    constexpr std::uint32_t kFrequent = 16;
    return reads_.fetch_add(1, std::memory_order_relaxed) >= kFrequent;
}

bool GuestProcess::register_bulk() {
    if (bulk_tried_.load(std::memory_order_acquire)) {
        return bulk_registered_;
    }
    std::lock_guard lock(bulk_mutex_);
    if (memory_ == nullptr || bulk_tried_.load(std::memory_order_relaxed)) {
        return bulk_registered_;
    }
    const auto bulk = memory_->bulk(0, memory_->layout().bulk_bytes);
    bulk_registered_ = device.api().cuMemHostRegister_v2(bulk.data(), bulk.size(),
                                                         CU_MEMHOSTREGISTER_PORTABLE) ==
                       CUDA_SUCCESS;
    bulk_tried_.store(true, std::memory_order_release);
    bulk_board.locked(bulk_registered_);
    return bulk_registered_;
}

void GuestProcess::unregister_bulk() {
    std::lock_guard lock(bulk_mutex_);
    if (bulk_registered_ && memory_ != nullptr) {
        device.bind_thread();
        device.api().cuMemHostUnregister(memory_->bulk(0, memory_->layout().bulk_bytes).data());
    }
    bulk_registered_ = false;
    bulk_board.locked(false);
    bulk_tried_.store(false, std::memory_order_release);
}

void GuestProcess::leave_context() {
    t_context = nullptr;
    enter_context(0);
}

void GuestProcess::refresh_private_ranges() {
    constexpr std::uint64_t kOwner = 1;  // No handle: the driver itself.
    const GantrySoftExtension* extension = device.extension();
    std::size_t count = 0;
    if (extension == nullptr ||
        extension->list_private_ranges(device.context(), nullptr, &count) != CUDA_SUCCESS) {
        return;
    }
    std::vector<GantrySoftRange> ranges(count);
    if (count != 0 && extension->list_private_ranges(device.context(), ranges.data(), &count) !=
                          CUDA_SUCCESS) {
        return;
    }
    memory.remove_outside(kOwner);
    for (const GantrySoftRange& range : ranges) {
        memory.add_outside(kOwner, range.address, range.bytes);
    }
}

std::uint64_t GuestProcess::root_of(std::uint64_t handle) const {
    constexpr int kDepthMax = 8;
    for (int depth = 0; depth < kDepthMax; ++depth) {
        const std::uint64_t parent = objects.parent_of(handle);
        if (parent == 0) {
            break;
        }
        handle = parent;
    }
    return handle;
}

/// Everything has come to rest but what waits for host callbacks in the guest, and all of that can
/// be done again from the ring. Only while the loop is sealed.
bool GuestProcess::is_drained_to_callbacks() {
    if (!held.active() || !held.is_regular() || captures.load() != 0 ||
        executors_->busy_count() != 0 || callbacks.outstanding() != held.root_count() ||
        !callbacks.has_reached(held.first_roots()) || memory.has_parked() || kept_from() == 0) {
        return false;
    }
    for (const Waiting& waiting : waiting_) {
        if (!held.waits(*waiting.call)) {
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
    std::lock_guard lock(lane_stream_mutex_);
    for (std::uint32_t lane = 0; lane < region::kLaneCount; ++lane) {
        if (lane_streams_[lane] != nullptr &&
            is_busy(HeldWork::key_of_lane(lane), lane_streams_[lane])) {
            return false;
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
        // A synchronisation is worth starting only when no callback can be queued any more.
        if (!is_posted && callbacks.outstanding() == 0 && executors_->busy_count() == 0 &&
            waiting_count_.load() == 0) {
            is_posted = true;
            executors_->post(LaneExecutors::kChoreLane, [this, drained] {
                drained->store(static_cast<int>(synchronise_device()));
            });
        }
        const auto now = std::chrono::steady_clock::now();
        if (is_posted && drained->load() >= 0 && executors_->busy_count() == 0 &&
            waiting_count_.load() == 0) {
            break;
        }
        is_carried = is_sealed && !is_posted && is_drained_to_callbacks();
        if (is_carried) {
            break;
        }
        if (now >= end) {
            const std::uint32_t open = callbacks.outstanding();
            loop_.resume();
            return Error{Code::kDeadlineExceeded, "drain.deadline",
                         fmt::format("the device did not run dry in {} ms: {} host callbacks are "
                                     "open, {} calls wait; a kernel that waits for the CPU never "
                                     "ends by itself",
                                     std::chrono::duration_cast<std::chrono::milliseconds>(deadline)
                                         .count(),
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
    if (!is_carried) {
        memory.settle();
    }
    look_at_bulk_copies();
    output.collect();
    frozen_ = true;
    return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() -
                                                                 begin);
}

void GuestProcess::thaw() {
    if (frozen_) {
        frozen_ = false;
        loop_.resume();
    }
}

ChannelState GuestProcess::channel_state() const {
    ChannelState state;
    state.next_position = loop_.next();
    state.executed_ahead = loop_.executed_ahead();
    if (held.active()) {
        // Back to the first open callback: what is behind it and was executed is skipped.
        state.next_position = held.first_position();
        state.executed_ahead.merge(held.executed());
        for (const Waiting& waiting : waiting_) {
            state.executed_ahead.erase(waiting.call->header().position);
        }
    }
    state.open_callback = callbacks.open();
    state.answers = replies.log();
    state.confirmed = replies.confirmed();
    state.parked_callback = callbacks.parked();
    for (std::uint32_t lane = 0; lane < region::kLaneCount; ++lane) {
        state.async_errors[lane] = async_errors_[lane].load();
    }
    state.pending_output = output.save();
    if (const auto left = pinned_writes.left(); left.ok()) {
        for (const PinnedWrites::Range& range : *left) {
            if (!memory_->pinned_contains(range.address, range.bytes)) {
                continue;
            }
            PinnedBytes& pinned = state.pinned.emplace_back();
            pinned.offset = range.address - region::kPinnedBase;
            const auto bytes = memory_->pinned().subspan(pinned.offset, range.bytes);
            pinned.bytes.assign(bytes.begin(), bytes.end());
        }
    }
    return state;
}

}  // namespace gantry::worker
