// SerialExecutor: one thread that runs posted functions in order, and one timer.
//
// Invariant: what runs on an executor never overlaps with anything else on it, so the state that
// belongs to it needs no locks. stop() lets the function in hand end, drops what is queued and
// joins. Threads: post() and stop() from any but stop() not from the executor itself. Cost: a mutex
// and a wake-up per post.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

namespace gantry::supervisor {

class SerialExecutor {
public:
    using Clock = std::chrono::steady_clock;

    explicit SerialExecutor(std::function<void()> on_timer = {});
    ~SerialExecutor() { stop(); }
    SerialExecutor(const SerialExecutor&) = delete;
    SerialExecutor& operator=(const SerialExecutor&) = delete;

    /// False when the executor has been stopped: the function will not run.
    bool post(std::function<void()> function);
    /// When on_timer is due; only from the executor's own thread.
    void set_timer(std::optional<Clock::time_point> due) { due_ = due; }
    void stop();
    [[nodiscard]] bool is_current() const { return std::this_thread::get_id() == thread_.get_id(); }

private:
    void run();

    std::function<void()> on_timer_;
    std::optional<Clock::time_point> due_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> queue_;
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace gantry::supervisor
