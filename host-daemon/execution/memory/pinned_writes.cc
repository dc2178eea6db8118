#include "host-daemon/execution/memory/pinned_writes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace gantry::worker {
namespace {

constexpr std::size_t kPruneStep = 64;         // Look for completed copies that often at rest.
constexpr std::size_t kWritesMax = 64 * 1024;  // Beyond it a move is refused, not made wrong.
/// Words that no program shares between CPU and GPU; coarser ones only when there are too many.
constexpr std::uint64_t kUnits[] = {4, 64, wire::kPageBytes};

}  // namespace

void PinnedWrites::add(const Box& box, CUstream stream) {
    const EventPool::Event event = events_.record(stream);
    MutexLock lock(mutex_);
    if (writes_.size() >= kWritesMax || (!announced_ && writes_.size() >= prune_at_)) {
        ++tick_;
        find_completed_locked();
        if (!announced_) {
            drop_completed_locked(tick_);
        }
        prune_at_ = writes_.size() + kPruneStep;
    }
    if (!event || writes_.size() >= kWritesMax) {
        events_.keep(event);
        overflowed_ = true;
        return;
    }
    writes_.push_back({box, stream, event, 0});
}

void PinnedWrites::find_completed_locked() {
    std::vector<CUstream> busy;  // A stream's copies end in order.
    for (Write& write : writes_) {
        if (!write.event || std::find(busy.begin(), busy.end(), write.stream) != busy.end()) {
            continue;
        }
        if (events_.query(write.event) == CUDA_ERROR_NOT_READY) {
            busy.push_back(write.stream);
            continue;
        }
        events_.keep(std::exchange(write.event, {}));
        write.completed_at = tick_;
    }
}

void PinnedWrites::drop_completed_locked(std::uint64_t until) {
    std::erase_if(writes_, [until](const Write& write) {
        return write.completed_at != 0 && write.completed_at <= until;
    });
}

std::span<const std::byte> PinnedWrites::in_pool(const PinnedRange& range) const {
    if (range.address < wire::kPinnedBase || range.address - wire::kPinnedBase > pool_.size() ||
        range.bytes > pool_.size() - (range.address - wire::kPinnedBase)) {
        return {};
    }
    return pool_.subspan(range.address - wire::kPinnedBase, range.bytes);
}

PinnedWrites::Samples PinnedWrites::take_samples_locked() const {
    Samples samples;
    samples.tick = tick_;
    for (const PinnedRange& range : memory_.pinned_ranges()) {
        const auto bytes = in_pool(range);
        samples.ranges.push_back({range.address, {bytes.begin(), bytes.end()}});
    }
    return samples;
}

void PinnedWrites::announce(bool migrating) {
    MutexLock lock(mutex_);
    if (migrating && announced_) {
        return;  // Another attempt within the hypervisor's job: what is kept, stays.
    }
    if (migrating && enabled_) {
        // The hypervisor's first pass over all memory begins after this: it carries what has
        // completed by now.
        ++tick_;
        find_completed_locked();
        drop_completed_locked(tick_);
        overflowed_ = false;
        base_ = take_samples_locked();
        worked_ = true;  // What was queued before may still run.
    } else if (!migrating) {
        base_ = {};
    }
    pending_.reset();
    announced_ = migrating;
}

void PinnedWrites::before_answer(std::uint32_t lane) {
    if (!enabled_) {
        return;
    }
    MutexLock lock(mutex_);
    if (!announced_) {
        return;
    }
    ++tick_;
    find_completed_locked();
    answered_at_[lane] = tick_;
    // One at a time: a later answer's confirm covers these samples too.
    if (!pending_ && worked_.exchange(false, std::memory_order_relaxed)) {
        pending_ = take_samples_locked();
    }
}

void PinnedWrites::confirmed(std::uint32_t lane) {
    MutexLock lock(mutex_);
    drop_completed_locked(answered_at_[lane]);
    if (pending_ && pending_->tick <= answered_at_[lane]) {
        base_ = std::move(*pending_);
        pending_.reset();
    }
}

/// False when there would be more ranges than can be carried.
bool PinnedWrites::add_changed_words(std::uint64_t unit, std::vector<Range>* out) const {
    for (const PinnedRange& range : memory_.pinned_ranges()) {
        const auto now = in_pool(range);
        const auto before =
            std::find_if(base_.ranges.begin(), base_.ranges.end(), [&](const Sample& sample) {
                return sample.address == range.address && sample.bytes.size() == now.size();
            });
        if (before == base_.ranges.end()) {  // Page-locked since; nothing is known about it.
            out->push_back({range.address, now.size()});
            continue;
        }
        bool is_open = false;
        for (std::uint64_t at = 0; at < now.size(); at += unit) {
            const std::uint64_t bytes = std::min<std::uint64_t>(unit, now.size() - at);
            if (std::memcmp(now.data() + at, before->bytes.data() + at, bytes) == 0) {
                is_open = false;
                continue;
            }
            if (!is_open) {
                if (out->size() >= kCarriedRangesMax) {
                    return false;
                }
                out->push_back({range.address + at, 0});
                is_open = true;
            }
            out->back().bytes += bytes;
        }
    }
    return true;
}

Result<std::vector<PinnedWrites::Range>> PinnedWrites::left() const {
    MutexLock lock(mutex_);
    std::vector<Range> ranges;
    if (!announced_) {
        return ranges;
    }
    const auto too_much = [](const char* what) {
        return Error{Code::kResourceExhausted, "state.pinned_writes",
                     fmt::format("{} that the guest has not seen yet wrote page-locked memory; let "
                                 "the guest synchronise and try again",
                                 what)};
    };
    if (overflowed_) {
        return too_much("more copies than can be remembered");
    }
    for (const Write& write : writes_) {
        const Box& box = write.box;
        const bool is_dense = box.pitch == box.width || box.rows == 1;
        const std::uint64_t rows = is_dense ? 1 : box.rows;
        const std::uint64_t width = is_dense ? box.width * box.rows : box.width;
        if (rows > kCarriedRangesMax || box.slices > kCarriedRangesMax ||
            rows * box.slices > kCarriedRangesMax - ranges.size()) {
            return too_much("copies of more rows than can be carried");
        }
        for (std::uint64_t slice = 0; slice < box.slices; ++slice) {
            for (std::uint64_t row = 0; row < rows; ++row) {
                ranges.push_back({box.address + slice * box.slice_pitch + row * box.pitch, width});
            }
        }
    }
    const std::size_t copies = ranges.size();
    bool fits = false;
    for (const std::uint64_t unit : kUnits) {
        ranges.resize(copies);
        fits = add_changed_words(unit, &ranges);
        if (fits) {
            break;
        }
    }
    if (!fits) {
        return too_much("work in more places than can be carried");
    }
    std::sort(ranges.begin(), ranges.end(),
              [](const Range& a, const Range& b) { return a.address < b.address; });
    std::vector<Range> merged;
    std::uint64_t total = 0;
    for (const Range& range : ranges) {
        const std::uint64_t end = range.address + range.bytes;
        if (merged.empty() || merged.back().address + merged.back().bytes < range.address) {
            merged.push_back(range);
            total += range.bytes;
        } else if (Range& last = merged.back(); last.address + last.bytes < end) {
            total += end - (last.address + last.bytes);
            last.bytes = end - last.address;
        }
    }
    if (total > kCarriedBytesMax) {
        return too_much("copies of more bytes than can be carried");
    }
    return merged;
}

}  // namespace gantry::worker
