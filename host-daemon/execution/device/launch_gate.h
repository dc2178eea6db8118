// LaunchGate: keeps a worker's launches behind its verdict (base/share_seat.h).
//
// The loop asks may_launch() at the boundary in front of a launch; while it may not the loop stays
// there, held or frozen as anywhere else. Where it is not open each launch gets an event behind it,
// that tells when the work has ended. What is limited counts as a whole window: one at a time; in
// another's gap as the time that such launches were measured to take, by an event in front of each.
// The gate also learns for how long the program has nothing, which is the gap that others may fill.
//
// Without a seat it is open. Owner: GuestProcess. Threads: any. Failure: what no event can tell of
// counts as ended. Cost: open, two loads for each command; else a record for each launch.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "host-daemon/execution/base/share_seat.h"
#include "host-daemon/execution/device/event_pool.h"
#include "proto/base/mutex.h"

namespace gantry::worker {

class LaunchGate {
public:
    explicit LaunchGate(EventPool& events) : events_(events) {}

    /// From now on; in place of one before, of a gantryd that has ended.
    void join(std::unique_ptr<ShareSeat> seat);
    [[nodiscard]] bool is_open() const {
        return word_.load(std::memory_order_acquire)->load(std::memory_order_relaxed) == 0;
    }
    /// Where the verdict is: 0 while it is open.
    [[nodiscard]] const std::atomic<const std::atomic<std::uint32_t>*>& word() const {
        return word_;
    }
    /// Launches may go together.
    [[nodiscard]] bool may_batch() const;
    /// False: it may not now, having waited a little. `key`: of the launch's kernel and shape.
    bool may_launch(std::uint64_t key);
    /// In front of a launch; for launched().
    [[nodiscard]] EventPool::Event launching(CUstream stream);
    /// Behind a launch, where the gate is not open.
    void launched(CUstream stream, std::uint64_t key, const EventPool::Event& before = {});
    /// Looks what has ended. `is_idle`: no command waits.
    void poll(bool is_idle);
    /// Something has ended, or will, of which the arbiter is to be told.
    [[nodiscard]] bool has_marks() const { return has_marks_.load(std::memory_order_relaxed); }
    /// The device was drained, and nothing is launched until further notice.
    void rest();

private:
    struct Mark {
        EventPool::Event event;   ///< None: its end cannot be known.
        EventPool::Event before;  ///< None: it is not measured.
        std::uint64_t key = 0;
        std::optional<scheduling::Time> cost;
        CUstream stream = nullptr;  ///< Compared only: it may be gone.
        bool is_limited = false;
    };
    void end(const Mark& mark) GANTRY_REQUIRES(mutex_);
    void note_marks() GANTRY_REQUIRES(mutex_) {
        has_marks_.store(!marks_.empty() || turn_->waits(), std::memory_order_relaxed);
    }

    EventPool& events_;
    mutable Mutex mutex_;
    scheduling::LaunchTimes times_ GANTRY_GUARDED_BY(mutex_);
    scheduling::GapWatch gaps_ GANTRY_GUARDED_BY(mutex_){times_};
    std::optional<scheduling::Time> cost_ GANTRY_GUARDED_BY(mutex_);  ///< Of the one let through.
    std::unique_ptr<ShareSeat> seat_ GANTRY_GUARDED_BY(mutex_);
    std::vector<std::unique_ptr<ShareSeat>> former_ GANTRY_GUARDED_BY(mutex_);
    std::unique_ptr<LaunchTurn> turn_ GANTRY_GUARDED_BY(mutex_);
    std::deque<Mark> marks_ GANTRY_GUARDED_BY(mutex_);
    std::atomic<bool> has_marks_{false};
    std::atomic<const std::atomic<std::uint32_t>*> word_{&kOpenWord};
    static inline const std::atomic<std::uint32_t> kOpenWord{0};
};

}  // namespace gantry::worker
