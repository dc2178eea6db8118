#include "host-daemon/execution/ring/profile_board.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "proto/wire/wait.h"

namespace gantry::worker {
namespace {

/// Another one for each worker of a channel, so that the guest knows whose counters it reads.
std::uint32_t worker_number() {
    const auto now = static_cast<std::uint32_t>(wire::monotonic_ns() >> 10);
    const std::uint32_t number = now * 2654435761U ^ static_cast<std::uint32_t>(getpid());
    return number != 0 ? number : 1;
}

bool sums_up(const wire::ProfileRow& row) {
    std::uint64_t left = row.wall_ns;
    for (const std::uint64_t part : row.part_ns) {
        if (part > left) {
            return false;
        }
        left -= part;
    }
    return left == 0;
}

void make_printable(wire::ProfileRow* row) {
    char* const end = std::find(row->name, row->name + sizeof(row->name) - 1, '\0');
    std::replace_if(
        row->name, end, [](char one) { return one < ' ' || one > '~'; }, '?');
    std::fill(end, row->name + sizeof(row->name), '\0');
}

template <typename T>
std::vector<T> read_array(std::span<const std::byte> bytes, std::size_t count) {
    std::vector<T> out(count);
    if (count != 0) {
        std::memcpy(out.data(), bytes.data(), count * sizeof(T));
    }
    return out;
}

}  // namespace

ProfileBoard::ProfileBoard() : worker_(worker_number()) {}

void ProfileBoard::tell() {
    if (words_ != nullptr) {
        words_->profile.store(word(), std::memory_order_release);
    }
}

void ProfileBoard::attach(wire::HostWords* words) {
    const MutexLock lock(mutex_);
    words_ = words;
    if (words != nullptr) {
        words->held_ns.store(0, std::memory_order_relaxed);
        words->launch_ns.store(0, std::memory_order_relaxed);
        words->pause_ns.store(0, std::memory_order_relaxed);
        words->stop_ns.store(0, std::memory_order_relaxed);
        words->profile_worker.store(worker_, std::memory_order_release);
    }
    tell();
}

void ProfileBoard::set_level(std::uint32_t level) {
    const MutexLock lock(mutex_);
    const std::uint32_t settings =
        (word() & ~wire::kProfileLevelMask) + wire::kProfileLevelMask + 1;
    word_.store(settings | (level & wire::kProfileLevelMask), std::memory_order_relaxed);
    tell();
}

void ProfileBoard::load(std::uint32_t word) {
    const MutexLock lock(mutex_);
    word_.store(word, std::memory_order_relaxed);
    tell();
}

void ProfileBoard::held(bool is_held) {
    if (!is_held && !is_held_) {
        return;
    }
    const auto now = std::chrono::steady_clock::now();
    if (!is_held_) {
        held_since_ = now;
    }
    const auto lasts = std::chrono::duration_cast<std::chrono::nanoseconds>(now - held_since_);
    const std::uint64_t all = held_before_ns_ + static_cast<std::uint64_t>(lasts.count());
    if (!is_held) {
        held_before_ns_ = all;
    }
    is_held_ = is_held;
    const MutexLock lock(mutex_);
    if (words_ != nullptr) {
        words_->held_ns.store(all, std::memory_order_release);
    }
}

void ProfileBoard::launched(std::uint64_t launch_ns) {
    const MutexLock lock(mutex_);
    if (words_ != nullptr && launch_ns > words_->launch_ns.load(std::memory_order_relaxed)) {
        words_->launch_ns.store(launch_ns, std::memory_order_release);
    }
}

void ProfileBoard::paused(std::chrono::nanoseconds pause, bool clock_stood) {
    const MutexLock lock(mutex_);
    if (words_ != nullptr && pause.count() > 0) {
        (clock_stood ? words_->stop_ns : words_->pause_ns)
            .fetch_add(static_cast<std::uint64_t>(pause.count()), std::memory_order_acq_rel);
    }
}

bool ProfileBoard::take_row(wire::ProfileRow row) {
    const bool is_first = row.parent == wire::kNoProfileRow;
    if (row.row >= wire::kProfileRows || !sums_up(row) || (!is_first && row.parent >= row.row)) {
        return false;
    }
    if (has_row_[row.row]) {
        const wire::ProfileRow& known = rows_[row.row];
        if (known.thread != row.thread || known.parent != row.parent) {
            return false;
        }
    }
    make_printable(&row);
    rows_[row.row] = row;
    has_row_.set(row.row);
    return true;
}

void ProfileBoard::take_ranges(std::uint64_t first, std::span<const wire::ProfileRange> ranges) {
    if (first > range_count_) {
        range_count_ = first;
        first_range_ = first;
    }
    for (std::size_t i = 0; i < ranges.size(); ++i) {
        if (first + i < range_count_) {
            continue;  // It came before.
        }
        const wire::ProfileRange& range = ranges[i];
        const bool can_be = range.row < wire::kProfileRows && range.begin_ns <= range.end_ns &&
                            range.part < wire::kProfileParts;
        refused_ += can_be ? 0 : 1;
        ranges_[range_count_++ % wire::kProfileRanges] =
            can_be ? range : wire::ProfileRange{wire::kNoProfileRow, 0, 0, 0};
    }
}

void ProfileBoard::take(std::span<const std::byte> arguments, std::span<const std::byte> trailing) {
    wire::ProfileCall call{};
    const MutexLock lock(mutex_);
    if (!is_on() || arguments.size() != sizeof(call)) {
        ++refused_;
        return;
    }
    std::memcpy(&call, arguments.data(), sizeof(call));
    const std::size_t row_bytes = std::size_t{call.row_count} * sizeof(wire::ProfileRow);
    const std::size_t range_bytes = std::size_t{call.range_count} * sizeof(wire::ProfileRange);
    constexpr std::uint64_t kNumberMax = 1ULL << 62;
    if (call.row_count > wire::kProfileRows || call.range_count > wire::kProfileRanges ||
        row_bytes + range_bytes != trailing.size() || call.first_range > kNumberMax) {
        ++refused_;
        return;
    }
    rows_.resize(wire::kProfileRows);
    ranges_.resize(wire::kProfileRanges, {wire::kNoProfileRow, 0, 0, 0});
    for (const wire::ProfileRow& row : read_array<wire::ProfileRow>(trailing, call.row_count)) {
        refused_ += take_row(row) ? 0 : 1;
    }
    take_ranges(call.first_range,
                read_array<wire::ProfileRange>(trailing.subspan(row_bytes), call.range_count));
    newest_ = call;
}

/// A row whose parent has not come, or is another thread's, is nobody's: it is left out.
ProfileBoard::Kept ProfileBoard::kept() const {
    const MutexLock lock(mutex_);
    Kept out;
    std::bitset<wire::kProfileRows> is_listed;
    for (std::size_t number = 0; number < rows_.size(); ++number) {
        const wire::ProfileRow& row = rows_[number];
        if (!has_row_[number]) {
            continue;
        }
        if (row.parent != wire::kNoProfileRow &&
            (!is_listed[row.parent] || rows_[row.parent].thread != row.thread)) {
            ++out.refused;
            continue;
        }
        is_listed.set(number);
        out.rows.push_back(row);
    }
    const std::uint64_t oldest = range_count_ > wire::kProfileRanges
                                     ? range_count_ - wire::kProfileRanges
                                     : std::uint64_t{0};
    for (std::uint64_t number = std::max(oldest, first_range_); number < range_count_; ++number) {
        const wire::ProfileRange& range = ranges_[number % wire::kProfileRanges];
        if (range.row < wire::kProfileRows && is_listed[range.row]) {
            out.ranges.push_back(range);
        }
    }
    out.newest = newest_;
    out.refused += refused_;
    out.ranges_lost = std::max(oldest, first_range_);
    return out;
}

}  // namespace gantry::worker
