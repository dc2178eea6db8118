#include "host-daemon/execution/process/held_work.h"

#include <algorithm>

#include "proto/cuda/gen/op_flags.h"
#include "proto/cuda/gen/op_table.h"
#include "proto/cuda/gen/opcodes.h"

namespace gantry::worker {
namespace {

using cuda::OpEffect;
using wire::ControlOp;

bool is_cuda(const Command& command) { return command.header.op >= cuda::kFirstOp; }

cuda::Op op_of(const Command& command) { return static_cast<cuda::Op>(command.header.op); }

bool is_control(const Command& command, ControlOp op) {
    return command.header.op == static_cast<std::uint16_t>(op);
}

const cuda::OpFacts& facts_of(const Command& command) { return cuda::op_facts(op_of(command)); }

bool queues_callback(const Command& command) {
    return is_cuda(command) && (cuda::op_flags(op_of(command)) & cuda::kOpQueuesCallback) != 0;
}

bool records_event(const Command& command) {
    return is_cuda(command) && facts_of(command).recorded.bytes != 0;
}

bool waits_for_event(const Command& command) {
    return is_cuda(command) && facts_of(command).awaited.bytes != 0;
}

/// Does nothing but put work into streams, so that it may be done again where none of it ran.
bool is_pure_work(const Command& command) {
    if (!is_cuda(command)) {
        return is_control(command, ControlOp::kWriteDevice) ||
               is_control(command, ControlOp::kWriteFromBulk) ||
               is_control(command, ControlOp::kReadToBulk);
    }
    const OpEffect effect = cuda::op_info(op_of(command)).effect;
    return effect == OpEffect::kWrites || effect == OpEffect::kLaunches || records_event(command) ||
           waits_for_event(command) || queues_callback(command);
}

/// Changes nothing that work behind a callback may need.
bool is_harmless(const Command& command) {
    if (!is_cuda(command)) {
        return true;  // Control commands but for copies have no effect on streams.
    }
    switch (cuda::op_info(op_of(command)).effect) {
        case OpEffect::kNone:
        case OpEffect::kCreates:
        case OpEffect::kSynchronises:
        case OpEffect::kWrites:
        case OpEffect::kLaunches: return true;
        default: return records_event(command) || waits_for_event(command);
    }
}

}  // namespace

thread_local std::vector<HeldWork::Touch> HeldWork::touched_;
thread_local bool HeldWork::is_wait_ = false;
thread_local bool HeldWork::is_collecting_ = false;

std::uint64_t HeldWork::key_of(const Command& command, std::uint64_t stream) {
    return key_of(command.header.lane, stream);
}

void HeldWork::begin(std::uint64_t position) {
    const MutexLock lock(mutex_);
    executed_.insert(position);
}

bool HeldWork::begin_touches(const Command& command, bool is_capturing) {
    const bool is_noted = active() || queues_callback(command);
    if (is_noted) {
        touched_.clear();
        is_wait_ = waits_for_event(command);
    }
    // A stream that captures must not be asked for its flags: that costs the capture (NVIDIA's
    // driver 580). Nor need it be, as what is captured is not held.
    is_collecting_ = is_noted && !is_capturing;
    return is_noted;
}

void HeldWork::mark_irregular() {
    const MutexLock lock(mutex_);
    irregular_ = irregular_ || !open_.empty();
}

void HeldWork::add_touch(std::uint64_t key, CUstream native) {
    Touch touch{key, is_blocking(native), true};
    if (is_wait_ && active()) {
        touch.was_idle = device_.api().cuStreamQuery(native) != CUDA_ERROR_NOT_READY;
    }
    touched_.push_back(touch);
}

bool HeldWork::is_blocking(CUstream native) const {
    unsigned int flags = 0;
    return native == nullptr || device_.api().cuStreamGetFlags == nullptr ||
           device_.api().cuStreamGetFlags(native, &flags) != CUDA_SUCCESS ||
           (flags & CU_STREAM_NON_BLOCKING) == 0;
}

HeldWork::Roots HeldWork::roots_of_locked(std::uint64_t key, bool blocking) const {
    Roots roots;
    const auto add = [&](const Stream& stream) {
        roots.insert(stream.roots.begin(), stream.roots.end());
    };
    for (const auto& [other, stream] : streams_) {
        const bool is_legacy_pair = blocking && stream.blocking && (key == 0 || other == 0);
        if (other == key || is_legacy_pair) {
            add(stream);
        }
    }
    return roots;
}

void HeldWork::block_locked(std::uint64_t key, bool blocking, const Roots& roots) {
    Stream& stream = streams_[key];
    stream.blocking = blocking;
    stream.roots.insert(roots.begin(), roots.end());
}

void HeldWork::note(const Command& command, bool succeeded) {
    const bool opens = queues_callback(command);
    const std::uint64_t position = command.header.position;
    const MutexLock lock(mutex_);
    if (!succeeded || (open_.empty() && !opens) || (opens && position == closed_early_)) {
        return;
    }
    Roots roots;
    bool was_idle = true;
    for (const Touch& touch : touched_) {
        const Roots of_stream = roots_of_locked(touch.key, touch.blocking);
        roots.insert(of_stream.begin(), of_stream.end());
        was_idle = was_idle && touch.was_idle;
    }
    if (waits_for_event(command)) {
        const auto event = events_.find(facts_of(command).awaited.read(command.args));
        if (event != events_.end()) {
            // What ran in this stream before cannot be told from what waits now.
            irregular_ = irregular_ || (roots.empty() && !was_idle);
            roots.insert(event->second.begin(), event->second.end());
        }
    }
    if (opens) {
        roots.insert(position);
        open_.insert(position);
        executed_.insert(position);
        active_.store(true, std::memory_order_relaxed);
    }
    if (records_event(command)) {
        events_[facts_of(command).recorded.read(command.args)] = roots;
    }
    if (roots.empty()) {
        irregular_ = irregular_ || !is_harmless(command);
        return;
    }
    if (command.wants_reply() || !is_pure_work(command)) {
        // Answered already: done, if it asked or made something; else it is both done and waiting.
        irregular_ = irregular_ || is_pure_work(command) || !is_harmless(command);
        return;
    }
    for (const std::uint64_t root : roots) {
        behind_[root].push_back(position);
    }
    for (const Touch& touch : touched_) {
        if (opens) {
            streams_[touch.key].roots.clear();  // They close before this one does.
        }
        block_locked(touch.key, touch.blocking, opens ? Roots{position} : roots);
    }
    held_[position] = std::move(roots);
}

void HeldWork::close(std::uint64_t root) {
    const MutexLock lock(mutex_);
    if (open_.erase(root) == 0) {
        closed_early_ = root;
        return;
    }
    if (open_.empty()) {
        streams_.clear();
        events_.clear();
        held_.clear();
        behind_.clear();
        executed_.clear();
        irregular_ = false;
        active_.store(false, std::memory_order_relaxed);
        return;
    }
    for (auto& [key, stream] : streams_) {
        stream.roots.erase(root);
    }
    for (auto& [event, roots] : events_) {
        roots.erase(root);
    }
    if (const auto behind = behind_.extract(root)) {
        for (const std::uint64_t position : behind.mapped()) {
            const auto held = held_.find(position);
            held->second.erase(root);
            if (held->second.empty()) {
                held_.erase(held);
            }
        }
    }
    executed_.erase(executed_.begin(), executed_.lower_bound(*open_.begin()));
}

bool HeldWork::waits(const Command& command) const {
    const MutexLock lock(mutex_);
    if (open_.empty() || command.header.position < *open_.begin()) {
        return false;
    }
    const auto stream_waits = [&](std::uint64_t stream) GANTRY_REQUIRES(mutex_) {
        const auto known = streams_.find(key_of(command, stream));
        const bool blocking = known == streams_.end() || known->second.blocking;
        return !roots_of_locked(key_of(command, stream), blocking).empty();
    };
    if (is_control(command, ControlOp::kReadDevice)) {
        return stream_waits(
            command.arguments<wire::ReadDeviceCall>().value_or(wire::ReadDeviceCall{}).stream);
    }
    if (!is_cuda(command)) {
        return false;
    }
    const cuda::OpFacts& facts = facts_of(command);
    const std::uint64_t waited = facts.waited.read(command.args);
    switch (facts.waits_for) {
        case cuda::OpWait::kStream: return stream_waits(waited);
        case cuda::OpWait::kEvent: {
            const auto event = events_.find(waited);
            return event != events_.end() && !event->second.empty();
        }
        case cuda::OpWait::kContext: return true;
        case cuda::OpWait::kNothing:  // Copies that the calling thread waits for.
            return cuda::op_info(op_of(command)).effect == OpEffect::kWrites && stream_waits(0);
    }
    return false;
}

bool HeldWork::is_regular() const {
    const MutexLock lock(mutex_);
    return !irregular_;
}

HeldWork::Roots HeldWork::first_roots() const {
    const MutexLock lock(mutex_);
    Roots first;
    for (const std::uint64_t root : open_) {
        const auto held = held_.find(root);
        if (held != held_.end() && held->second.size() == 1) {
            first.insert(root);
        }
    }
    return first;
}

std::size_t HeldWork::root_count() const {
    const MutexLock lock(mutex_);
    return open_.size();
}

bool HeldWork::is_free(std::uint64_t key, CUstream native) const {
    const bool blocking = is_blocking(native);
    const MutexLock lock(mutex_);
    return roots_of_locked(key, blocking).empty();
}

std::uint64_t HeldWork::first_position() const {
    const MutexLock lock(mutex_);
    return open_.empty() ? 0 : *open_.begin();
}

std::set<std::uint64_t> HeldWork::executed() const {
    const MutexLock lock(mutex_);
    std::set<std::uint64_t> out = executed_;
    for (const auto& [position, roots] : held_) {
        out.erase(position);
    }
    return out;
}

}  // namespace gantry::worker
