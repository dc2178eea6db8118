#include "host-daemon/execution/base/crash_log.h"

#include <signal.h>
#include <string.h>

#include <array>
#include <cstddef>

#include "host-daemon/execution/base/log.h"
#include "proto/cuda/gen/op_table.h"
#include "proto/wire/control_ops.h"

namespace gantry::worker {
namespace crash_log {

std::atomic<std::uint16_t> command{0};

}  // namespace crash_log

namespace {

constexpr std::array kFaults = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
std::array<struct sigaction, kFaults.size()> handlers_before;

/// Of this worker's own protocol: what the guest's calls became.
constexpr std::array<const char*, 19> kControlNames = {"",
                                                       "",
                                                       "a greeting",
                                                       "device facts",
                                                       "a confirmation",
                                                       "an image",
                                                       "an image's end",
                                                       "a copy to the device",
                                                       "a copy from the device",
                                                       "a callback's wait",
                                                       "a callback's end",
                                                       "output",
                                                       "a goodbye",
                                                       "a look at an event",
                                                       "a bulk copy to the device",
                                                       "a bulk copy from the device",
                                                       "a look at a bulk copy",
                                                       "a look at memory",
                                                       "a profile"};
static_assert(static_cast<std::size_t>(wire::ControlOp::kProfile) + 1 == kControlNames.size());

const char* command_name(std::uint16_t op) {
    if (op == 0) {
        return "none";
    }
    const char* name =
        op < kControlNames.size() ? kControlNames[op] : cuda::op_name(static_cast<cuda::Op>(op));
    return name != nullptr ? name : "unknown";
}

void on_fault(int number, siginfo_t* info, void* context) {
    // Only what may be called here: the line is made on the stack and written at once.
    static std::atomic_flag is_said;
    const char* name = command_name(crash_log::command.load(std::memory_order_relaxed));
    const char* description = sigdescr_np(number);
    if (is_said.test_and_set()) {
        // A second thread, or the handler before gave the fault back to the instruction.
    } else if (number == SIGABRT || info->si_code <= 0) {
        log_line("ended by signal %d (%s); the last command of the guest: %s", number, description,
                 name);
    } else {
        log_line("ended by signal %d (%s) at address %p; the last command of the guest: %s", number,
                 description, info->si_addr, name);
    }
    for (std::size_t i = 0; i < kFaults.size(); ++i) {
        if (kFaults[i] == number && (handlers_before[i].sa_flags & SA_SIGINFO) != 0 &&
            handlers_before[i].sa_sigaction != nullptr) {
            handlers_before[i].sa_sigaction(number, info, context);
            return;
        }
    }
    signal(number, SIG_DFL);
    raise(number);  // Ends it now or, where the signal is blocked, when this returns.
}

}  // namespace

void install_last_words() {
    for (std::size_t i = 0; i < kFaults.size(); ++i) {
        struct sigaction ours {};
        ours.sa_sigaction = &on_fault;
        ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigemptyset(&ours.sa_mask);
        sigaction(kFaults[i], &ours, &handlers_before[i]);
    }
}

}  // namespace gantry::worker
