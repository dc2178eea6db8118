// SerialExecutor: one thread that runs posted functions in order, and one timer.
//
// Invariant: what runs on an executor never overlaps with anything else on it, so the state that
// belongs to it needs no locks. stop() lets the function in hand end, drops what is queued and
// joins. Threads:
// post(), close() and stop() from any but stop() not from the executor itself. Failure: functions
// report by their own means and do not throw. Cost: a mutex and a wake-up per post.
#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <optional>
#include <thread>

#include "proto/base/mutex.h"

namespace gantry {

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
    /// The same for one of several that share the timer: it is due at the earliest that was asked
    /// for since it last was.
    void set_timer_by(Clock::time_point due) { due_ = due_ ? std::min(*due_, due) : due; }
    /// Nothing begins from now on. Does not wait.
    void close();
    void stop();
    [[nodiscard]] bool is_current() const { return std::this_thread::get_id() == thread_.get_id(); }

private:
    void run();

    std::function<void()> on_timer_;
    std::optional<Clock::time_point> due_;
    Mutex mutex_;
    CondVar changed_;
    std::deque<std::function<void()>> queue_ GANTRY_GUARDED_BY(mutex_);
    bool stopping_ GANTRY_GUARDED_BY(mutex_) = false;
    std::thread thread_;
};

}  // namespace gantry
