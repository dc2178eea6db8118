#include "host-daemon/execution/device/launch_gate.h"

#include <algorithm>
#include <chrono>

namespace gantry::worker {
namespace {

using scheduling::Permit;
using scheduling::Time;

/// A freeze waits for the end of it.
constexpr Time kNap = std::chrono::microseconds{500};
/// While work of its own is at the driver, whose end lets the next one go.
constexpr Time kShortNap = std::chrono::microseconds{20};

Time gate_time() { return std::chrono::steady_clock::now().time_since_epoch(); }

}  // namespace

void LaunchGate::join(std::unique_ptr<ShareSeat> seat) {
    const MutexLock lock(mutex_);
    word_.store(&seat->word(), std::memory_order_release);
    turn_ = std::make_unique<LaunchTurn>(*seat);
    marks_.clear();
    note_marks();
    if (seat_ != nullptr) {
        former_.push_back(std::move(seat_));  // The loop may be looking at its word.
    }
    seat_ = std::move(seat);
}

bool LaunchGate::may_batch() const {
    const std::uint32_t word = word_.load(std::memory_order_acquire)->load();
    return word == static_cast<std::uint32_t>(Permit::kOpen) ||
           word == static_cast<std::uint32_t>(Permit::kTold);
}

bool LaunchGate::may_launch(std::uint64_t key) {
    scheduling::Verdict seen;
    const ShareSeat* seat = nullptr;
    bool has_work = false;
    {
        const MutexLock lock(mutex_);
        if (turn_ == nullptr) {
            return true;
        }
        seen = seat_->verdict();
        // Who is held says what it would take in a gap.
        const bool is_predicted = seen.permit == Permit::kFill || seen.permit == Permit::kHold;
        cost_ = is_predicted ? times_.run_of(key) : std::nullopt;
        if (turn_->may_launch(cost_, gate_time())) {
            return true;
        }
        gaps_.forget();
        seat = seat_.get();  // It is kept when another takes its place.
        has_work = !marks_.empty();
        note_marks();
    }
    seat->wait(seen, has_work ? kShortNap : kNap);
    return false;
}

EventPool::Event LaunchGate::launching(CUstream stream) {
    return may_batch() ? EventPool::Event{} : events_.record(stream, EventPool::Kind::kTimed);
}

void LaunchGate::launched(CUstream stream, std::uint64_t key, const EventPool::Event& before) {
    const MutexLock lock(mutex_);
    if (turn_ == nullptr) {
        events_.keep(before);
        return;
    }
    gaps_.begins(key, gate_time());
    const Permit permit = seat_->verdict().permit;
    const bool is_limited = permit != Permit::kOpen && permit != Permit::kTold;
    Mark mark;
    mark.event = events_.record(stream, before ? EventPool::Kind::kTimed : EventPool::Kind::kPlain);
    mark.before = before;
    mark.key = key;
    mark.cost = is_limited ? cost_ : std::optional(Time{});
    mark.stream = stream;
    mark.is_limited = is_limited;
    if (!is_limited) {
        // The newest launch of a stream ends last.
        const auto former = std::find_if(marks_.begin(), marks_.end(), [&](const Mark& one) {
            return !one.is_limited && one.stream == stream;
        });
        if (former != marks_.end()) {
            std::swap(*former, mark);
            events_.keep(mark.event);
            events_.keep(mark.before);
            return;
        }
    }
    turn_->launched(mark.cost);
    marks_.push_back(mark);
    note_marks();
}

void LaunchGate::end(const Mark& mark) {
    if (const auto took = mark.before ? events_.between(mark.before, mark.event) : std::nullopt) {
        times_.note_run(mark.key, *took);
    }
    events_.keep(mark.before);
    events_.keep(mark.event);
    turn_->expects(gaps_.expected());
    turn_->ended(mark.cost);
}

void LaunchGate::poll(bool is_idle) {
    if (!has_marks()) {
        return;
    }
    const MutexLock lock(mutex_);
    std::deque<Mark> left;
    for (const Mark& mark : marks_) {
        if (mark.event && events_.query(mark.event) == CUDA_ERROR_NOT_READY) {
            left.push_back(mark);
        } else {
            end(mark);
        }
    }
    if (left.empty() && !marks_.empty()) {
        gaps_.ends(gate_time());
    }
    marks_ = std::move(left);
    if (is_idle && turn_->waits()) {
        turn_->has_no_more();
    }
    note_marks();
}

void LaunchGate::rest() {
    const MutexLock lock(mutex_);
    if (turn_ == nullptr) {
        return;
    }
    for (const Mark& mark : marks_) {
        end(mark);
    }
    marks_.clear();
    gaps_.forget();  // A freeze is no pause of the program.
    turn_->has_no_more();
    note_marks();
}

}  // namespace gantry::worker
