#include "proto/base/mutex.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "proto/base/pthread_mutex.h"
#include "proto/base/shared_mutex.h"

namespace gantry {
namespace {

using std::chrono::milliseconds;

// Nothing is kept beside the standard objects, so nothing is paid beside them.
static_assert(sizeof(Mutex) == sizeof(std::mutex));
static_assert(sizeof(MutexLock) == sizeof(std::unique_lock<std::mutex>));
static_assert(sizeof(CondVar) == sizeof(std::condition_variable));
static_assert(sizeof(SharedMutex) == sizeof(std::shared_mutex));
static_assert(sizeof(PthreadMutex) == sizeof(pthread_mutex_t));

constexpr int kThreads = 4;
constexpr int kRounds = 20'000;

template <typename Work>
void run_threads(Work work) {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kThreads; ++i) {
        threads.emplace_back(work);
    }
}

struct Counter {
    Mutex mutex;
    CondVar changed;
    int count GANTRY_GUARDED_BY(mutex) = 0;

    int read() {
        const MutexLock lock(mutex);
        return count;
    }
    void add(int n) {
        const MutexLock lock(mutex);
        count += n;
        changed.notify_all();
    }
};

TEST(Mutex, KeepsThreadsApart) {
    Counter counter;
    run_threads([&] {
        for (int i = 0; i < kRounds; ++i) {
            counter.add(1);
        }
    });
    EXPECT_EQ(counter.read(), kThreads * kRounds);
}

/// Whether another thread gets the mutex now.
bool is_free(Mutex& mutex) {
    bool got = false;
    std::thread([&] {
        if (mutex.try_lock()) {
            mutex.unlock();
            got = true;
        }
    }).join();
    return got;
}

TEST(Mutex, IsNotGivenTwice) {
    Mutex mutex;
    EXPECT_TRUE(is_free(mutex));
    mutex.lock();
    EXPECT_FALSE(is_free(mutex));
    mutex.unlock();
    EXPECT_TRUE(is_free(mutex));
}

TEST(MutexLock, MayBeUnlockedAndLockedAgain) {
    Mutex mutex;
    {
        MutexLock lock(mutex);
        EXPECT_FALSE(is_free(mutex));
        lock.unlock();
        EXPECT_TRUE(is_free(mutex));
        lock.lock();
        EXPECT_FALSE(is_free(mutex));
    }
    EXPECT_TRUE(is_free(mutex));
}

// The mutex is taken in one way and stays taken: the analysis would refuse that.
void end_unlocked(Mutex& mutex) GANTRY_NO_THREAD_SAFETY_ANALYSIS {
    MutexLock lock(mutex);
    lock.unlock();
    mutex.lock();  // Somebody else's by now; the end of `lock` must leave it alone.
}

void unlock_after_all(Mutex& mutex) GANTRY_NO_THREAD_SAFETY_ANALYSIS { mutex.unlock(); }

TEST(MutexLock, GivesNothingBackTwice) {
    Mutex mutex;
    end_unlocked(mutex);
    EXPECT_FALSE(is_free(mutex));
    unlock_after_all(mutex);
    EXPECT_TRUE(is_free(mutex));
}

TEST(CondVar, WaitsForTheCondition) {
    Counter counter;
    std::jthread other([&] {
        for (int i = 0; i < 3; ++i) {
            std::this_thread::sleep_for(milliseconds(2));
            counter.add(1);
        }
    });
    MutexLock lock(counter.mutex);
    counter.changed.wait(lock, [&]() GANTRY_REQUIRES(counter.mutex) { return counter.count == 3; });
    EXPECT_EQ(counter.count, 3);
}

TEST(CondVar, HoldsTheMutexAfterEachWait) {
    Counter counter;
    std::jthread other([&] {
        for (int i = 0; i < 3; ++i) {
            std::this_thread::sleep_for(milliseconds(2));
            counter.add(1);
        }
    });
    MutexLock lock(counter.mutex);
    while (counter.count != 3) {
        counter.changed.wait(lock);
        EXPECT_FALSE(is_free(counter.mutex));
    }
}

TEST(CondVar, SaysWhenTheTimeIsOver) {
    Counter counter;
    MutexLock lock(counter.mutex);
    const auto never = [&]() GANTRY_REQUIRES(counter.mutex) { return counter.count != 0; };
    const auto soon = [] { return std::chrono::steady_clock::now() + milliseconds(5); };
    EXPECT_FALSE(counter.changed.wait_for(lock, milliseconds(5), never));
    EXPECT_FALSE(counter.changed.wait_until(lock, soon(), never));
    const auto deadline = soon();  // Without a condition it may wake for nothing.
    while (counter.changed.wait_until(lock, deadline) != std::cv_status::timeout) {
    }
    EXPECT_GE(std::chrono::steady_clock::now(), deadline);
    while (counter.changed.wait_for(lock, milliseconds(5)) != std::cv_status::timeout) {
    }
    EXPECT_FALSE(is_free(counter.mutex));
}

TEST(CondVar, WakesOneOfTwo) {
    Counter counter;
    int woken = 0;
    const auto take = [&] {
        MutexLock lock(counter.mutex);
        counter.changed.wait(lock,
                             [&]() GANTRY_REQUIRES(counter.mutex) { return counter.count > 0; });
        --counter.count;
        ++woken;
    };
    std::thread first(take);
    std::thread second(take);
    for (int i = 0; i < 2; ++i) {
        {
            const MutexLock lock(counter.mutex);
            ++counter.count;
        }
        counter.changed.notify_one();
    }
    first.join();
    second.join();
    EXPECT_EQ(woken, 2);
    EXPECT_EQ(counter.read(), 0);
}

TEST(SharedMutex, KeepsWritersApart) {
    SharedMutex mutex;
    int count = 0;
    run_threads([&] {
        for (int i = 0; i < kRounds; ++i) {
            const WriterLock lock(mutex);
            ++count;
        }
    });
    const ReaderLock lock(mutex);
    EXPECT_EQ(count, kThreads * kRounds);
}

TEST(SharedMutex, LetsReadersInTogether) {
    SharedMutex mutex;
    const ReaderLock mine(mutex);
    std::thread([&] { const ReaderLock theirs(mutex); }).join();  // Hangs if it must wait.
}

TEST(PthreadMutex, KeepsThreadsApart) {
    PthreadMutex mutex;
    int count = 0;
    run_threads([&] {
        for (int i = 0; i < kRounds; ++i) {
            const PthreadLock lock(mutex);
            ++count;
        }
    });
    EXPECT_EQ(count, kThreads * kRounds);
}

}  // namespace
}  // namespace gantry
