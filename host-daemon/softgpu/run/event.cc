#include "host-daemon/softgpu/run/event.h"

#include <time.h>

namespace gantry::softgpu {
namespace {

class MarkWork final : public Work {
public:
    explicit MarkWork(std::shared_ptr<EventMark> mark) : mark_(std::move(mark)) {}
    void run() override { mark_->time_ns.store(now_ns()); }
    void skip(CUresult) override { run(); }
    [[nodiscard]] bool brief() const override { return true; }

private:
    std::shared_ptr<EventMark> mark_;
};

}  // namespace

std::int64_t now_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void record_event(const std::shared_ptr<Event>& event, const std::shared_ptr<Stream>& stream) {
    auto mark = std::make_shared<EventMark>();
    mark->point = Scheduler::instance().submit(stream, std::make_unique<MarkWork>(mark));
    event->set_mark(std::move(mark));
}

}  // namespace gantry::softgpu
