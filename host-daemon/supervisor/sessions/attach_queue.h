// AttachQueue: programs that have said what they are and wait for their worker, and the threads
// that give it to them.
//
// To attach takes as long as a worker starts, or until another program's memory is free. There are
// kThreads for all and no more than kThreadsOfAUser for one user at a time, so that one who begins
// a hundred programs at once, or waits for memory, does not hold up the others; what comes above
// kQueuedOfAUser is not taken. The threads are made at the start: a program never needs one.
// Threads: post() and stop() from one; the posted functions run on the queue's own and do not
// throw.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "proto/base/mutex.h"
#include "proto/base/result.h"

namespace gantry::supervisor {

class AttachQueue {
public:
    static constexpr unsigned kThreads = 24;
    static constexpr unsigned kThreadsOfAUser = 8;
    static constexpr std::size_t kQueuedOfAUser = 256;

    /// `daemon.threads` where the system makes none.
    static Result<std::unique_ptr<AttachQueue>> start();
    ~AttachQueue() { stop(); }
    AttachQueue(const AttachQueue&) = delete;
    AttachQueue& operator=(const AttachQueue&) = delete;

    /// False: too many of that user wait. The function is then as it was.
    bool post(std::uint32_t uid, std::function<void()>& function);
    /// Waits for those in hand; the others are dropped.
    void stop();

private:
    struct Job {
        std::uint32_t uid = 0;
        std::function<void()> function;
    };
    AttachQueue() = default;
    void run();
    std::deque<Job>::iterator next() GANTRY_REQUIRES(mutex_);

    Mutex mutex_;
    CondVar changed_;
    std::deque<Job> queue_ GANTRY_GUARDED_BY(mutex_);
    std::map<std::uint32_t, std::size_t> queued_ GANTRY_GUARDED_BY(mutex_);  ///< By user.
    std::map<std::uint32_t, unsigned> in_hand_ GANTRY_GUARDED_BY(mutex_);    ///< By user.
    bool stopping_ GANTRY_GUARDED_BY(mutex_) = false;
    std::vector<std::thread> threads_;
};

}  // namespace gantry::supervisor
