// PartTarget: copies from another worker's device memory that can be read in
// place, and what is kept of memory that another takes the place of.
#include <algorithm>
#include <chrono>
#include <utility>

#include "host-daemon/state/parts/part_target.h"

namespace gantry::state {
namespace {

using Clock = std::chrono::steady_clock;

/// A copy costs about 2 us to start, in which NVLink moves ten blocks: so short a gap of blocks
/// that nobody asked for is copied as well.
constexpr std::uint64_t kGapBlocksMax = 8;

constexpr std::uint64_t kArenaFirst = wire::kArenaBase / kBlockBytes;
constexpr std::uint64_t kArenaEnd = kArenaFirst + wire::kArenaBytes / kBlockBytes;

std::uint64_t us_since(Clock::time_point begin) {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin).count());
}

std::uint64_t end_of(const BlockRange& range) { return range.first + range.count; }

/// Appends [first, end) of device memory; nothing where it is empty.
void add(std::uint64_t first, std::uint64_t end, std::vector<BlockRange>* out) {
    if (first < end) {
        out->push_back({MemorySpace::kDevice, first, end - first});
    }
}

/// Parts one range into what `shared` has and what it has not.
void part(const BlockRange& range, std::span<const BlockRange> shared, std::vector<BlockRange>* has,
          std::vector<BlockRange>* has_not) {
    std::uint64_t at = range.first;
    auto next = std::upper_bound(
        shared.begin(), shared.end(), at,
        [](std::uint64_t block, const BlockRange& each) { return block < end_of(each); });
    for (; next != shared.end() && next->first < end_of(range); ++next) {
        const std::uint64_t first = std::max(at, next->first);
        const std::uint64_t end = std::min(end_of(range), end_of(*next));
        add(at, first, has_not);
        add(first, end, has);
        at = end;
    }
    add(at, end_of(range), has_not);
}

/// Joins ascending ranges over short gaps for which there is memory.
std::vector<BlockRange> joined(std::span<const BlockRange> ranges,
                               std::span<const BlockRange> shared) {
    std::vector<BlockRange> out;
    auto home = shared.begin();
    for (const BlockRange& range : ranges) {
        while (home != shared.end() && end_of(*home) <= range.first) {
            ++home;
        }
        const bool joins = !out.empty() && range.first <= end_of(out.back()) + kGapBlocksMax &&
                           home != shared.end() && home->first <= out.back().first;
        if (joins) {
            out.back().count = std::max(end_of(range), end_of(out.back())) - out.back().first;
        } else {
            out.push_back(range);
        }
    }
    return out;
}

/// Ascending as these are; neighbours are one.
std::vector<BlockRange> ranges_of(std::span<const worker::ExtentRecord> extents) {
    std::vector<BlockRange> ranges;
    for (const worker::ExtentRecord& extent : extents) {
        const std::uint64_t first = extent.address.value / kBlockBytes;
        if (!ranges.empty() && end_of(ranges.back()) == first) {
            ranges.back().count += extent.bytes / kBlockBytes;
        } else {
            ranges.push_back({MemorySpace::kDevice, first, extent.bytes / kBlockBytes});
        }
    }
    return ranges;
}

}  // namespace

Result<void> PartTarget::keep_moved_blocks(const DecodedGraph& graph) {
    if (new_memory_comes_ || content_.memory.arena_is_shared()) {
        return {};
    }
    std::vector<worker::ExtentRecord> wanted = graph.extents;
    std::sort(wanted.begin(), wanted.end(),
              [](const auto& a, const auto& b) { return a.address.value < b.address.value; });
    const std::vector<BlockRange> next = ranges_of(wanted);
    std::vector<BlockRange> moved;
    std::vector<BlockRange> gone;
    for (const worker::ExtentRecord& extent : process_.memory.device.extents()) {
        const auto same = std::lower_bound(
            wanted.begin(), wanted.end(), extent.address.value,
            [](const auto& each, std::uint64_t address) { return each.address.value < address; });
        if (same == wanted.end() || *same != extent) {
            part(ranges_of({&extent, 1}).front(), next, &moved, &gone);
        }
    }
    GANTRY_TRY(content_.memory.settle());
    std::vector<std::byte> bytes(kBlockBytes);
    for (const BlockRange& range : moved) {
        for (std::uint64_t i = 0; i < range.count; ++i) {
            const BlockAddress block{range.space, range.first + i};
            GANTRY_ASSIGN(const bool present,
                          content_.memory.read({block.space, block.index, 1}, bytes));
            if (present) {
                kept_blocks_.emplace(block, bytes);
            }
        }
    }
    return {};
}

