// Per-thread state: the lane, and the stack of current contexts.
#include <pthread.h>
#include <unistd.h>

#include <cstdlib>

#include "guest-shim/session/connection.h"
#include "guest-shim/session/profile.h"

namespace gantry::session {
namespace {

// One pointer of static TLS: reading it costs one instruction, also from a dlopened library.
thread_local Thread* t_thread __attribute__((tls_model("initial-exec"))) = nullptr;

pthread_key_t g_key;
pthread_once_t g_key_once = PTHREAD_ONCE_INIT;
FutexMutex g_lane_mutex;
std::uint32_t g_lane_users[wire::kLaneCount] GANTRY_GUARDED_BY(g_lane_mutex);
bool g_lane_left[wire::kLaneCount] GANTRY_GUARDED_BY(
    g_lane_mutex);  // A thread that had it has ended.

void release_lane(std::uint32_t lane) {
    Guard guard(g_lane_mutex);
    --g_lane_users[lane];
    g_lane_left[lane] = true;
}

/// A lane of its own while there are some, else the one with the fewest users. `flags`: what to say
/// with the first command.
std::uint32_t acquire_lane(std::uint32_t* flags) {
    Guard guard(g_lane_mutex);
    std::uint32_t best = 0;
    for (std::uint32_t lane = 0; lane < kSharedLanes; ++lane) {
        if (g_lane_users[lane] < g_lane_users[best]) {
            best = lane;
        }
        if (g_lane_users[best] == 0) {
            break;
        }
    }
    const bool is_inherited = g_lane_users[best] == 0 && g_lane_left[best];
    *flags = is_inherited ? wire::kCommandNewThread : 0u;
    g_lane_left[best] = g_lane_left[best] && !is_inherited;
    ++g_lane_users[best];
    return best;
}

void destroy_thread(void* value) {
    auto* state = static_cast<Thread*>(value);
    end_profile(state);
    t_thread = nullptr;
    release_lane(state->lane);
    std::free(state->contexts);
    std::free(state);
}

void make_key() { pthread_key_create(&g_key, destroy_thread); }

Thread* make_thread() {
    pthread_once(&g_key_once, make_key);
    auto* state = static_cast<Thread*>(std::calloc(1, sizeof(Thread)));
    if (state == nullptr) {
        return nullptr;
    }
    state->lane = acquire_lane(&state->next_flags);
    pthread_setspecific(g_key, state);
    t_thread = state;
    return state;
}

}  // namespace

Thread* thread() noexcept {
    Thread* state = t_thread;
    return __builtin_expect(state != nullptr, 1) ? state : make_thread();
}

bool shares_lane() noexcept {
    const Thread* state = thread();
    Guard guard(g_lane_mutex);
    return state != nullptr && g_lane_users[state->lane] > 1;
}

void wait_follows() noexcept {
    if (Thread* state = thread(); state != nullptr) {
        state->next_flags |= wire::kCommandIsAwaited;
    }
}

std::uint64_t current_context() noexcept {
    const Thread* state = t_thread;
    return state != nullptr ? state->current : 0;
}

CUresult push_context(std::uint64_t context) noexcept {
    Thread* state = thread();
    if (state == nullptr) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (state->depth == state->capacity) {
        const std::uint32_t capacity = state->capacity == 0 ? 8 : state->capacity * 2;
        void* grown = std::realloc(state->contexts, capacity * sizeof(std::uint64_t));
        if (grown == nullptr) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        state->contexts = static_cast<std::uint64_t*>(grown);
        state->capacity = capacity;
    }
    state->contexts[state->depth++] = context;
    state->current = context;
    return CUDA_SUCCESS;
}

std::uint64_t pop_context() noexcept {
    Thread* state = thread();
    if (state == nullptr || state->depth == 0) {
        return 0;
    }
    const std::uint64_t top = state->contexts[--state->depth];
    state->current = state->depth == 0 ? 0 : state->contexts[state->depth - 1];
    return top;
}

CUresult set_context(std::uint64_t context) noexcept {
    Thread* state = thread();
    if (state == nullptr) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (context == 0) {
        pop_context();
        return CUDA_SUCCESS;
    }
    if (state->depth == 0) {
        return push_context(context);
    }
    state->contexts[state->depth - 1] = context;
    state->current = context;
    return CUDA_SUCCESS;
}

}  // namespace gantry::session
