#include "host-daemon/softgpu/core/thread_state.h"

#include <pthread.h>

#include "host-daemon/softgpu/core/driver.h"
#include "host-daemon/softgpu/core/errors.h"

namespace gantry::softgpu {
namespace {

pthread_key_t g_thread_key;
pthread_once_t g_thread_key_once = PTHREAD_ONCE_INIT;
std::atomic<void (*)(ThreadState&)> g_at_end{nullptr};

void end_thread(void* memory) {
    auto* state = static_cast<ThreadState*>(memory);
    if (auto* const at_end = g_at_end.load()) {
        at_end(*state);
    }
    delete state;
}

void make_thread_key() { pthread_key_create(&g_thread_key, end_thread); }

}  // namespace

void set_thread_end(void (*at_end)(ThreadState& state)) { g_at_end.store(at_end); }

ThreadState& thread_state() {
    // A plain pointer: still valid when static destructors run after the thread's own have.
    static thread_local ThreadState* state = nullptr;
    if (state == nullptr) {
        pthread_once(&g_thread_key_once, make_thread_key);
        state = new ThreadState;
        pthread_setspecific(g_thread_key, state);
    }
    return *state;
}

CUresult current_context_even_poisoned(std::shared_ptr<Context>& context) {
    GANTRY_CU(check_ready());
    const ThreadState& state = thread_state();
    GANTRY_REFUSE_IF(state.in_host_callback, CUDA_ERROR_NOT_PERMITTED);
    GANTRY_REFUSE_IF(state.stack.empty() || state.stack.back() == nullptr,
                     CUDA_ERROR_INVALID_CONTEXT);
    context = state.stack.back();
    return context->alive.load() ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult current_context(std::shared_ptr<Context>& context) {
    GANTRY_CU(current_context_even_poisoned(context));
    return poison();
}

}  // namespace gantry::softgpu
