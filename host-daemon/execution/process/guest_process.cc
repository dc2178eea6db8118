#include "host-daemon/execution/process/guest_process.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <thread>

#include "host-daemon/execution/base/crash_log.h"
#include "host-daemon/execution/base/log.h"
#include "host-daemon/execution/process/call.h"
#include "host-daemon/execution/process/handlers.h"
#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry::worker {

namespace region = gantry::wire;

namespace {

/// Native waits spin, and so do a waiting guest and what it is about to ask, where there are
/// processors for it: to wake a thread takes tens of microseconds.
std::uint32_t awake_us(std::uint32_t spin_us) {
    constexpr std::uint32_t kLongSpinUs = 10'000;
    return spin_us != 0 && has_processors_to_spin() ? kLongSpinUs : 0;
}

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

}  // namespace

GuestProcess::GuestProcess(Device& device_in, OutputCapture& output_in, ProcessOptions options_in)
    : device(device_in),
      output(output_in),
      options(std::move(options_in)),
      objects(options.limits.object_count),
      memory(device, options.limits.device_memory_bytes != 0 ? options.limits.device_memory_bytes
                                                             : device.memory_bytes()),
      images(options.limits.image_bytes),
      callbacks(
          [this](const CallbackBroker::Parked& parked, const region::CallbackReply& reply) {
              AnswerHead answer;
              answer.position = parked.position;
              answer.lane = parked.lane;
              replies.publish(answer, std::as_bytes(std::span(&reply, 1)));
          },
          [this] { loop_.help_callbacks(); }),
      staging(device, own_events),
      pinned_writes(own_events, memory),
      held(device),
      awake_us_(awake_us(options.spin_us)),
      wait_spin_us_(std::max(options.spin_us, awake_us_)),
      batches_launches_(options.batches_launches && launch_batcher.has_graphs()),
      prepares_launches_(batches_launches_ &&
                         (options.always_prepares_launches || device.extension() == nullptr)),
      executors_(std::make_unique<LaneExecutors>([this] { bind_thread(); })),
      loop_({[this] { bind_thread(); },
             [this](const Command& command) { execute(command); },
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
             },
             may_ever_wait_here(options)
                 ? std::function<CommandLoop::Waited()>([this] { return wait_here(); })
                 : nullptr,
             [this] { return !waiting_.empty() || bulk_board.has_arrivals(); },
             [this] { return waits_elsewhere() ? awake_us_ : 0; },
             {.size = batches_launches_ ? LaunchBatcher::kBatch : 0,
              .op = static_cast<std::uint16_t>(cuda::Op::cuLaunchKernel),
              .joins = [this](std::span<const Command> batch,
                              const Command& next) { return joins_batch(batch, next); },
              .execute = [this](std::span<const Command> batch) { return execute_batch(batch); }}},
            options.spin_us, long_spin_us(options.spin_us)) {
    memory.on_freed = [this](DeviceVa address) { shared.freed(address.value); };
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
    lane_streams_.clear();
    unregister_bulk();
    virtual_memory.clear();
    shared.close_all();
    memory.release_all();
}

void GuestProcess::set_program(GuestProgram program) {
    program.name.resize(std::min(program.name.size(), sizeof(region::HelloCall::program)));
    const auto is_hidden = [](char c) { return c < ' ' || c > '~'; };
    std::replace_if(program.name.begin(), program.name.end(), is_hidden, '?');
    const std::lock_guard lock(program_mutex_);
    program_ = std::move(program);
}

GuestProgram GuestProcess::program() const {
    const std::lock_guard lock(program_mutex_);
    return program_;
}

