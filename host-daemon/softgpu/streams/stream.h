// Streams: in-order queues of work, run by a small set of driver threads.
//
// Order. Each stream numbers its items 1, 2, 3...; an item starts when the one before it has ended
// and every point it depends on (a stream and a number) is reached. The legacy stream depends on
// all blocking streams of its context and they depend on it, decided when an item is submitted.
// Threads. submit() and the waits may be called from any thread but a host callback. One mutex
// guards all queues; a driver thread takes it once per batch of items, not per item. A thread is
// added when work is ready and none is idle, since an item may block (a kernel that spins on a
// host flag, a host callback).
// Failure. After a sticky error items are skipped: they count as done, host functions do not run.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "host-daemon/softgpu/core/context.h"
#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/core/objects.h"
#include "proto/cuda/abi.h"

namespace gantry::softgpu {

class Stream;

/// A moment in a stream's life: reached when item `sequence` has ended.
struct StreamPoint {
    std::shared_ptr<Stream> stream;
    std::uint64_t sequence = 0;
    [[nodiscard]] bool reached() const;
};

/// A capture that a stream takes part in; graph/capture.h has what it holds.
class Capture {
public:
    virtual ~Capture() = default;
};

/// One item of a stream.
class Work {
public:
    virtual ~Work() = default;
    /// Does it, on a driver thread. Runs without locks held.
    virtual void run() = 0;
    /// Called instead of run() after a sticky error.
    virtual void skip(CUresult) {}
    /// True when run() takes next to no time and no lock: then it may run in submit().
    [[nodiscard]] virtual bool brief() const { return false; }
};

class Stream : public Object, public std::enable_shared_from_this<Stream> {
public:
    static constexpr ObjectKind kKind = ObjectKind::kStream;
    Stream(std::weak_ptr<Context> context, unsigned flags, int priority);

    [[nodiscard]] std::shared_ptr<Context> context() const { return context_.lock(); }
    [[nodiscard]] bool blocking() const { return (flags & CU_STREAM_NON_BLOCKING) == 0; }

    const unsigned flags;
    const int priority;
    const std::uint64_t id;
    bool legacy = false;

    /// Set while the stream captures; guarded by the mutex of graphs (graph/graph.h).
    std::shared_ptr<Capture> capture;
    std::atomic<bool> capturing{false};
    std::mutex attribute_mutex;
    CUlaunchAttributeValue attributes[CU_LAUNCH_ATTRIBUTE_MAX] = {};

private:
    friend class Scheduler;
    friend struct StreamPoint;
    enum class State { kIdle, kReady, kRunning, kBlocked };
    struct Item {
        std::unique_ptr<Work> work;
        std::vector<StreamPoint> needs;
    };

    const std::weak_ptr<Context> context_;
    // Guarded by the scheduler's mutex:
    std::deque<Item> queue_;
    State state_ = State::kIdle;
    std::vector<std::shared_ptr<Stream>> dependents_;
    bool destroyed_ = false;
    // Written under the mutex or by the running thread, read by anyone:
    std::atomic<std::uint64_t> submitted_{0};
    std::atomic<std::uint64_t> completed_{0};
    std::atomic<bool> has_dependents_{false};
    std::atomic<std::uint64_t> wait_target_{~std::uint64_t{0}};
};

class Scheduler {
public:
    static Scheduler& instance();

    /// Makes the stream known to its context (for the legacy rule and context-wide waits).
    void add(Context& context, const std::shared_ptr<Stream>& stream);
    /// Forgets it once its work has ended. Does not wait.
    void remove(Context& context, const std::shared_ptr<Stream>& stream);

    /// Appends work; `needs` are points beyond what the stream's kind implies.
    StreamPoint submit(const std::shared_ptr<Stream>& stream, std::unique_ptr<Work> work,
                       std::vector<StreamPoint> needs = {});

    /// The point after everything submitted to the stream so far, legacy rule included: waiting
    /// for all returned points is what a synchronous operation on this stream has to do.
    std::vector<StreamPoint> points_before(const std::shared_ptr<Stream>& stream);
    /// All that has been submitted to any stream of the context.
    std::vector<StreamPoint> points_of(Context& context);
    /// Every stream of the context that is not destroyed.
    std::vector<std::shared_ptr<Stream>> streams_of(Context& context);
    /// The stream's own last item.
    StreamPoint tail(const std::shared_ptr<Stream>& stream);

    void wait(const StreamPoint& point);
    void wait(const std::vector<StreamPoint>& points);

private:
    Scheduler() = default;
    using Lock = std::unique_lock<std::mutex>;
    void make_ready(const std::shared_ptr<Stream>& stream);
    void executor();
    void run_stream(Lock& lock, const std::shared_ptr<Stream>& stream);
    void run_batch(std::vector<Stream::Item>& batch, Stream& stream);
    void completed(Stream& stream, std::uint64_t sequence);
    void release_dependents(Stream& stream);
    bool block_on_needs(const std::shared_ptr<Stream>& stream, const Stream::Item& item);
    void implied_needs(const std::shared_ptr<Stream>& stream, std::vector<StreamPoint>& needs);

    std::mutex mutex_;
    std::condition_variable ready_condition_;
    std::condition_variable done_condition_;
    std::deque<std::shared_ptr<Stream>> ready_;
    unsigned idle_threads_ = 0;
    unsigned threads_ = 0;
};

/// Resolves a stream handle, the three default streams included, in the current context.
CUresult resolve_stream(const std::shared_ptr<Context>& context, CUstream handle,
                        std::shared_ptr<Stream>& stream);

/// Work made of a function.
class FunctionWork : public Work {
public:
    explicit FunctionWork(std::function<void()> function, bool is_brief = false)
        : function_(std::move(function)), brief_(is_brief) {}
    void run() override { function_(); }
    [[nodiscard]] bool brief() const override { return brief_; }

private:
    std::function<void()> function_;
    bool brief_;
};

}  // namespace gantry::softgpu

/// Declares `name` as the stream behind a handle in `context`, or returns the error.
#define GANTRY_STREAM(name, context, handle)       \
    std::shared_ptr<gantry::softgpu::Stream> name; \
    GANTRY_CU(gantry::softgpu::resolve_stream(context, handle, name))
