// Events: a mark on a stream, with the time at which the stream came past it. An event that
// processes share has its records in common memory too (shared_event.h); what this process recorded
// itself is waited for by its mark, what others did by a stream that does nothing else.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "host-daemon/softgpu/streams/shared_event.h"
#include "host-daemon/softgpu/streams/stream.h"

namespace gantry::softgpu {

/// One recording of an event. `point` is set before the event shows the mark to anyone.
struct EventMark {
    StreamPoint point;
    std::atomic<std::int64_t> time_ns{0};
    std::shared_ptr<SharedEvent> shared;
    std::uint64_t ticket = 0;  ///< Of the shared event's record.

    /// The stream has come past it.
    void pass();
};

/// A record that a capture made; graph/capture.h has what it stands for.
class CapturedRecord {
public:
    virtual ~CapturedRecord() = default;
};

class Event : public Object {
public:
    static constexpr ObjectKind kKind = ObjectKind::kEvent;
    Event(std::weak_ptr<Context> context_in, unsigned flags_in,
          std::shared_ptr<SharedEvent> shared_in = nullptr)
        : Object(kKind),
          context(std::move(context_in)),
          flags(flags_in),
          shared(std::move(shared_in)) {}

    /// A mark for a new record, to be set once it has a point.
    [[nodiscard]] std::shared_ptr<EventMark> new_mark() const;
    void set_mark(std::shared_ptr<EventMark> mark);
    /// This process's newest record.
    [[nodiscard]] std::shared_ptr<EventMark> mark() const {
        const std::lock_guard lock(mutex_);
        return mark_;
    }

    /// The newest record has come to pass, or there is none.
    [[nodiscard]] bool has_passed() const;
    void wait() const;
    /// What a stream has to wait for; nothing when has_passed().
    [[nodiscard]] std::optional<StreamPoint> awaited() const;
    [[nodiscard]] bool timed() const { return (flags & CU_EVENT_DISABLE_TIMING) == 0; }

    const std::weak_ptr<Context> context;
    const unsigned flags;
    const std::shared_ptr<SharedEvent> shared;  ///< Null: of this process alone.
    /// The record that a capture made, if that was the last one.
    [[nodiscard]] std::shared_ptr<const CapturedRecord> captured() const {
        const std::lock_guard lock(mutex_);
        return captured_;
    }
    void set_captured(std::shared_ptr<const CapturedRecord> record);

private:
    struct Newest {
        std::shared_ptr<EventMark> mark;
        std::uint64_t ticket = 0;  ///< Of another process's record, if that is newer; else 0.
    };
    [[nodiscard]] Newest newest() const;

    mutable std::mutex mutex_;
    std::shared_ptr<EventMark> mark_;
    std::shared_ptr<const CapturedRecord> captured_;
};

/// Records on a stream that does not capture.
void record_event(const std::shared_ptr<Event>& event, const std::shared_ptr<Stream>& stream);

}  // namespace gantry::softgpu
