#include "host-daemon/execution/process/guest_process.h"

#include "host-daemon/driver/driver_library.h"

namespace gantry::worker {
namespace {

std::uint64_t quota_of(const ProcessOptions& options, const Device& device) {
    const std::uint64_t limit = options.limits.device_memory_bytes;
    return limit != 0 ? limit : device.memory_bytes();
}

}  // namespace

GuestProcess::GuestProcess(Device& device_in, OutputCapture& output, const ProcessOptions& options)
    : device(device_in),
      objects(options.limits.object_count),
      own_events(device),
      launch_gate(own_events),
      channel(device, output),
      errors(channel.event_board),
      held(device),
      memory(device, own_events, quota_of(options, device)),
      shares(device, memory.device),
      code(device, objects, memory.device, options.limits.image_bytes),
      graphs(device, objects),
      contexts(device, objects),
      streams({device, objects, code, contexts, graphs.captures, held, errors, channel.event_board,
               own_events},
              options.word_patience),
      bulk_pages(device, channel, streams.bulk_board),
      account({device, objects, code.modules, graphs.captures, held}),
      launches({device, objects, contexts, streams, graphs.captures, held, errors,
                memory.pinned_writes, account},
               {options.batches_launches, options.always_prepares_launches}),
      executors_(std::make_unique<LaneExecutors>([this] { contexts.bind_thread(); })) {
    if (options.accounts_launches) {
        account.begin();
    }
    memory.device.on_freed = [this](DeviceVa address) { shares.memory.freed(address.value); };
    graphs.user_objects.set_offer([this](const UserObjectBook::Destructor& destructor) {
        wire::CallbackReply reply{};
        reply.function = destructor.function;
        reply.user_data = destructor.argument;
        reply.kind = wire::CallbackKind::kHostFunction;
        channel.callbacks.run_loose(reply);
    });
    graphs.captures.on_change = [this](Captures::Change change) {
        streams.bulk_board.capturing(change == Captures::Change::kBegun);
        if (change == Captures::Change::kEnded) {
            schedule_reap();
        }
    };
}

GuestProcess::~GuestProcess() {
    stop_executors();
    graphs.user_objects.shut();
    device.bind_thread();
    streams.clear();
    bulk_pages.unlock();
    memory.ranges.clear();
    shares.memory.close_all();
    objects.clear();  // What they are charged for is given back while it is counted.
    memory.device.release_all();
}

bool GuestProcess::finds_broken() {
    // A capture that begins meanwhile would be lost by the question.
    if (!is_broken() && graphs.captures.gate.try_lock()) {
        if (!graphs.captures.any()) {
            contexts.bind_thread();
            const CUresult result = device.api().cuStreamQuery(nullptr);
            if (driver::is_sticky(result)) {
                errors.note_sticky(result);
            }
        }
        graphs.captures.gate.unlock();
    }
    return is_broken();
}

bool GuestProcess::callback_done(std::uint64_t callback_id) {
    const auto open = channel.callbacks.open();
    if (!open || !channel.callbacks.done(callback_id)) {
        return false;
    }
    if (open->position != 0) {
        held.close(open->position);
    }
    return true;
}

void GuestProcess::schedule_reap() {
    if (is_reap_scheduled_.exchange(true)) {
        return;
    }
    executors_->post(LaneExecutors::kChoreLane, [this] {
        is_reap_scheduled_.store(false);
        MutexLock gate(graphs.captures.gate);
        if (graphs.captures.any()) {
            return;  // The end of the capture schedules it anew: a context cannot be waited for.
        }
        // Only what was parked before the synchronisation may go.
        const auto parked = memory.device.parked_now();
        streams.synchronise_device();
        gate.unlock();
        memory.device.reap_these(parked);
    });
}

void GuestProcess::forget_object(std::uint64_t handle) {
    streams.event_times.forget(handle);
    graphs.book.remove(handle);
    code.links.remove(handle);
    code.modules.remove(handle);
    memory.device.remove_outside(handle);
    objects.erase(handle);
}

}  // namespace gantry::worker
