// PthreadMutex, PthreadLock: libc's mutex, with annotations for clang's -Wthread-safety, for what
// may need libc only (proto/base/mutex.h needs the C++ library). No constructor and no destructor
// runs for a static one. Cost: that of pthread_mutex_lock and pthread_mutex_unlock.
#pragma once

#include <pthread.h>

#include "proto/base/thread_annotations.h"

namespace gantry {

class GANTRY_CAPABILITY("mutex") PthreadMutex {
public:
    constexpr PthreadMutex() noexcept = default;
    PthreadMutex(const PthreadMutex&) = delete;
    PthreadMutex& operator=(const PthreadMutex&) = delete;

    void lock() noexcept GANTRY_ACQUIRE() { pthread_mutex_lock(&mutex_); }
    void unlock() noexcept GANTRY_RELEASE() { pthread_mutex_unlock(&mutex_); }

private:
    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

class GANTRY_SCOPED_CAPABILITY PthreadLock {
public:
    explicit PthreadLock(PthreadMutex& mutex) noexcept GANTRY_ACQUIRE(mutex) : mutex_(mutex) {
        mutex.lock();
    }
    ~PthreadLock() GANTRY_RELEASE() { mutex_.unlock(); }
    PthreadLock(const PthreadLock&) = delete;
    PthreadLock& operator=(const PthreadLock&) = delete;

private:
    PthreadMutex& mutex_;
};

}  // namespace gantry
