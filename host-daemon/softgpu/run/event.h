// Events: a mark on a stream, with the time at which the stream came past it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "host-daemon/softgpu/run/stream.h"

namespace gantry::softgpu {

class GraphNode;

/// One recording of an event. `point` is set before the event shows the mark to anyone.
struct EventMark {
    StreamPoint point;
    std::atomic<std::int64_t> time_ns{0};
};

class Event : public Object {
public:
    static constexpr ObjectKind kKind = ObjectKind::kEvent;
    Event(std::weak_ptr<Context> context_in, unsigned flags_in)
        : Object(kKind), context(std::move(context_in)), flags(flags_in) {}

    [[nodiscard]] std::shared_ptr<EventMark> mark() const {
        const std::lock_guard lock(mutex_);
        return mark_;
    }
    void set_mark(std::shared_ptr<EventMark> mark) {
        const std::lock_guard lock(mutex_);
        mark_ = std::move(mark);
        capture.reset();
    }
    [[nodiscard]] bool timed() const { return (flags & CU_EVENT_DISABLE_TIMING) == 0; }

    const std::weak_ptr<Context> context;
    const unsigned flags;
    /// The capture that recorded it last and the nodes it stands for; guarded by the capture lock.
    std::weak_ptr<CaptureState> capture;
    std::vector<std::shared_ptr<GraphNode>> captured_nodes;

private:
    mutable std::mutex mutex_;
    std::shared_ptr<EventMark> mark_;
};

/// Records on a stream that does not capture.
void record_event(const std::shared_ptr<Event>& event, const std::shared_ptr<Stream>& stream);

std::int64_t now_ns();

}  // namespace gantry::softgpu
