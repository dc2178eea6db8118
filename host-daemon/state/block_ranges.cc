#include "host-daemon/state/block_ranges.h"

#include <algorithm>
#include <tuple>

namespace gantry::state {
namespace {

bool is_before(const BlockRange& a, const BlockRange& b) {
    return std::tie(a.space, a.first) < std::tie(b.space, b.first);
}

}  // namespace

Remainder without(std::span<const BlockRange> ranges, std::vector<BlockRange> taken) {
    std::sort(taken.begin(), taken.end(), is_before);
    Remainder out;
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
                out.left.push_back({range.space, at, from - at});
            }
            out.taken_count += to - from;
            at = to;
        }
        if (at < end) {
            out.left.push_back({range.space, at, end - at});
        }
    }
    return out;
}

}  // namespace gantry::state
