// SharedMutex, WriterLock, ReaderLock: std::shared_mutex with the annotations of
// proto/base/mutex.h. Any number of readers, or one writer. What it protects may be read with
// either lock and written with WriterLock only. Cost: that of the standard ones.
#pragma once

#include <mutex>
#include <shared_mutex>

#include "proto/base/thread_annotations.h"

namespace gantry {

class GANTRY_CAPABILITY("mutex") SharedMutex {
public:
    SharedMutex() = default;
    SharedMutex(const SharedMutex&) = delete;
    SharedMutex& operator=(const SharedMutex&) = delete;

    void lock() GANTRY_ACQUIRE() { mutex_.lock(); }
    void unlock() GANTRY_RELEASE() { mutex_.unlock(); }
    void lock_shared() GANTRY_ACQUIRE_SHARED() { mutex_.lock_shared(); }
    void unlock_shared() GANTRY_RELEASE_SHARED() { mutex_.unlock_shared(); }

private:
    friend class WriterLock;
    friend class ReaderLock;
    std::shared_mutex mutex_;
};

class GANTRY_SCOPED_CAPABILITY WriterLock {
public:
    explicit WriterLock(SharedMutex& mutex) GANTRY_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
    ~WriterLock() GANTRY_RELEASE() = default;
    WriterLock(const WriterLock&) = delete;
    WriterLock& operator=(const WriterLock&) = delete;

    void lock() GANTRY_ACQUIRE() { lock_.lock(); }
    void unlock() GANTRY_RELEASE() { lock_.unlock(); }

private:
    std::unique_lock<std::shared_mutex> lock_;
};

class GANTRY_SCOPED_CAPABILITY ReaderLock {
public:
    explicit ReaderLock(SharedMutex& mutex) GANTRY_ACQUIRE_SHARED(mutex) : lock_(mutex.mutex_) {}
    ~ReaderLock() GANTRY_RELEASE() = default;
    ReaderLock(const ReaderLock&) = delete;
    ReaderLock& operator=(const ReaderLock&) = delete;

    void lock() GANTRY_ACQUIRE_SHARED() { lock_.lock(); }
    void unlock() GANTRY_RELEASE() { lock_.unlock(); }

private:
    std::shared_lock<std::shared_mutex> lock_;
};

}  // namespace gantry
