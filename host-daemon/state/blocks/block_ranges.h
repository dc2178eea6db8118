// Between ranges of blocks and the runs of worker.proto.
#pragma once

#include <span>
#include <vector>

#include "host-daemon/state/blocks/block_range.h"
#include "host-daemon/state/blocks/block_runs.h"

namespace gantry::state {

/// As expand_runs(); none is empty.
inline Result<std::vector<BlockRange>> to_ranges(const RunList& runs) {
    std::uint64_t left = kBlocksMax;
    std::vector<BlockRange> ranges;
    for (const control::BlockRun& run : runs) {
        if (run.space() == 0 ||
            run.space() > static_cast<std::uint32_t>(engine::MemorySpace::kArray) ||
            run.count() > left || run.first() > ~std::uint64_t{0} - run.count()) {
            return Error{Code::kInvalidArgument, "worker.protocol", "a run of impossible blocks"};
        }
        left -= run.count();
        if (run.count() != 0) {
            ranges.push_back(
                {static_cast<engine::MemorySpace>(run.space()), run.first(), run.count()});
        }
    }
    return ranges;
}

inline void add_ranges(std::span<const BlockRange> ranges, RunList* runs) {
    for (const BlockRange& range : ranges) {
        control::BlockRun& run = *runs->Add();
        run.set_space(static_cast<std::uint32_t>(range.space));
        run.set_first(range.first);
        run.set_count(static_cast<std::uint32_t>(range.count));
    }
}

/// Joined to the last run if it goes on from there.
inline void append_range(const BlockRange& range, RunList* runs) {
    if (!runs->empty()) {
        control::BlockRun& last = *runs->Mutable(runs->size() - 1);
        if (last.space() == static_cast<std::uint32_t>(range.space) &&
            last.first() + last.count() == range.first && range.count <= ~0U - last.count()) {
            last.set_count(last.count() + static_cast<std::uint32_t>(range.count));
            return;
        }
    }
    add_ranges({&range, 1}, runs);
}

inline std::uint64_t count_of(std::span<const BlockRange> ranges) {
    std::uint64_t count = 0;
    for (const BlockRange& range : ranges) {
        count += range.count;
    }
    return count;
}

/// `ranges` without the blocks that are in `taken`, too, in their order. Neither names a block
/// twice.
std::vector<BlockRange> without(std::span<const BlockRange> ranges, std::vector<BlockRange> taken);

/// The `count` blocks of the least addresses, or all there are; `ranges` is left with the others,
/// sorted.
std::vector<BlockRange> take_first(std::vector<BlockRange>* ranges, std::uint64_t count);

}  // namespace gantry::state
