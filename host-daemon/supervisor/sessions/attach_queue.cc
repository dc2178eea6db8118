#include "host-daemon/supervisor/sessions/attach_queue.h"

#include <algorithm>
#include <utility>

#include "proto/base/unless_exhausted.h"

namespace gantry::supervisor {
namespace {

/// Counts down, and forgets who has none.
template <typename Count>
void take_one(std::map<std::uint32_t, Count>& counts, std::uint32_t uid) {
    if (const auto found = counts.find(uid); --found->second == 0) {
        counts.erase(found);
    }
}

}  // namespace

Result<std::unique_ptr<AttachQueue>> AttachQueue::start() {
    std::unique_ptr<AttachQueue> queue(new AttachQueue);
    GANTRY_TRY(unless_exhausted([&] {
        while (queue->threads_.size() < kThreads) {
            queue->threads_.emplace_back([raw = queue.get()] { raw->run(); });
        }
    }));
    return queue;
}

bool AttachQueue::post(std::uint32_t uid, std::function<void()>& function) {
    {
        const MutexLock lock(mutex_);
        const auto found = queued_.find(uid);
        if (stopping_ || (found != queued_.end() && found->second >= kQueuedOfAUser)) {
            return false;
        }
        ++queued_[uid];
        queue_.push_back({uid, std::move(function)});
    }
    changed_.notify_one();
    return true;
}

void AttachQueue::stop() {
    std::deque<Job> dropped;
    {
        const MutexLock lock(mutex_);
        stopping_ = true;
        dropped.swap(queue_);
        queued_.clear();
    }
    changed_.notify_all();
    for (std::thread& thread : std::exchange(threads_, {})) {
        thread.join();
    }
}

/// The first of a user who has threads left.
std::deque<AttachQueue::Job>::iterator AttachQueue::next() {
    return std::find_if(queue_.begin(), queue_.end(),
                        [this](const Job& job) GANTRY_REQUIRES(mutex_) {
                            const auto found = in_hand_.find(job.uid);
                            return found == in_hand_.end() || found->second < kThreadsOfAUser;
                        });
}

void AttachQueue::run() {
    MutexLock lock(mutex_);
    for (;;) {
        changed_.wait(
            lock, [this]() GANTRY_REQUIRES(mutex_) { return stopping_ || next() != queue_.end(); });
        if (stopping_) {
            return;
        }
        const auto at = next();
        Job job = std::move(*at);
        queue_.erase(at);
        take_one(queued_, job.uid);
        ++in_hand_[job.uid];
        lock.unlock();
        job.function();
        job.function = nullptr;  // what it holds ends here, not under the lock
        lock.lock();
        take_one(in_hand_, job.uid);
        changed_.notify_one();  // one of that user may have waited for this thread
    }
}

}  // namespace gantry::supervisor
