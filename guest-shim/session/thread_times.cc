#include "guest-shim/session/thread_times.h"

#include <cstring>

namespace gantry::session {
namespace {

using wire::Part;

std::uint64_t least(std::uint64_t a, std::uint64_t b) { return a < b ? a : b; }

/// The counters of another worker begin at 0.
std::uint64_t since(const HostTimes& then, const HostTimes& now, std::uint64_t HostTimes::*count) {
    if (then.worker != now.worker) {
        return now.*count;
    }
    return now.*count > then.*count ? now.*count - then.*count : 0;
}

std::uint64_t& part_of(wire::ProfileRow& row, Part part) {
    return row.part_ns[static_cast<std::size_t>(part)];
}

}  // namespace

void ThreadTimes::begin(ProfileTable* table, std::uint32_t thread, std::uint64_t now,
                        const HostTimes& host) {
    const bool is_first = table_ == nullptr;
    table_ = table;
    if (is_first) {
        first_row_ = wire::kNoProfileRow;
        thread_ = thread;
        root_ = find_row(wire::kNoProfileRow, "(outside)");
    }
    row_ = root_;
    depth_ = 0;
    deeper_ = 0;
    calls_ = 0;
    is_waiting_ = false;
    is_launched_ = false;
    segment_count_ = 0;
    last_ns_ = now;
    host_ = host;
}

void ThreadTimes::add(Part part, std::uint64_t ns) {
    if (ns == 0 || row_ == wire::kNoProfileRow) {
        return;
    }
    wire::ProfileRow& row = table_->rows[row_];
    row.wall_ns += ns;
    part_of(row, part) += ns;
    if (!is_launched_ || part > Part::kTransport) {
        return;
    }
    if (segment_count_ != 0) {
        Segment& newest = segments_[(segment_first_ + segment_count_ - 1) % kSegments];
        if (newest.row == row_ && newest.part == part) {
            newest.ns += ns;
            return;
        }
    }
    if (segment_count_ == kSegments) {
        segment_first_ = (segment_first_ + 1) % kSegments;
        --segment_count_;
    }
    segments_[(segment_first_ + segment_count_++) % kSegments] = {row_, part, ns};
}

/// The clock stood still for so long, whatever this thread did.
void ThreadTimes::note_stop(const HostTimes& host, bool was_paused) {
    const std::uint64_t stopped = since(host_, host, &HostTimes::stop_ns);
    add(Part::kPause, stopped);
    if ((stopped != 0 || was_paused) && row_ != wire::kNoProfileRow) {
        ++pauses_;
        ++table_->rows[row_].pauses;
    }
    if (host_.worker != host.worker) {
        host_ = HostTimes{.worker = host.worker};
    }
    host_.stop_ns = host.stop_ns;
}

void ThreadTimes::stamp(std::uint64_t now, const HostTimes& host) {
    add(calls_ != 0 ? Part::kShim : Part::kGuest, now > last_ns_ ? now - last_ns_ : 0);
    last_ns_ = now;
    note_stop(host, false);
    if (row_ != wire::kNoProfileRow) {
        ++table_->rows[row_].stamps;
    }
}

void ThreadTimes::enter_call(std::uint64_t now, const HostTimes& host) {
    if (calls_ == 0) {
        stamp(now, host);
    }
    ++calls_;
}

void ThreadTimes::leave_call(std::uint64_t now, const HostTimes& host) {
    if (calls_ == 0) {
        return;  // It began before the profile.
    }
    if (calls_ == 1) {
        stamp(now, host);
    }
    --calls_;
}

void ThreadTimes::begin_wait(std::uint64_t now, const HostTimes& host) {
    stamp(now, host);
    is_waiting_ = true;
    host_.held_ns = host.held_ns;
    host_.pause_ns = host.pause_ns;
}

void ThreadTimes::end_wait(std::uint64_t now, const HostTimes& host, std::uint64_t device_ns) {
    is_waiting_ = false;
    std::uint64_t left = now > last_ns_ ? now - last_ns_ : 0;
    last_ns_ = now;
    const auto take = [&](std::uint64_t wanted, Part part) {
        const std::uint64_t taken = least(wanted, left);
        add(part, taken);
        left -= taken;
        return taken;
    };
    const std::uint64_t paused = take(since(host_, host, &HostTimes::pause_ns), Part::kPause);
    take(since(host_, host, &HostTimes::held_ns), Part::kScheduler);
    const std::uint64_t worked = take(device_ns, Part::kGpu);
    take(left, Part::kTransport);
    const std::uint64_t launched = since(host_, host, &HostTimes::launch_ns);
    note_stop(host, paused != 0);
    if (row_ != wire::kNoProfileRow) {
        ++table_->rows[row_].stamps;
    }
    if (device_ns != 0) {
        settle(launched, worked);
        host_.launch_ns = host.launch_ns;
    }
}

/// The GPU was seen to have nothing more to do: what it did beyond the wait was beside CPU time.
void ThreadTimes::settle(std::uint64_t launch_ns, std::uint64_t device_ns) {
    std::uint64_t left = launch_ns > device_ns ? launch_ns - device_ns : 0;
    for (; segment_count_ != 0 && left != 0; --segment_count_) {
        const Segment& segment = segments_[segment_first_];
        segment_first_ = (segment_first_ + 1) % kSegments;
        wire::ProfileRow& row = table_->rows[segment.row];
        const std::uint64_t moved = least(left, segment.ns);
        part_of(row, segment.part) -= moved;
        part_of(row, Part::kOverlapped) += moved;
        table_->links[segment.row].sent_ns = 0;
        left -= moved;
    }
    segment_count_ = 0;
    is_launched_ = false;
}

std::uint32_t ThreadTimes::find_row(std::uint32_t parent, const char* name) {
    std::uint32_t* slot = nullptr;
    if (parent != wire::kNoProfileRow) {
        for (slot = &table_->links[parent].first_child; *slot != 0;
             slot = &table_->links[*slot - 1].next_sibling) {
            if (std::strncmp(table_->rows[*slot - 1].name, name, wire::kProfileNameBytes - 1) ==
                0) {
                return *slot - 1;
            }
        }
    }
    const std::uint32_t found = table_->count.load(std::memory_order_relaxed) < wire::kProfileRows
                                    ? table_->count.fetch_add(1, std::memory_order_relaxed)
                                    : wire::kProfileRows;
    if (found >= wire::kProfileRows) {
        table_->lost.fetch_add(1, std::memory_order_relaxed);
        return parent;
    }
    wire::ProfileRow& row = table_->rows[found];
    row.row = found;
    row.parent = parent;
    row.thread = thread_;
    row.count = parent == wire::kNoProfileRow ? 1 : 0;
    for (std::size_t i = 0; i + 1 < sizeof(row.name) && name[i] != '\0'; ++i) {
        row.name[i] = name[i];
    }
    if (slot != nullptr) {
        *slot = found + 1;
    }
    table_->links[found].next_of_thread = first_row_ + 1;
    first_row_ = found;
    return found;
}

std::uint64_t ThreadTimes::push(std::uint64_t now, const HostTimes& host, const char* name,
                                bool is_nested) {
    stamp(now, host);
    if (depth_ == kDepth || row_ == wire::kNoProfileRow) {
        deeper_ += is_nested ? 1 : 0;
        table_->lost.fetch_add(1, std::memory_order_relaxed);
        return 0;
    }
    const std::uint32_t parent = row_;
    row_ = find_row(parent, name);
    if (row_ != parent) {
        ++table_->rows[row_].count;
    }
    const std::uint64_t range = (std::uint64_t{thread_} + 1) << 40 | ++ranges_;
    open_[depth_++] = {row_, range, now, is_nested, false};
    return range;
}

/// Marks it, and goes back to what encloses those that have ended.
ThreadTimes::Ended ThreadTimes::close(std::uint32_t depth) {
    const Ended ended{open_[depth].row, open_[depth].begin_ns};
    open_[depth].has_ended = true;
    while (depth_ != 0 && open_[depth_ - 1].has_ended) {
        --depth_;
    }
    row_ = depth_ != 0 ? open_[depth_ - 1].row : root_;
    return ended;
}

ThreadTimes::Ended ThreadTimes::pop(std::uint64_t now, const HostTimes& host) {
    stamp(now, host);
    if (deeper_ != 0) {
        --deeper_;
        return {};
    }
    for (std::uint32_t depth = depth_; depth-- != 0;) {
        if (open_[depth].is_nested && !open_[depth].has_ended) {
            return close(depth);
        }
    }
    table_->unmatched.fetch_add(1, std::memory_order_relaxed);
    return {};
}

ThreadTimes::Ended ThreadTimes::end(std::uint64_t now, const HostTimes& host, std::uint64_t range) {
    stamp(now, host);
    for (std::uint32_t depth = depth_; depth-- != 0;) {
        if (range != 0 && open_[depth].range == range && !open_[depth].has_ended) {
            return close(depth);
        }
    }
    table_->unmatched.fetch_add(1, std::memory_order_relaxed);
    return {};
}

}  // namespace gantry::session
