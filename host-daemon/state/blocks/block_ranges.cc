#include "host-daemon/state/blocks/block_ranges.h"

#include <algorithm>
#include <tuple>

namespace gantry::state {
namespace {

bool is_before(const BlockRange& a, const BlockRange& b) {
    return std::tie(a.space, a.first) < std::tie(b.space, b.first);
}

}  // namespace

std::vector<BlockRange> without(std::span<const BlockRange> ranges, std::vector<BlockRange> taken) {
    std::sort(taken.begin(), taken.end(), is_before);
    std::vector<BlockRange> out;
    for (const BlockRange& range : ranges) {
        const std::uint64_t end = range.first + range.count;
        std::uint64_t at = range.first;
        // The first that does not end before the range begins.
        auto next = std::partition_point(taken.begin(), taken.end(), [&](const BlockRange& one) {
            return is_before(one, range) &&
                   (one.space != range.space || one.first + one.count <= range.first);
        });
        for (; next != taken.end() && next->space == range.space && next->first < end; ++next) {
            const std::uint64_t from = std::max(next->first, at);
            const std::uint64_t to = std::min(next->first + next->count, end);
            if (to <= from) {
                continue;
            }
            if (from > at) {
                out.push_back({range.space, at, from - at});
            }
            at = to;
        }
        if (at < end) {
            out.push_back({range.space, at, end - at});
        }
    }
    return out;
}

std::vector<BlockRange> take_first(std::vector<BlockRange>* ranges, std::uint64_t count) {
    std::sort(ranges->begin(), ranges->end(), is_before);
    std::vector<BlockRange> taken;
    auto next = ranges->begin();
    for (; next != ranges->end() && count >= next->count; ++next) {
        taken.push_back(*next);
        count -= next->count;
    }
    if (next != ranges->end() && count != 0) {
        taken.push_back({next->space, next->first, count});
        next->first += count;
        next->count -= count;
    }
    ranges->erase(ranges->begin(), next);
    return taken;
}

}  // namespace gantry::state
