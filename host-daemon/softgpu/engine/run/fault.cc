// Faults of kernels. What a kernel may not touch is refused before it is touched (exec/touch.cc).
// What it may touch can still go while it runs, when another thread unmaps or protects it: then
// SIGSEGV or SIGBUS is raised on the engine thread, and the handler (on its own stack) jumps back
// to the thread's recovery point. A signal that is not ours goes to whoever handled it before.
#include <immintrin.h>
#include <signal.h>
#include <ucontext.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>

#include "host-daemon/softgpu/engine/run/launch_state.h"

namespace gantry::softgpu {
namespace {

struct sigaction previous_segv;
struct sigaction previous_bus;

struct PendingFault {
    std::uint64_t address = 0;
    bool bus = false;
};
thread_local volatile std::uint64_t fault_address = 0;
thread_local RecoveryPoint* recovery = nullptr;

void chain(int number, siginfo_t* info, void* context) {
    const struct sigaction& before = number == SIGSEGV ? previous_segv : previous_bus;
    if ((before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction != nullptr) {
        before.sa_sigaction(number, info, context);
        return;
    }
    if (before.sa_handler == SIG_IGN) {
        return;
    }
    if (before.sa_handler != SIG_DFL) {
        before.sa_handler(number);
        return;
    }
    signal(number, SIG_DFL);  // returning runs the instruction again, and ends the process
}

void on_fault(int number, siginfo_t* info, void* context) {
    RecoveryPoint* const point = recovery;
    const bool synchronous = info->si_code > 0;
    if (point == nullptr || !synchronous) {
        chain(number, info, context);
        return;
    }
    fault_address = reinterpret_cast<std::uint64_t>(info->si_addr);
    // The recovery point has no mask, to be cheap. ThreadSanitizer delivers with all signals
    // blocked, whatever install() asked for.
    pthread_sigmask(SIG_SETMASK, &static_cast<ucontext_t*>(context)->uc_sigmask, nullptr);
    siglongjmp(point->buffer, number == SIGBUS ? 2 : 1);
}

void install(int number, struct sigaction& previous) {
    struct sigaction now {};
    sigaction(number, nullptr, &now);
    if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == &on_fault) {
        return;
    }
    previous = now;
    struct sigaction ours {};
    ours.sa_sigaction = &on_fault;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&ours.sa_mask);
    sigaction(number, &ours, nullptr);
}

struct AlternateStack {
    static constexpr std::size_t kBytes = 64 * 1024;
    std::unique_ptr<char[]> memory;
    ~AlternateStack() {
        if (memory) {
            stack_t off{};
            off.ss_flags = SS_DISABLE;
            sigaltstack(&off, nullptr);
        }
    }
};

}  // namespace

void install_fault_handler() {
    // At every launch: the application may have installed its own handler since.
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    install(SIGSEGV, previous_segv);
    install(SIGBUS, previous_bus);
}

void prepare_thread_for_faults() {
    thread_local AlternateStack stack;
    if (stack.memory) {
        return;  // Once a thread: a launch that is empty takes little longer than a system call.
    }
    stack_t now{};
    sigaltstack(nullptr, &now);
    if ((now.ss_flags & SS_DISABLE) == 0) {
        return;
    }
    stack.memory = std::make_unique<char[]>(AlternateStack::kBytes);
    stack_t ours{};
    ours.ss_sp = stack.memory.get();
    ours.ss_size = AlternateStack::kBytes;
    sigaltstack(&ours, nullptr);
}

bool copy_guest_memory(std::uint64_t to, std::uint64_t from, std::uint64_t size) {
    prepare_thread_for_faults();
    RecoveryPoint point;
    const bool done = sigsetjmp(point.buffer, 0) == 0;
    if (done) {
        recovery = &point;
        std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), size);
    }
    recovery = nullptr;
    return done;
}

bool fill_guest_memory(std::uint64_t to, std::uint8_t value, std::uint64_t size) {
    prepare_thread_for_faults();
    RecoveryPoint point;
    const bool done = sigsetjmp(point.buffer, 0) == 0;
    if (done) {
        recovery = &point;
        std::memset(reinterpret_cast<void*>(to), value, size);
    }
    recovery = nullptr;
    return done;
}

RecoveryPoint*& current_recovery() { return recovery; }

std::uint64_t last_fault_address() { return fault_address; }

void ThreadContext::switch_fp_mode(std::uint32_t mode) {
    // MXCSR: all exceptions masked; bits 13-14 rounding; 15 and 6 flush results and inputs.
    const std::uint32_t bits = 0x1f80U | ((mode & 3U) << 13) | ((mode & 4U) != 0 ? 0x8040U : 0U);
    _mm_setcsr(bits);
    fp_mode = mode;
}

ServiceCall::ServiceCall(Warp& warp) : saved_(recovery) {
    warp.thread->set_fp_mode(kFpNearest);
    recovery = nullptr;
    ReachScope::leave();  // A service may wait for whoever waits in Reach::await_kernels().
}

ServiceCall::~ServiceCall() {
    ReachScope::enter();
    saved_->thread.reach.forget();
    recovery = saved_;
}

Services& ServiceCall::services() const { return *saved_->launch->services; }

std::string describe_place(const LaunchState& launch, const Block& block, std::uint32_t warp_index,
                           std::uint32_t lane, const Inst* inst) {
    const Dim3& size = launch.config->block;
    const std::uint32_t thread = warp_index * kLanes + lane;
    char text[256];
    std::snprintf(
        text, sizeof text, "kernel '%s', block (%u,%u,%u), thread (%u,%u,%u), PTX line %u",
        launch.code->name.c_str(), block.x, block.y, block.z, thread % size.x,
        thread / size.x % size.y, thread / size.x / size.y, inst == nullptr ? 0 : inst->line);
    return text;
}

void raise_fault(Warp& warp, const Inst* inst, LaunchError error, std::uint32_t lane,
                 std::uint64_t address, const char* what) {
    RecoveryPoint* const point = recovery;
    GANTRY_ASSERT(point != nullptr, "fault outside a launch: %s", what);
    {
        const ServiceCall scope(warp);
        char text[160];
        std::snprintf(text, sizeof text, "%s (0x%llx): ", what,
                      static_cast<unsigned long long>(address));
        point->launch->fail(
            error, text + describe_place(*point->launch, *warp.block, warp.index, lane, inst));
    }
    siglongjmp(point->buffer, 3);
}

}  // namespace gantry::softgpu
