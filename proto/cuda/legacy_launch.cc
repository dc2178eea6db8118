// Launches as before CUDA 4: block shape, shared bytes and parameters are state of the function,
// and a launch takes what was set. Shim and soft driver both compile this file: it keeps the state
// in the program's process, checks what is set, and ends in their cuLaunchKernel, which copies the
// parameters. A state lives until another is made after its function has gone; its handle is a
// function's again at that time or never. Threads: any; a lock guards the states. Libc only.
#include <cstdlib>
#include <cstring>

#include "proto/base/pthread_mutex.h"
#include "proto/cuda/abi.h"
#include "proto/cuda/gen/impl.h"

namespace gantry::cuda {
namespace {

/// What these calls ever promised; cuLaunchKernel takes more.
constexpr unsigned kLegacyParamBytes = 4096;

struct LaunchState {
    CUfunction function;
    LaunchState* next;
    unsigned block[3];
    unsigned shared_bytes;
    unsigned param_bytes;
    unsigned char params[kLegacyParamBytes];
};

PthreadMutex g_launch_states_mutex;
LaunchState* g_launch_states GANTRY_GUARDED_BY(g_launch_states_mutex);

/// The most threads of a block, as a check that the function is one.
CUresult most_threads(CUfunction function, int* threads) noexcept {
    return cuda_impl::cuFuncGetAttribute(threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                                         function);
}

void drop_states_of_dead_functions() noexcept GANTRY_REQUIRES(g_launch_states_mutex) {
    for (LaunchState** link = &g_launch_states; *link != nullptr;) {
        LaunchState* state = *link;
        int threads = 0;
        if (most_threads(state->function, &threads) == CUDA_ERROR_INVALID_HANDLE) {
            *link = state->next;
            std::free(state);
        } else {
            link = &state->next;
        }
    }
}

/// The function's state, made at first use; null when memory is out.
LaunchState* state_of(CUfunction function) noexcept GANTRY_REQUIRES(g_launch_states_mutex) {
    for (LaunchState* state = g_launch_states; state != nullptr; state = state->next) {
        if (state->function == function) {
            return state;
        }
    }
    drop_states_of_dead_functions();
    auto* state = static_cast<LaunchState*>(std::calloc(1, sizeof(LaunchState)));
    if (state != nullptr) {
        state->function = function;
        state->next = g_launch_states;
        g_launch_states = state;
    }
    return state;
}

/// Does something with the state of a live function, under the lock.
template <typename Use>
CUresult with_state(CUfunction function, Use use) noexcept {
    int threads = 0;
    const CUresult result = most_threads(function, &threads);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const PthreadLock lock(g_launch_states_mutex);
    LaunchState* state = state_of(function);
    return state == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : use(*state, threads);
}

CUresult set_params(CUfunction function, int offset, const void* bytes, unsigned count) noexcept {
    if (offset < 0 || bytes == nullptr || count > kLegacyParamBytes ||
        static_cast<unsigned>(offset) > kLegacyParamBytes - count) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return with_state(function, [&](LaunchState& state, int) {
        std::memcpy(state.params + offset, bytes, count);
        return CUDA_SUCCESS;
    });
}

CUresult launch_state(CUfunction function, int width, int height, CUstream stream) noexcept {
    if (width <= 0 || height <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    LaunchState now;
    const CUresult result = with_state(function, [&](LaunchState& state, int) {
        now = state;
        return CUDA_SUCCESS;
    });
    if (result != CUDA_SUCCESS) {
        return result;
    }
    std::size_t bytes = now.param_bytes;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, now.params, CU_LAUNCH_PARAM_BUFFER_SIZE,
                     &bytes, CU_LAUNCH_PARAM_END};
    return cuda_impl::cuLaunchKernel(function, static_cast<unsigned>(width),
                                     static_cast<unsigned>(height), 1, now.block[0], now.block[1],
                                     now.block[2], now.shared_bytes, stream, nullptr, extra);
}

}  // namespace
}  // namespace gantry::cuda

namespace gantry::cuda_impl {

using cuda::LaunchState;

CUresult cuFuncSetBlockShape(CUfunction hfunc, int x, int y, int z) noexcept {
    if (x <= 0 || y <= 0 || z <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return cuda::with_state(hfunc, [&](LaunchState& state, int most) {
        if (x > most || y > most / x || z > most / x / y) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        state.block[0] = static_cast<unsigned>(x);
        state.block[1] = static_cast<unsigned>(y);
        state.block[2] = static_cast<unsigned>(z);
        return CUDA_SUCCESS;
    });
}

CUresult cuFuncSetSharedSize(CUfunction hfunc, unsigned int bytes) noexcept {
    return cuda::with_state(hfunc, [&](LaunchState& state, int) {
        state.shared_bytes = bytes;
        return CUDA_SUCCESS;
    });
}

CUresult cuParamSetSize(CUfunction hfunc, unsigned int numbytes) noexcept {
    if (numbytes > cuda::kLegacyParamBytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return cuda::with_state(hfunc, [&](LaunchState& state, int) {
        state.param_bytes = numbytes;
        return CUDA_SUCCESS;
    });
}

CUresult cuParamSeti(CUfunction hfunc, int offset, unsigned int value) noexcept {
    return cuda::set_params(hfunc, offset, &value, sizeof(value));
}

CUresult cuParamSetf(CUfunction hfunc, int offset, float value) noexcept {
    return cuda::set_params(hfunc, offset, &value, sizeof(value));
}

CUresult cuParamSetv(CUfunction hfunc, int offset, void* ptr, unsigned int numbytes) noexcept {
    return cuda::set_params(hfunc, offset, ptr, numbytes);
}

CUresult cuLaunch(CUfunction f) noexcept { return cuda::launch_state(f, 1, 1, nullptr); }

CUresult cuLaunchGrid(CUfunction f, int grid_width, int grid_height) noexcept {
    return cuda::launch_state(f, grid_width, grid_height, nullptr);
}

CUresult cuLaunchGridAsync(CUfunction f, int grid_width, int grid_height,
                           CUstream hStream) noexcept {
    return cuda::launch_state(f, grid_width, grid_height, hStream);
}

}  // namespace gantry::cuda_impl
