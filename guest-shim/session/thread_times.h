// ThreadTimes: one thread's wall time, split by operation and part (proto/wire/profile.h).
//
// Invariant: after each call the parts of every row sum to its wall time, and the walls of a
// thread's rows to the time since it began and what the host says the clock missed. Time is an
// argument: nothing here asks a clock or the host. Threads: its own only; rows of the table
// are given out to any. Failure: a table that is full, or a stack that is too deep, leaves time
// with the enclosing operation, and counts. Cost: some ten nanoseconds for each stamp.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "proto/wire/profile.h"

namespace gantry::session {

/// All rows of a process. Zero-initialised memory is an empty one.
struct ProfileTable {
    struct Link {
        std::uint32_t next_of_thread;  ///< Row + 1; 0: none.
        std::uint32_t first_child;
        std::uint32_t next_sibling;
        std::uint64_t sent_ns;  ///< Wall time when it was last sent.
    };
    std::atomic<std::uint32_t> count;
    std::atomic<std::uint64_t> lost;
    std::atomic<std::uint64_t> unmatched;
    wire::ProfileRow rows[wire::kProfileRows];
    Link links[wire::kProfileRows];
};

/// What the host counts, as read at some moment.
struct HostTimes {
    std::uint32_t worker = 0;
    std::uint64_t held_ns = 0;
    std::uint64_t launch_ns = 0;
    std::uint64_t pause_ns = 0;
    std::uint64_t stop_ns = 0;
};

class ThreadTimes {
public:
    /// Anew: the stack is empty, and time before `now` is nobody's.
    void begin(ProfileTable* table, std::uint32_t thread, std::uint64_t now, const HostTimes& host);

    void enter_call(std::uint64_t now, const HostTimes& host);
    void leave_call(std::uint64_t now, const HostTimes& host);
    [[nodiscard]] bool is_in_call() const { return calls_ != 0; }
    void begin_wait(std::uint64_t now, const HostTimes& host);
    /// `device_ns`: so long the command waited for the device, as the host says; 0: it did not.
    void end_wait(std::uint64_t now, const HostTimes& host, std::uint64_t device_ns);
    [[nodiscard]] bool is_waiting() const { return is_waiting_; }
    /// The GPU has work of this thread from now on.
    void launched() { is_launched_ = true; }

    /// Number of the range, for end(); 0: it is not kept.
    std::uint64_t push(std::uint64_t now, const HostTimes& host, const char* name, bool is_nested);
    /// What has ended: `row` and when it began.
    struct Ended {
        std::uint32_t row = wire::kNoProfileRow;
        std::uint64_t begin_ns = 0;
    };
    /// Of a nested range: the innermost one.
    Ended pop(std::uint64_t now, const HostTimes& host);
    Ended end(std::uint64_t now, const HostTimes& host, std::uint64_t range);

    [[nodiscard]] std::uint32_t row() const { return row_; }
    [[nodiscard]] std::uint32_t first_row() const { return first_row_; }
    [[nodiscard]] std::uint64_t last_ns() const { return last_ns_; }  ///< Of the newest stamp.
    /// Pauses that hit this thread so far.
    [[nodiscard]] std::uint32_t pauses() const { return pauses_; }

private:
    static constexpr std::uint32_t kDepth = 64;
    static constexpr std::uint32_t kSegments = 64;
    struct Open {
        std::uint32_t row;
        std::uint64_t range;
        std::uint64_t begin_ns;
        bool is_nested;
        bool has_ended;
    };
    struct Segment {
        std::uint32_t row;
        wire::Part part;
        std::uint64_t ns;
    };

    void stamp(std::uint64_t now, const HostTimes& host);
    void add(wire::Part part, std::uint64_t ns);
    void note_stop(const HostTimes& host, bool was_paused);
    void settle(std::uint64_t launch_ns, std::uint64_t device_ns);
    std::uint32_t find_row(std::uint32_t parent, const char* name);
    Ended close(std::uint32_t depth);

    ProfileTable* table_;
    std::uint32_t thread_;
    std::uint32_t row_;
    std::uint32_t root_;       ///< Outside all ranges; kNoProfileRow: the table had no room.
    std::uint32_t first_row_;  ///< Of this thread's list.
    std::uint32_t calls_;
    std::uint32_t depth_;
    std::uint32_t deeper_;  ///< Nested ranges beyond kDepth.
    std::uint32_t pauses_;
    bool is_waiting_;
    bool is_launched_;
    std::uint64_t last_ns_;
    std::uint64_t ranges_;
    HostTimes host_;  ///< When the wait began; `stop_ns` and `launch_ns`: as last taken in.
    Open open_[kDepth];
    std::uint32_t segment_first_;
    std::uint32_t segment_count_;
    Segment segments_[kSegments];
};

}  // namespace gantry::session
