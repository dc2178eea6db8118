// GuestProcess: a context that a sticky error has poisoned, here or on the worker that had it
// before.
//
// Natively every later call of the device gives that same error until the process ends, whatever
// the context held. So a process in that state is moved as its channel and the error alone: no
// object, no memory, no code. Its new worker has a sound context, which it must not touch.
#include <chrono>
#include <mutex>

#include "host-daemon/driver/driver_library.h"
#include "host-daemon/execution/process/call.h"
#include "host-daemon/execution/process/guest_process.h"
#include "proto/cuda/gen/op_table.h"

namespace gantry::worker {
namespace {

/// Between two questions while calls wait for host callbacks, which may never come any more.
constexpr std::chrono::milliseconds kBrokenEvery{5};

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

}  // namespace

void GuestProcess::note_sticky(CUresult result) {
    std::uint32_t none = 0;
    sticky_error.compare_exchange_strong(none, static_cast<std::uint32_t>(result));
    if (memory_ != nullptr) {
        memory_->host_words().sticky_error.store(sticky_error.load(), std::memory_order_release);
    }
}

bool GuestProcess::finds_broken() {
    // A capture that begins meanwhile would be lost by the question.
    std::unique_lock gate(capture_gate, std::defer_lock);
    if (!is_broken() && gate.try_lock() && captures.load() == 0) {
        bind_thread();
        const CUresult result = device.api().cuStreamQuery(nullptr);
        if (driver::is_sticky(result)) {
            note_sticky(result);
        }
    }
    return is_broken();
}

bool GuestProcess::finds_broken(std::chrono::steady_clock::time_point now) {
    if (now < broken_due_) {
        return is_broken();
    }
    broken_due_ = now + kBrokenEvery;
    return finds_broken();
}

void GuestProcess::lose_context(CUresult error) {
    sticky_error = static_cast<std::uint32_t>(error);
    has_lost_context_ = error != CUDA_SUCCESS;
}

bool GuestProcess::refuse_for_lost_context(Call& call) {
    if (!needs_device(call.number())) {
        return false;
    }
    // A context with such an error cannot be reset.
    const bool resets =
        call.number() == static_cast<std::uint16_t>(cuda::Op::cuDevicePrimaryCtxReset_v2);
    call.finish(resets ? CUDA_ERROR_NOT_PERMITTED : static_cast<CUresult>(sticky_error.load()));
    return true;
}

}  // namespace gantry::worker
