// StreamPump: a bounded queue and one thread that writes it to a gRPC stream. Internal.
//
// send() never blocks: when the queue is full or the stream has ended the message is dropped, which
// the engine's machines are made for. finish() lets what is queued go out and closes the writing
// half, if the stream has one. The owner must call stop() before the stream is destroyed.
#pragma once

#include <deque>
#include <thread>

#include "proto/base/mutex.h"

namespace gantry::transport {

inline constexpr std::size_t kPumpMessagesMax = 1024;

template <typename Stream, typename Message>
class StreamPump {
public:
    explicit StreamPump(Stream* stream) : stream_(stream), thread_([this] { run(); }) {}
    ~StreamPump() { stop(); }
    StreamPump(const StreamPump&) = delete;
    StreamPump& operator=(const StreamPump&) = delete;

    void send(Message message) {
        const MutexLock lock(mutex_);
        if (!stopping_ && queue_.size() < kPumpMessagesMax) {
            queue_.push_back(std::move(message));
            changed_.notify_one();
        }
    }
    void finish() {
        const MutexLock lock(mutex_);
        finishing_ = true;
        changed_.notify_one();
    }
    void stop() {
        {
            const MutexLock lock(mutex_);
            stopping_ = true;
            changed_.notify_one();
        }
        if (thread_.joinable()) {
            thread_.join();
        }
    }

private:
    void run() {
        MutexLock lock(mutex_);
        for (;;) {
            changed_.wait(lock, [this]() GANTRY_REQUIRES(mutex_) {
                return stopping_ || finishing_ || !queue_.empty();
            });
            if (stopping_) {
                return;
            }
            if (queue_.empty()) {
                stopping_ = true;
                lock.unlock();
                if constexpr (requires { stream_->WritesDone(); }) {
                    (void)stream_->WritesDone();
                }
                return;
            }
            const Message message = std::move(queue_.front());
            queue_.pop_front();
            lock.unlock();
            const bool written = stream_->Write(message);
            lock.lock();
            if (!written) {
                stopping_ = true;  // the reader of the stream sees its end as well
                return;
            }
        }
    }

    Stream* stream_;
    Mutex mutex_;
    CondVar changed_;
    std::deque<Message> queue_ GANTRY_GUARDED_BY(mutex_);
    bool finishing_ GANTRY_GUARDED_BY(mutex_) = false;
    bool stopping_ GANTRY_GUARDED_BY(mutex_) = false;
    std::thread thread_;
};

}  // namespace gantry::transport
