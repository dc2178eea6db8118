// Runtime: time, order, chance and the end of the process, for code that would else have threads
// and a clock of its own. gantryd has one that is real; tests/sim has one that a seed decides.
//
// Threads: all of Runtime and post() from any; set_timer() only from the executor's own thread.
// Failure: as SerialExecutor. Cost: a virtual call beside it.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "proto/base/mutex.h"

namespace gantry::supervisor {

/// As SerialExecutor (proto/base/serial_executor.h): posted functions in order, and one timer.
class Executor {
public:
    virtual ~Executor() = default;
    /// False: stopped, the function will not run.
    virtual bool post(std::function<void()> function) = 0;
    virtual void set_timer(std::optional<std::chrono::steady_clock::time_point> due) = 0;
    /// Lets the function in hand end and drops the others. Not from the executor itself.
    virtual void stop() = 0;
};

/// As CondVar (proto/base/mutex.h).
class Condition {
public:
    virtual ~Condition() = default;
    virtual void wait(MutexLock& lock) = 0;
    virtual void notify_all() = 0;
};

class Runtime {
public:
    using Clock = std::chrono::steady_clock;

    virtual ~Runtime() = default;
    [[nodiscard]] virtual Clock::time_point now() = 0;
    virtual void sleep_for(Clock::duration time) = 0;
    [[nodiscard]] virtual std::unique_ptr<Executor> make_executor(
        std::function<void()> on_timer) = 0;
    [[nodiscard]] virtual std::unique_ptr<Condition> make_condition() = 0;
    /// 128 bits that nobody can guess.
    [[nodiscard]] virtual std::array<std::uint64_t, 2> random_bits() = 0;
    /// At once, and nothing is cleaned up: only the disk can tell how to go on.
    [[noreturn]] virtual void end_process(int status) = 0;
};

/// The system's clock, threads and random bits.
[[nodiscard]] Runtime& real_runtime();

}  // namespace gantry::supervisor
