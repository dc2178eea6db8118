#include "migration/transport/bulk_queue.h"

#include <algorithm>
#include <chrono>

namespace gantry::transport {

bool BulkQueue::push(control::BulkDown batch, SentBlocks blocks,
                     const std::function<bool()>& is_urgent) {
    const std::size_t bytes = batch.ByteSizeLong();
    const Key key{batch.round(), batch.batch()};
    auto shared = std::make_shared<const control::BulkDown>(std::move(batch));
    MutexLock lock(mutex_);
    while (!closed_ && queued_bytes_ >= kQueueBytesMax && !is_urgent()) {
        changed_.wait_for(lock, std::chrono::milliseconds{20});
    }
    if (closed_) {
        return false;
    }
    queued_bytes_ += bytes;
    queue_.push_back(std::move(shared));
    unacknowledged_[key] = {std::move(blocks), bytes, 0};
    changed_.notify_all();
    return true;
}

std::shared_ptr<const control::BulkDown> BulkQueue::pop(std::uint64_t stream) {
    MutexLock lock(mutex_);
    changed_.wait(lock, [&]() GANTRY_REQUIRES(mutex_) {
        return closed_ || !streams_[stream] || !queue_.empty();
    });
    if (closed_ || !streams_[stream]) {
        return nullptr;
    }
    auto batch = std::move(queue_.front());
    queue_.pop_front();
    Sent& sent = unacknowledged_[{batch->round(), batch->batch()}];
    sent.stream = stream;
    queued_bytes_ -= sent.bytes;
    changed_.notify_all();
    return batch;
}

void BulkQueue::acknowledge(std::uint64_t round, std::uint64_t batch) {
    const MutexLock lock(mutex_);
    const auto found = unacknowledged_.find({round, batch});
    if (found != unacknowledged_.end() && found->second.stream != 0) {
        acknowledged_bytes_ += found->second.bytes;
        acknowledged_blocks_ += found->second.blocks.blocks.size();
        unacknowledged_.erase(found);
    }
}

std::uint64_t BulkQueue::open_stream() {
    const MutexLock lock(mutex_);
    streams_[next_stream_] = true;
    return next_stream_++;
}

void BulkQueue::lose_stream(std::uint64_t stream) {
    std::uint64_t round = 0;
    const MutexLock lock(mutex_);
    streams_[stream] = false;
    for (const auto& [key, sent] : unacknowledged_) {
        if (sent.stream == stream) {
            round = std::max(round, key.first);
        }
    }
    changed_.notify_all();
    if (!closed_ && round != 0) {
        on_lost_(round);  // Under the lock: whom it tells may be gone once close() has returned.
    }
}

void BulkQueue::close() {
    const MutexLock lock(mutex_);
    closed_ = true;
    changed_.notify_all();
}

std::vector<SentBlocks> BulkQueue::take_unacknowledged() {
    const MutexLock lock(mutex_);
    std::vector<SentBlocks> out;
    for (auto& [key, sent] : unacknowledged_) {
        out.push_back(std::move(sent.blocks));
    }
    unacknowledged_.clear();
    queue_.clear();
    queued_bytes_ = 0;
    changed_.notify_all();
    return out;
}

std::uint64_t BulkQueue::acknowledged_blocks() const {
    const MutexLock lock(mutex_);
    return acknowledged_blocks_;
}

std::uint64_t BulkQueue::acknowledged_bytes() const {
    const MutexLock lock(mutex_);
    return acknowledged_bytes_;
}

bool BulkQueue::waiting() const {
    const MutexLock lock(mutex_);
    return !queue_.empty();
}

}  // namespace gantry::transport
