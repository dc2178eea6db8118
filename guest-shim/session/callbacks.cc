// The thread that runs the application's host functions. A kWaitCallback command stays posted on a
// lane of its own; its answer is a callback that is due. Started with the first host callback.
#include <pthread.h>
#include <signal.h>

#include "guest-shim/session/connection.h"

namespace gantry::session {
namespace {

FutexMutex g_threads_mutex;
std::atomic<bool> g_started{false};

void run(const wire::CallbackReply& due) {
    Thread* self = thread();
    self->in_callback = 1;
    if (due.kind == wire::CallbackKind::kHostFunction ||
        due.kind == wire::CallbackKind::kGraphCopy) {
        reinterpret_cast<CUhostFn>(due.function)(reinterpret_cast<void*>(due.user_data));
    } else if (due.kind == wire::CallbackKind::kStreamCallback) {
        reinterpret_cast<CUstreamCallback>(due.function)(reinterpret_cast<CUstream>(due.stream),
                                                         static_cast<CUresult>(due.status),
                                                         reinterpret_cast<void*>(due.user_data));
    }
    self->in_callback = 0;
}

void* serve(void*) {
    if (thread() == nullptr) {
        return nullptr;
    }
    for (;;) {
        wire::CallbackReply due{};
        Exchange command;
        command.op = static_cast<std::uint16_t>(wire::ControlOp::kWaitCallback);
        command.reply = &due;
        command.reply_bytes = sizeof(due);
        const CUresult result = exchange_on(wire::kCallbackLane, 0, &command, false);
        if (result != CUDA_SUCCESS) {
            return nullptr;
        }
        run(due);
        const wire::CallbackDoneCall done{due.callback_id};
        if (post_control(wire::ControlOp::kCallbackDone, &done, sizeof(done), nullptr, 0) !=
            CUDA_SUCCESS) {
            return nullptr;
        }
    }
}

}  // namespace

bool callbacks_started() noexcept { return g_started.load(std::memory_order_acquire); }

CUresult start_callbacks() noexcept {
    if (g_started.load(std::memory_order_acquire)) {
        return CUDA_SUCCESS;
    }
    Guard guard(g_threads_mutex);
    if (g_started.load(std::memory_order_relaxed)) {
        return CUDA_SUCCESS;
    }
    // Signals are the application's threads' business.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t handle;
    const int error = pthread_create(&handle, nullptr, serve, nullptr);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (error != 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    pthread_detach(handle);
    g_started.store(true, std::memory_order_release);
    return CUDA_SUCCESS;
}

}  // namespace gantry::session
