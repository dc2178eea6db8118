#include "host-daemon/softgpu/core/driver.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

namespace gantry::softgpu {
namespace {

enum class Phase : int { kNone, kReady, kFailed, kExiting, kForked };

std::atomic<Phase> g_phase{Phase::kNone};
std::mutex g_start_mutex;
Driver* g_driver = nullptr;
CUresult g_start_error = CUDA_ERROR_UNKNOWN;

void after_fork_in_child() {
    // Threads, mappings and queues of the parent are not here; CUDA says: not initialised, for
    // good. cuInit itself answers the same.
    g_phase.store(Phase::kForked);
}

void at_process_exit() {
    Phase expected = Phase::kReady;
    g_phase.compare_exchange_strong(expected, Phase::kExiting);
}

}  // namespace

CUresult start_once(CUresult (*start)(Driver& driver)) {
    switch (g_phase.load(std::memory_order_acquire)) {
        case Phase::kReady: return CUDA_SUCCESS;
        case Phase::kFailed: return g_start_error;
        case Phase::kExiting: return CUDA_ERROR_DEINITIALIZED;
        case Phase::kForked: return CUDA_ERROR_NOT_INITIALIZED;
        case Phase::kNone: break;
    }
    const std::lock_guard lock(g_start_mutex);
    if (g_phase.load() != Phase::kNone) {
        return g_phase.load() == Phase::kReady ? CUDA_SUCCESS : g_start_error;
    }
    auto* made = new Driver;
    g_start_error = start(*made);
    if (g_start_error == CUDA_SUCCESS) {
        g_driver = made;
        pthread_atfork(nullptr, nullptr, after_fork_in_child);
        std::atexit(at_process_exit);
    }
    g_phase.store(g_start_error == CUDA_SUCCESS ? Phase::kReady : Phase::kFailed,
                  std::memory_order_release);
    return g_start_error;
}

CUresult check_ready() {
    switch (g_phase.load(std::memory_order_acquire)) {
        case Phase::kReady: return CUDA_SUCCESS;
        case Phase::kExiting: return CUDA_ERROR_DEINITIALIZED;
        default: return CUDA_ERROR_NOT_INITIALIZED;
    }
}

CUresult check_not_forked() {
    return g_phase.load(std::memory_order_acquire) == Phase::kForked ? CUDA_ERROR_NOT_INITIALIZED
                                                                     : CUDA_SUCCESS;
}

Driver& driver() { return *g_driver; }

Device* device_of(int ordinal) {
    const bool known = ordinal >= 0 && static_cast<std::size_t>(ordinal) < g_driver->devices.size();
    return known ? g_driver->devices[static_cast<std::size_t>(ordinal)].get() : nullptr;
}

}  // namespace gantry::softgpu
