#include <algorithm>
#include <thread>

#include "host-daemon/softgpu/core/context.h"
#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/core/thread_state.h"
#include "host-daemon/softgpu/streams/stream.h"

namespace gantry::softgpu {
namespace {

constexpr unsigned kThreadsMax = 256;  ///< Each may be blocked in a kernel or host callback.
constexpr std::size_t kBatchItems = 64;
constexpr std::uint64_t kNobodyWaits = ~std::uint64_t{0};

std::uint64_t next_stream_id() {
    static std::atomic<std::uint64_t> next{3};  // 1 and 2 are the default streams' handles.
    return next.fetch_add(1);
}

}  // namespace

Stream::Stream(std::weak_ptr<Context> context, unsigned flags_in, int priority_in)
    : Object(kKind),
      flags(flags_in),
      priority(priority_in),
      id(next_stream_id()),
      context_(std::move(context)) {
    attributes[CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY].syncPolicy = CU_SYNC_POLICY_AUTO;
    attributes[CU_LAUNCH_ATTRIBUTE_PRIORITY].priority = priority_in;
    attributes[CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP].memSyncDomainMap = {0, 1};
}

bool StreamPoint::reached() const {
    return stream == nullptr || stream->completed_.load(std::memory_order_seq_cst) >= sequence;
}

Scheduler& Scheduler::instance() {
    static auto* scheduler = new Scheduler;  // Driver threads may outlive exit().
    return *scheduler;
}

void Scheduler::add(Context& context, const std::shared_ptr<Stream>& stream) {
    const Lock lock(mutex_);
    context.streams.push_back(stream);
}

void Scheduler::remove(Context& context, const std::shared_ptr<Stream>& stream) {
    const Lock lock(mutex_);
    stream->destroyed_ = true;
    std::erase_if(context.streams, [](const std::shared_ptr<Stream>& each) {
        return each->destroyed_ && each->completed_.load() == each->submitted_.load();
    });
}

void Scheduler::implied_needs(const std::shared_ptr<Stream>& stream,
                              std::vector<StreamPoint>& needs) {
    const auto context = stream->context();
    if (context == nullptr || !stream->blocking()) {
        return;
    }
    const auto need = [&needs](const std::shared_ptr<Stream>& other) {
        const std::uint64_t last = other->submitted_.load();
        if (other->completed_.load() < last) {
            needs.push_back({other, last});
        }
    };
    if (!stream->legacy) {
        need(context->legacy_stream);
        return;
    }
    for (const auto& other : context->streams) {
        if (other != stream && other->blocking()) {
            need(other);
        }
    }
}

StreamPoint Scheduler::submit(const std::shared_ptr<Stream>& stream, std::unique_ptr<Work> work,
                              std::vector<StreamPoint> needs) {
    const Lock lock(mutex_);
    std::erase_if(needs, [](const StreamPoint& point) { return point.reached(); });
    implied_needs(stream, needs);
    const std::uint64_t sequence = stream->submitted_.load() + 1;
    stream->submitted_.store(sequence);
    if (stream->state_ == Stream::State::kIdle && needs.empty() && work->brief()) {
        if (const CUresult error = poison(); error != CUDA_SUCCESS) {
            work->skip(error);
        } else {
            work->run();
        }
        stream->completed_.store(sequence);
        return {stream, sequence};
    }
    stream->queue_.push_back({std::move(work), std::move(needs)});
    if (stream->state_ == Stream::State::kIdle) {
        make_ready(stream);
    }
    return {stream, sequence};
}

void Scheduler::make_ready(const std::shared_ptr<Stream>& stream) {
    stream->state_ = Stream::State::kReady;
    const auto behind = std::find_if(ready_.begin(), ready_.end(), [&](const auto& other) {
        return other->priority > stream->priority;
    });
    ready_.insert(behind, stream);
    if (idle_threads_ > 0) {
        ready_condition_.notify_one();
    }
    // A thread that was told of another stream counts as idle until it wakes; and a stream that
    // were left to it could wait for ever, behind a host callback.
    if (idle_threads_ < ready_.size() && threads_ < kThreadsMax) {
        ++threads_;
        std::thread([this] { executor(); }).detach();
    }
}

void Scheduler::executor() {
    Lock lock(mutex_);
    for (;;) {
        while (ready_.empty()) {
            ++idle_threads_;
            ready_condition_.wait(lock);
            --idle_threads_;
        }
        const std::shared_ptr<Stream> stream = ready_.front();
        ready_.pop_front();
        stream->state_ = Stream::State::kRunning;
        run_stream(lock, stream);
    }
}

bool Scheduler::block_on_needs(const std::shared_ptr<Stream>& stream, const Stream::Item& item) {
    for (const StreamPoint& need : item.needs) {
        if (need.reached()) {
            continue;
        }
        need.stream->has_dependents_.store(true, std::memory_order_seq_cst);
        if (need.reached()) {
            continue;  // It ended between the two looks.
        }
        need.stream->dependents_.push_back(stream);
        stream->state_ = Stream::State::kBlocked;
        return true;
    }
    return false;
}

void Scheduler::run_stream(Lock& lock, const std::shared_ptr<Stream>& stream) {
    std::vector<Stream::Item> batch;
    while (!stream->queue_.empty()) {
        if (block_on_needs(stream, stream->queue_.front())) {
            return;
        }
        do {
            batch.push_back(std::move(stream->queue_.front()));
            stream->queue_.pop_front();
        } while (!stream->queue_.empty() && stream->queue_.front().needs.empty() &&
                 batch.size() < kBatchItems);
        lock.unlock();
        run_batch(batch, *stream);
        batch.clear();
        lock.lock();
        if (stream->queue_.empty() || ready_.empty()) {
            continue;
        }
        make_ready(stream);  // Others wait: go to the back of the line.
        return;
    }
    stream->state_ = Stream::State::kIdle;
    if (stream->destroyed_) {
        if (const auto context = stream->context()) {
            std::erase(context->streams, stream);
        }
    }
}

void Scheduler::run_batch(std::vector<Stream::Item>& batch, Stream& stream) {
    std::uint64_t sequence = stream.completed_.load();
    for (Stream::Item& item : batch) {
        if (const CUresult error = poison(); error != CUDA_SUCCESS) {
            item.work->skip(error);
        } else {
            item.work->run();
        }
        item = {};  // What it kept alive goes before anybody is told that it is done.
        completed(stream, ++sequence);
    }
}

void Scheduler::completed(Stream& stream, std::uint64_t sequence) {
    stream.completed_.store(sequence, std::memory_order_seq_cst);
    const bool awaited = stream.wait_target_.load(std::memory_order_seq_cst) <= sequence;
    if (!awaited && !stream.has_dependents_.load(std::memory_order_seq_cst)) {
        return;
    }
    const Lock lock(mutex_);
    release_dependents(stream);
    if (awaited) {
        stream.wait_target_.store(kNobodyWaits);
        done_condition_.notify_all();
    }
}

void Scheduler::release_dependents(Stream& stream) {
    stream.has_dependents_.store(false);
    std::vector<std::shared_ptr<Stream>> dependents = std::move(stream.dependents_);
    stream.dependents_.clear();
    for (const auto& dependent : dependents) {
        make_ready(dependent);  // It looks at its needs again, and may block again.
    }
}

std::vector<StreamPoint> Scheduler::points_before(const std::shared_ptr<Stream>& stream) {
    const Lock lock(mutex_);
    std::vector<StreamPoint> points;
    implied_needs(stream, points);
    if (stream->completed_.load() < stream->submitted_.load()) {
        points.push_back({stream, stream->submitted_.load()});
    }
    return points;
}

std::vector<StreamPoint> Scheduler::points_of(Context& context) {
    const Lock lock(mutex_);
    std::vector<StreamPoint> points;
    for (const auto& stream : context.streams) {
        if (stream->completed_.load() < stream->submitted_.load()) {
            points.push_back({stream, stream->submitted_.load()});
        }
    }
    return points;
}

std::vector<std::shared_ptr<Stream>> Scheduler::streams_of(Context& context) {
    const Lock lock(mutex_);
    std::vector<std::shared_ptr<Stream>> streams;
    for (const auto& stream : context.streams) {
        if (!stream->destroyed_) {
            streams.push_back(stream);
        }
    }
    return streams;
}

StreamPoint Scheduler::tail(const std::shared_ptr<Stream>& stream) {
    return {stream, stream->submitted_.load()};
}

void Scheduler::wait(const StreamPoint& point) {
    // A short look first: an empty kernel ends before a sleeper would have been woken.
    for (int look = 0; look < 64; ++look) {
        if (point.reached()) {
            return;
        }
        std::this_thread::yield();
    }
    Lock lock(mutex_);
    while (!point.reached()) {
        auto& target = point.stream->wait_target_;
        target.store(std::min(target.load(), point.sequence), std::memory_order_seq_cst);
        if (point.reached()) {
            return;
        }
        done_condition_.wait(lock);
    }
}

void Scheduler::wait(const std::vector<StreamPoint>& points) {
    for (const StreamPoint& point : points) {
        wait(point);
    }
}

CUresult resolve_stream(const std::shared_ptr<Context>& context, CUstream handle,
                        std::shared_ptr<Stream>& stream) {
    if (handle == nullptr || handle == CU_STREAM_LEGACY) {
        stream = context->legacy_stream;
        return CUDA_SUCCESS;
    }
    if (handle == CU_STREAM_PER_THREAD) {
        std::shared_ptr<Stream>& mine = thread_state().default_streams[context.get()];
        if (mine == nullptr || mine->context() != context) {
            mine = std::make_shared<Stream>(context, CU_STREAM_DEFAULT, 0);
            Scheduler::instance().add(*context, mine);
        }
        stream = mine;
        return CUDA_SUCCESS;
    }
    stream = find<Stream>(handle);
    return stream != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace gantry::softgpu
