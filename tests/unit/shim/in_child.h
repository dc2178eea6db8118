// Tests of the session: it is one per process, so the body of each test runs in a child process,
// with a fake worker of its own, and ends it where CHECK_OR_EXIT finds something untrue.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "guest-shim/session/session.h"
#include "tests/unit/shim/fake_worker.h"

#define CHECK_OR_EXIT(condition)                                                   \
    do {                                                                           \
        if (!(condition)) {                                                        \
            std::fprintf(stderr, "line %d: not true: %s\n", __LINE__, #condition); \
            _exit(1);                                                              \
        }                                                                          \
    } while (0)

namespace gantry::test {

/// Any two, of which the worker knows nothing.
inline constexpr auto kOpA = static_cast<cuda::Op>(100);
inline constexpr auto kOpB = static_cast<cuda::Op>(101);

inline CUresult plain_call(cuda::Op op) {
    return session::call(op, nullptr, 0, nullptr, 0, nullptr, 0, nullptr, 0, nullptr);
}

/// Runs `body` in a child that gets no longer than `limit_s`; true when it returned.
template <typename Body>
bool in_child(Body&& body, unsigned limit_s = 60) {
    std::fflush(nullptr);  // Else the child would print what this process has not written yet.
    const pid_t child = fork();
    if (child == 0) {
        alarm(limit_s);
        {
            FakeWorker worker;
            body(worker);
            worker.die(false);
        }
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace gantry::test
