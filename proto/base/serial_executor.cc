#include "proto/base/serial_executor.h"

#include <utility>

namespace gantry {

SerialExecutor::SerialExecutor(std::function<void()> on_timer)
    : on_timer_(std::move(on_timer)), thread_([this] { run(); }) {}

bool SerialExecutor::post(std::function<void()> function) {
    const MutexLock lock(mutex_);
    if (stopping_) {
        return false;
    }
    queue_.push_back(std::move(function));
    changed_.notify_one();
    return true;
}

void SerialExecutor::close() {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_one();
}

void SerialExecutor::stop() {
    close();
    if (thread_.joinable()) {
        thread_.join();
    }
    std::deque<std::function<void()>> dropped;
    const MutexLock lock(mutex_);
    dropped.swap(queue_);
}

void SerialExecutor::run() {
    MutexLock lock(mutex_);
    for (;;) {
        const auto ready = [this]()
                               GANTRY_REQUIRES(mutex_) { return stopping_ || !queue_.empty(); };
        if (due_ && on_timer_) {
            changed_.wait_until(lock, *due_, ready);
        } else {
            changed_.wait(lock, ready);
        }
        if (stopping_) {
            return;
        }
        std::function<void()> function;
        if (!queue_.empty()) {
            function = std::move(queue_.front());
            queue_.pop_front();
        } else if (due_ && Clock::now() >= *due_) {
            due_.reset();
            function = on_timer_;
        }
        if (function) {
            lock.unlock();
            function();
            function = nullptr;  // what it captured ends here, not under the lock
            lock.lock();
        }
    }
}

}  // namespace gantry
