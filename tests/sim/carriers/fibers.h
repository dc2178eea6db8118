// Fibers: functions that stop in the middle and go on later, all on one thread, so that code that
// blocks can run in a simulation.
//
// A fiber runs from start() or resume() until it suspends or ends. kill() ends one where it stands:
// its suspend() throws Killed, which unwinds it. Not thread-safe. Cost: a stack of 256 KiB each,
// used again, and two calls of the system for a switch.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace gantry::sim {

struct Killed {};

class Fiber {
public:
    explicit Fiber(std::function<void()> work);
    ~Fiber();
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;

    /// Until it suspends or ends.
    void resume();
    void kill();
    /// Of the fiber that runs.
    static void suspend();
    /// nullptr: none runs.
    static Fiber* current();
    [[nodiscard]] bool is_done() const { return is_done_; }

    std::uint64_t task = 0;   ///< Number of the function that an executor runs in it.
    bool is_hurried = false;  ///< It does not sleep any more: somebody waits for its end.

private:
    static void enter();
    void run();

    std::function<void()> work_;
    std::unique_ptr<std::byte[]> stack_;
    ucontext_t context_{};
    ucontext_t resumer_{};
    Fiber* outer_ = nullptr;  ///< Which resumed it.
    void* fake_stack_ = nullptr;
    bool is_killed_ = false;
    bool is_done_ = false;
};

}  // namespace gantry::sim
