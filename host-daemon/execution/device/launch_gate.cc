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

bool LaunchGate::may_launch() {
    scheduling::Verdict seen;
    const ShareSeat* seat = nullptr;
    bool has_work = false;
    {
        const MutexLock lock(mutex_);
        if (turn_ == nullptr) {
            return true;
        }
        seen = seat_->verdict();
        if (turn_->may_launch(std::nullopt, gate_time())) {
            return true;
        }
        seat = seat_.get();  // It is kept when another takes its place.
        has_work = !marks_.empty();
        note_marks();
    }
    seat->wait(seen, has_work ? kShortNap : kNap);
    return false;
}

void LaunchGate::launched(CUstream stream) {
    const MutexLock lock(mutex_);
    if (turn_ == nullptr) {
        return;
    }
    const Permit permit = seat_->verdict().permit;
    const bool is_limited = permit != Permit::kOpen && permit != Permit::kTold;
    Mark mark{events_.record(stream), stream, is_limited};
    if (!is_limited) {
        // The newest launch of a stream ends last.
        const auto former = std::find_if(marks_.begin(), marks_.end(), [&](const Mark& one) {
            return !one.is_limited && one.stream == stream;
        });
        if (former != marks_.end()) {
            std::swap(*former, mark);
            events_.keep(mark.event);
            return;
        }
    }
    turn_->launched(is_limited ? std::nullopt : std::optional(Time{}));
    marks_.push_back(mark);
    note_marks();
}

void LaunchGate::end(const Mark& mark) {
    events_.keep(mark.event);
    turn_->ended(mark.is_limited ? std::nullopt : std::optional(Time{}));
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
    turn_->has_no_more();
    note_marks();
}

}  // namespace gantry::worker