void GuestProcess::execute(const Command& command) {
    if (first_command_ && command.header.position >= first_new_position_) {
        first_command_ = false;
        if (on_first_command) {
            on_first_command(command.header.position);
        }
    }
    note_command(command.header.op);
    Call call(*this, command);
    note_lane(call.lane());
    if (__builtin_expect((command.header.flags & region::kCommandNewThread) != 0, 0)) {
        // Natively the calls that failed told the thread that has ended.
        static_cast<void>(take_async_error(call.lane()));
        drop_lane_capture(call.lane());
    }
    if (__builtin_expect(has_lost_context_, 0) && refuse_for_lost_context(call)) {
        return;
    }
    if (command.header.op != static_cast<std::uint16_t>(region::ControlOp::kConfirm)) {
        pinned_writes.note_work();
    }
    if (held.active()) {
        held.begin(command.header.position);
    }
    if (call.has(kMayBlock)) {
        wait_or_run(call);
    } else {
        run_call(call);
    }
    expect_wait(call);
    if (loop_.executed_count() % kPollEvery == 0) {
        poll();
    }
}

void GuestProcess::run_call(Call& call) {
    std::shared_lock changes(lane_changes, std::defer_lock);
    if (call.may_wait() && !is_pollable(call)) {
        changes.lock();
    }
    LayoutHold layout;
    if (call.has(kEndsMemory)) {
        if (call.op() == cuda::Op::cuModuleUnload || call.op() == cuda::Op::cuLibraryUnload) {
            launch_batcher.forget_all();
        }
        layout = memory.hold_layout();
    }
    CUresult result = enter_context(call.header().context);
    const bool is_noted =
        held.begin_touches(call.command(), captures.load(std::memory_order_relaxed) != 0);
    result = result == CUDA_SUCCESS ? call.failure() : result;
    if (result == CUDA_SUCCESS && !call.has_ended()) {
        if (const Handler handler = find_handler(call.number()); handler != nullptr) {
            result = handler(call);
        } else {
            result = dispatch(call, call.op(), call.args(), call.trailing_bytes(), call);
        }
    }
    if (layout.owns_lock()) {
        layout.unlock();
    }
    if (is_noted && !call.may_wait()) {
        note_work(call, result);
    }
    if (call.is_deferred()) {
        auto kept = call.keep();
        executors_->post(call.lane(), [this, kept] { run_call(*kept); });
        return;
    }
    if (call.has(kMayBlock)) {
        if (!call.has_ended()) {  // Nothing was asked that could have printed.
            output.collect();
        }
        if (memory.has_parked()) {
            memory.reap(false);
        }
    }
    if (call.has(kTellsOfCompletion)) {
        look_at_events(Look::kAll);
        if (bulk_board.has_arrivals()) {  // Others free room only: the next look is soon enough.
            look_at_bulk_copies();
        }
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
    held.note(call.command(), result == CUDA_SUCCESS);
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

CUresult GuestProcess::replay(const RecordedCommand& recorded, Replay why) {
    Command command;
    command.header.op = recorded.op;
    command.header.lane = recorded.lane;
    command.header.context = recorded.context;
    command.header.args_bytes = static_cast<std::uint32_t>(recorded.args.size());
    command.header.trailing_bytes = static_cast<std::uint32_t>(recorded.trailing.size());
    command.args = recorded.args;
    command.trailing = recorded.trailing;
    Call call(*this, command);
    call.mark_replay(why);
    const CUresult entered = enter_context(recorded.context);
    if (entered != CUDA_SUCCESS) {
        return entered;
    }
    if (const Handler handler = find_handler(call.number()); handler != nullptr) {
        return handler(call);
    }
    return dispatch(call, call.op(), call.args(), call.trailing_bytes(), call);
}

void GuestProcess::note_result(std::uint32_t lane, CUresult result, bool is_answered) {
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY) {
        return;
    }
    if (driver::is_sticky(result)) {
        note_sticky(result);
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

void GuestProcess::schedule_reap() {
    if (reap_scheduled_.exchange(true)) {
        return;
    }
    executors_->post(LaneExecutors::kChoreLane, [this] {
        reap_scheduled_.store(false);
        std::unique_lock gate(capture_gate);
        if (captures.load() != 0) {
            return;  // The end of the capture schedules it anew: a context cannot be waited for.
        }
        // Only what was parked before the synchronisation may go.
        const auto parked = memory.parked_now();
        synchronise_device();
        gate.unlock();
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
    const PrimaryContext primary(device);
    bulk_registered_ = device.api().cuMemHostRegister_v2(
                           bulk.data(), bulk.size(), CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS;
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

}  // namespace gantry::worker
