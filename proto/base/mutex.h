// Mutex, MutexLock, CondVar: the standard ones, with the annotations by which clang's
// -Wthread-safety checks that what a mutex protects is used with the mutex held.
//
// USE. `mutable Mutex mutex_;` and `int count_ GANTRY_GUARDED_BY(mutex_);`. MutexLock holds the
// mutex until the end of the block; it may be unlocked and locked again in between. The condition
// of CondVar::wait() that reads what the mutex protects says so:
//     changed_.wait(lock, [this]() GANTRY_REQUIRES(mutex_) { return count_ != 0; });
// COST. That of std::mutex, std::unique_lock and std::condition_variable: every function is inline
// and hands over to them.
// FAILURE. Unlocking a MutexLock that holds nothing, or locking one that does, is an error of the
// program: std::unique_lock throws, which ends the process. clang refuses to compile it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "proto/base/thread_annotations.h"

namespace gantry {

class GANTRY_CAPABILITY("mutex") Mutex {
public:
    Mutex() = default;
    Mutex(const Mutex&) = delete;
    Mutex& operator=(const Mutex&) = delete;

    void lock() GANTRY_ACQUIRE() { mutex_.lock(); }
    void unlock() GANTRY_RELEASE() { mutex_.unlock(); }
    [[nodiscard]] bool try_lock() GANTRY_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

private:
    friend class MutexLock;
    std::mutex mutex_;
};

class GANTRY_SCOPED_CAPABILITY MutexLock {
public:
    explicit MutexLock(Mutex& mutex) GANTRY_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
    ~MutexLock() GANTRY_RELEASE() = default;
    MutexLock(const MutexLock&) = delete;
    MutexLock& operator=(const MutexLock&) = delete;

    void lock() GANTRY_ACQUIRE() { lock_.lock(); }
    void unlock() GANTRY_RELEASE() { lock_.unlock(); }

private:
    friend class CondVar;
    std::unique_lock<std::mutex> lock_;
};

/// Each wait gives the mutex of `lock` free while it sleeps and holds it again when it returns.
class CondVar {
public:
    CondVar() = default;
    CondVar(const CondVar&) = delete;
    CondVar& operator=(const CondVar&) = delete;

    void notify_one() noexcept { condition_.notify_one(); }
    void notify_all() noexcept { condition_.notify_all(); }

    void wait(MutexLock& lock) { condition_.wait(lock.lock_); }

    template <typename Rep, typename Period>
    std::cv_status wait_for(MutexLock& lock, const std::chrono::duration<Rep, Period>& time) {
        return condition_.wait_for(lock.lock_, time);
    }

    template <typename Clock, typename Duration>
    std::cv_status wait_until(MutexLock& lock,
                              const std::chrono::time_point<Clock, Duration>& deadline) {
        return condition_.wait_until(lock.lock_, deadline);
    }

    template <typename Condition>
    void wait(MutexLock& lock, Condition condition) {
        condition_.wait(lock.lock_, std::move(condition));
    }

    /// False when the condition does not hold after that time.
    template <typename Rep, typename Period, typename Condition>
    bool wait_for(MutexLock& lock, const std::chrono::duration<Rep, Period>& time,
                  Condition condition) {
        return condition_.wait_for(lock.lock_, time, std::move(condition));
    }

    /// False when the condition does not hold at the deadline.
    template <typename Clock, typename Duration, typename Condition>
    bool wait_until(MutexLock& lock, const std::chrono::time_point<Clock, Duration>& deadline,
                    Condition condition) {
        return condition_.wait_until(lock.lock_, deadline, std::move(condition));
    }

private:
    std::condition_variable condition_;
};

}  // namespace gantry
