#include "proto/base/thread_pool.h"

#include <algorithm>

#include "proto/base/unless_exhausted.h"

namespace gantry {
namespace {

constexpr unsigned kThreadsMax = 8;

}  // namespace

ThreadPool::ThreadPool(unsigned threads)
    : threads_(threads != 0 ? threads
                            : std::clamp(std::thread::hardware_concurrency(), 1U, kThreadsMax)) {}

ThreadPool::~ThreadPool() {
    {
        const MutexLock lock(mutex_);
        ending_ = true;
    }
    changed_.notify_all();
    for (std::thread& helper : helpers_) {
        helper.join();
    }
}

void ThreadPool::run(std::size_t count, const std::function<void(std::size_t)>& piece) {
    if (count <= 1 || threads_ == 1) {
        for (std::size_t i = 0; i < count; ++i) {
            piece(i);
        }
        return;
    }
    // With fewer, where the system makes no more: the caller takes pieces as well.
    (void)unless_exhausted([this] {
        while (helpers_.size() + 1 < threads_) {
            helpers_.emplace_back([this] { help(); });
        }
    });
    {
        const MutexLock lock(mutex_);
        piece_ = &piece;
        count_ = count;
        next_ = 0;
        at_work_ = helpers_.size();
        ++job_;
    }
    changed_.notify_all();
    take_pieces(count, piece);
    MutexLock lock(mutex_);
    changed_.wait(lock, [this]() GANTRY_REQUIRES(mutex_) { return at_work_ == 0; });
}

void ThreadPool::take_pieces(std::size_t count, const std::function<void(std::size_t)>& piece) {
    for (std::size_t i = next_++; i < count; i = next_++) {
        piece(i);
    }
}

void ThreadPool::help() {
    std::uint64_t done = 0;
    MutexLock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&]() GANTRY_REQUIRES(mutex_) { return ending_ || job_ != done; });
        if (ending_) {
            return;
        }
        done = job_;
        const std::size_t count = count_;
        const std::function<void(std::size_t)>& piece = *piece_;
        lock.unlock();
        take_pieces(count, piece);
        lock.lock();
        if (--at_work_ == 0) {
            changed_.notify_all();
        }
    }
}

}  // namespace gantry
