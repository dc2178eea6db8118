// What the log of a worker says that a signal ends, and that the signal ends it all the same.
#include "host-daemon/execution/base/crash_log.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "host-daemon/execution/base/log.h"
#include "proto/cuda/gen/opcodes.h"
#include "proto/wire/control_ops.h"

namespace gantry::worker {
namespace {

struct End {
    int status = 0;
    std::string log;
};

/// Runs `fault` in a process of its own, whose log is a pipe.
template <typename Fault>
End end_by(std::uint16_t op, Fault fault) {
    int log[2];
    EXPECT_EQ(pipe(log), 0);
    const pid_t child = fork();
    if (child == 0) {
        // Not the sanitizer's report, which ends a process in its own way.
        for (const int number : {SIGSEGV, SIGABRT}) {
            signal(number, SIG_DFL);
        }
        set_log_descriptor(log[1]);
        install_last_words();
        note_command(op);
        fault();
        _exit(0);
    }
    close(log[1]);
    End end;
    char text[512];
    for (ssize_t got = 0; (got = read(log[0], text, sizeof text)) > 0;) {
        end.log.append(text, static_cast<std::size_t>(got));
    }
    close(log[0]);
    waitpid(child, &end.status, 0);
    return end;
}

void expect_end(const End& end, int number, const std::string& words) {
    EXPECT_TRUE(WIFSIGNALED(end.status)) << end.status;
    EXPECT_EQ(WTERMSIG(end.status), number);
    EXPECT_NE(end.log.find(words), std::string::npos) << end.log;
    EXPECT_EQ(end.log.find('\n'), end.log.size() - 1) << "one line: " << end.log;
}

TEST(CrashLog, AFaultNamesItsAddressAndTheLastCommand) {
    const End end = end_by(static_cast<std::uint16_t>(cuda::Op::cuLaunchKernel), [] {
        int* volatile nowhere = reinterpret_cast<int*>(0x10'0000);
        // The instruction itself, so that no check of a sanitizer comes first.
        asm volatile("movl $1, (%0)" : : "r"(nowhere) : "memory");
    });
    expect_end(end, SIGSEGV,
               "ended by signal 11 (Segmentation fault) at address 0x100000; the last command of "
               "the guest: cuLaunchKernel");
}

TEST(CrashLog, AnAbortAndASignalFromOutsideNameTheLastCommand) {
    expect_end(
        end_by(static_cast<std::uint16_t>(wire::ControlOp::kReadDevice), [] { abort(); }), SIGABRT,
        "ended by signal 6 (Aborted); the last command of the guest: a copy from the device");
    expect_end(end_by(0, [] { kill(getpid(), SIGSEGV); }), SIGSEGV,
               "ended by signal 11 (Segmentation fault); the last command of the guest: none");
}

}  // namespace
}  // namespace gantry::worker
