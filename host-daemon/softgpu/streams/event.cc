#include "host-daemon/softgpu/streams/event.h"

#include "host-daemon/softgpu/core/clock.h"

namespace gantry::softgpu {
namespace {

class MarkWork final : public Work {
public:
    explicit MarkWork(std::shared_ptr<EventMark> mark) : mark_(std::move(mark)) {}
    void run() override { mark_->pass(); }
    void skip(CUresult) override { run(); }
    [[nodiscard]] bool brief() const override { return true; }

private:
    std::shared_ptr<EventMark> mark_;
};

}  // namespace

void EventMark::pass() {
    time_ns.store(now_ns());
    if (shared != nullptr) {
        shared->end_record(ticket);
    }
}

std::shared_ptr<EventMark> Event::new_mark() const {
    auto mark = std::make_shared<EventMark>();
    if (shared != nullptr) {
        mark->shared = shared;
        mark->ticket = shared->begin_record();
    }
    return mark;
}

void Event::set_mark(std::shared_ptr<EventMark> mark) {
    std::shared_ptr<const CapturedRecord> captured;  // Its nodes go after the lock.
    const std::lock_guard lock(mutex_);
    if (mark_ == nullptr || mark->ticket >= mark_->ticket) {
        mark_ = std::move(mark);
    }
    captured.swap(captured_);
}

void Event::set_captured(std::shared_ptr<const CapturedRecord> record) {
    const std::lock_guard lock(mutex_);
    captured_.swap(record);  // The old one goes with the argument, after the lock.
}

Event::Newest Event::newest() const {
    const std::lock_guard lock(mutex_);
    const std::uint64_t ticket = shared != nullptr ? shared->newest() : 0;
    return ticket > (mark_ != nullptr ? mark_->ticket : 0) ? Newest{nullptr, ticket}
                                                           : Newest{mark_, 0};
}

bool Event::has_passed() const {
    const Newest last = newest();
    return last.ticket != 0 ? shared->has_ended(last.ticket)
                            : last.mark == nullptr || last.mark->point.reached();
}

void Event::wait() const {
    const Newest last = newest();
    if (last.ticket != 0) {
        shared->wait(last.ticket);
    } else if (last.mark != nullptr) {
        Scheduler::instance().wait(last.mark->point);
    }
}

std::optional<StreamPoint> Event::awaited() const {
    const Newest last = newest();
    if (last.mark != nullptr && !last.mark->point.reached()) {
        return last.mark->point;
    }
    if (last.ticket == 0 || shared->has_ended(last.ticket)) {
        return std::nullopt;
    }
    const auto waiting = std::make_shared<Stream>(context, CU_STREAM_NON_BLOCKING, 0);
    return Scheduler::instance().submit(
        waiting, std::make_unique<FunctionWork>(
                     [event = shared, ticket = last.ticket] { event->wait(ticket); }));
}

void record_event(const std::shared_ptr<Event>& event, const std::shared_ptr<Stream>& stream) {
    auto mark = event->new_mark();
    mark->point = Scheduler::instance().submit(stream, std::make_unique<MarkWork>(mark));
    event->set_mark(std::move(mark));
}

}  // namespace gantry::softgpu
