#include "host-daemon/softgpu/run/driver.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "host-daemon/softgpu/graph/capture.h"
#include "host-daemon/softgpu/memory/arena.h"
#include "host-daemon/softgpu/run/context.h"
#include "host-daemon/softgpu/settings.h"
#include "proto/cuda/settings.h"

namespace gantry::softgpu {
namespace {

enum class Phase : int { kNone, kReady, kFailed, kExiting, kForked };

std::atomic<Phase> g_phase{Phase::kNone};
std::atomic<int> g_poison{0};
std::mutex g_start_mutex;
Driver* g_driver = nullptr;
CUresult g_start_error = CUDA_ERROR_UNKNOWN;

std::mutex g_report_mutex;
void (*g_report_sink)(void*, const char*, std::size_t) = nullptr;
void* g_report_user = nullptr;

pthread_key_t g_thread_key;
pthread_once_t g_thread_key_once = PTHREAD_ONCE_INIT;

void end_thread(void* memory) {
    auto* state = static_cast<ThreadState*>(memory);
    for (const auto& [context, stream] : state->default_streams) {
        abandon_capture(stream);
        if (const auto alive = stream->context()) {
            Scheduler::instance().remove(*alive, stream);
        }
    }
    delete state;
}

void make_thread_key() { pthread_key_create(&g_thread_key, end_thread); }

void after_fork_in_child() {
    // Threads, mappings and queues of the parent are not here; CUDA says: not initialised, for
    // good. cuInit itself answers the same.
    g_phase.store(Phase::kForked);
}

void at_process_exit() {
    Phase expected = Phase::kReady;
    g_phase.compare_exchange_strong(expected, Phase::kExiting);
}

/// Leaves the devices that CUDA_VISIBLE_DEVICES shows, in its order.
CUresult choose_visible(std::vector<GpuProfile>& profiles) {
    std::vector<CUuuid> uuids(profiles.size());
    std::vector<unsigned> shown(profiles.size());
    for (std::size_t i = 0; i < profiles.size(); ++i) {
        std::memcpy(uuids[i].bytes, profiles[i].uuid.data(), sizeof(uuids[i].bytes));
    }
    const cuda::VisibleDevices visible =
        cuda::visible_devices(std::getenv("CUDA_VISIBLE_DEVICES"), uuids.data(),
                              static_cast<unsigned>(uuids.size()), shown.data());
    std::vector<GpuProfile> chosen;
    for (unsigned i = 0; i < visible.count; ++i) {
        chosen.push_back(std::move(profiles[shown[i]]));
    }
    profiles = std::move(chosen);
    return visible.result;
}

CUresult start() {
    if (const auto settings = check_settings(environ); !settings.ok()) {
        report(settings.error().to_string());
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto profiles = load_profiles();
    if (!profiles.ok()) {
        report(profiles.error().to_string());
        return CUDA_ERROR_NO_DEVICE;
    }
    GANTRY_CU(choose_visible(*profiles));
    const bool foreign = std::any_of(profiles->begin(), profiles->end(),
                                     [](const GpuProfile& each) { return each.foreign != 0; });
    if (!Arena::instance().reserve(foreign)) {
        report(std::string("The address window of device memory (0x200000000000, 8 TiB) cannot be "
                           "reserved: ") +
               std::strerror(errno) + ". Lift RLIMIT_AS, or unmap what lies there.");
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    auto* made = new Driver;
    for (GpuProfile& profile : *profiles) {
        const auto ordinal = static_cast<int>(made->devices.size());
        auto device = std::make_unique<Device>(ordinal, std::move(profile));
        device->primary = std::make_shared<Context>(*device, 0, true);
        HandleTable::instance().publish(device->primary);
        device->primary->start();
        made->devices.push_back(std::move(device));
    }
    g_driver = made;
    pthread_atfork(nullptr, nullptr, after_fork_in_child);
    std::atexit(at_process_exit);
    return CUDA_SUCCESS;
}

}  // namespace

CUresult initialise() {
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
    g_start_error = start();
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

CUresult poison() { return static_cast<CUresult>(g_poison.load(std::memory_order_relaxed)); }

void set_poison(CUresult error, const std::string& text) {
    int expected = 0;
    if (g_poison.compare_exchange_strong(expected, static_cast<int>(error))) {
        report(text);
    }
}

void report(const std::string& text) {
    static const bool silent = [] {
        const char* level = std::getenv("GANTRY_SOFT_LOG");
        return level != nullptr && std::strcmp(level, "off") == 0;
    }();
    if (text.empty()) {
        return;
    }
    const std::string line = "gantry soft GPU: " + text + "\n";
    const std::lock_guard lock(g_report_mutex);
    if (g_report_sink != nullptr) {
        g_report_sink(g_report_user, line.data(), line.size());
    } else if (!silent) {
        [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
    }
}

void report_refusal(const std::string& text) {
    static const bool loud = [] {
        const char* level = std::getenv("GANTRY_SOFT_LOG");
        return level != nullptr && std::strcmp(level, "refusals") == 0;
    }();
    if (loud) {
        report(text);
    }
}

void set_report_sink(void (*sink)(void*, const char*, std::size_t), void* user) {
    const std::lock_guard lock(g_report_mutex);
    g_report_sink = sink;
    g_report_user = user;
}

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
    if (state.in_host_callback) {
        return CUDA_ERROR_NOT_PERMITTED;
    }
    if (state.stack.empty() || state.stack.back() == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    context = state.stack.back();
    return context->alive.load() ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult current_context(std::shared_ptr<Context>& context) {
    GANTRY_CU(current_context_even_poisoned(context));
    return poison();
}

CUresult resolve_stream(const std::shared_ptr<Context>& context, CUstream handle,
                        std::shared_ptr<Stream>& stream) {
    if (handle == nullptr || handle == CU_STREAM_LEGACY) {
        stream = context->legacy_stream;
        return CUDA_SUCCESS;
    }
    if (handle == CU_STREAM_PER_THREAD) {
        std::shared_ptr<Stream>& mine = thread_state().default_streams[context.get()];
        if (mine == nullptr || mine->context() != context) {
            mine = std::make_shared<Stream>(context, CU_STREAM_DEFAULT, 0);
            Scheduler::instance().add(*context, mine);
        }
        stream = mine;
        return CUDA_SUCCESS;
    }
    stream = find<Stream>(handle);
    return stream != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace gantry::softgpu