std::vector<BlockRange> PartTarget::shared_ranges(const worker::PeerWindow& window) const {
    const std::vector<BlockRange> own = ranges_of(process_.memory.device.extents());
    std::vector<BlockRange> shared;
    std::vector<BlockRange> elsewhere;
    for (const worker::PeerWindow::Span& span : window.spans()) {
        part({MemorySpace::kDevice, span.address / kBlockBytes, span.bytes / kBlockBytes}, own,
             &shared, &elsewhere);
    }
    return shared;
}

Result<void> PartTarget::pull_ranges(const worker::PeerWindow& window,
                                     std::span<const BlockRange> ranges, RateLimiter& pace) {
    const std::uint64_t portion = pace.rests() ? RateLimiter::kPortionBlocks : ~std::uint64_t{0};
    std::uint64_t queued = 0;
    auto begin = Clock::now();
    const auto finish_portion = [&]() -> Result<void> {
        GANTRY_TRY(content_.memory.settle());
        pace.rest(std::exchange(queued, 0), Clock::now() - begin);
        begin = Clock::now();
        return {};
    };
    for (const BlockRange& range : ranges) {
        for (std::uint64_t at = 0; at < range.count;) {
            const std::uint64_t first = range.first + at;
            const std::uint64_t count = std::min(range.count - at, portion - queued);
            GANTRY_TRY(content_.memory.pull(first, count, window.here(first * kBlockBytes)));
            at += count;
            queued += count;
            if (queued == portion) {
                GANTRY_TRY(finish_portion());
            }
        }
        kept_blocks_.erase(kept_blocks_.lower_bound({range.space, range.first}),
                           kept_blocks_.lower_bound({range.space, end_of(range)}));
    }
    return queued != 0 ? finish_portion() : Result<void>();
}

Result<Pulled> PartTarget::pull(const worker::PeerWindow& window,
                                std::span<const BlockRange> blocks, Fingerprints fingerprints,
                                unsigned share_percent) {
    GANTRY_TRY(content_.need_key());
    process_.device.bind_thread();
    Pulled pulled;
    const std::vector<BlockRange> shared = shared_ranges(window);
    std::vector<BlockRange> wanted;
    for (const BlockRange& range : blocks) {
        const bool is_inside = range.space == MemorySpace::kDevice && range.first >= kArenaFirst &&
                               end_of(range) <= kArenaEnd;
        if (is_inside) {
            part(range, shared, &wanted, &pulled.absent);
        } else {
            pulled.outside.push_back(range);
        }
    }
    std::sort(wanted.begin(), wanted.end(),
              [](const BlockRange& a, const BlockRange& b) { return a.first < b.first; });
    pulled.copied = joined(wanted, shared);
    const auto begin = Clock::now();
    RateLimiter pace;
    pace.set_share(share_percent);
    GANTRY_TRY(pull_ranges(window, pulled.copied, pace));
    pulled.rest_us = pace.take_rested_us();
    pulled.copy_us = us_since(begin) - pulled.rest_us;
    if (fingerprints == Fingerprints::kOfCopies) {
        const auto copied = Clock::now();
        GANTRY_ASSIGN(pulled.fingerprints,
                      content_.reader.fingerprints_of(content_.key(), pulled.copied));
        pulled.fingerprint_us = us_since(copied);
    }
    return pulled;
}

}  // namespace gantry::state
