#include "host-daemon/state/files/file_pieces.h"

#include <fmt/format.h>

#include <algorithm>

#include "host-daemon/state/blocks/block_ranges.h"

namespace gantry::state {
namespace {

constexpr std::uint64_t kPageBytes = 4096;

/// Calls take(first, count, is_whole) for the blocks of a range, in order.
template <typename Take>
void split_by_whole(const MemoryImage& memory, const BlockRange& range, Take take) {
    if (range.space != MemorySpace::kDevice ||
        range.first + range.count > (1ull << 47) / kBlockBytes) {
        take(range.first, range.count, false);
        return;
    }
    std::uint64_t next = range.first;
    const auto pass_to = [&](std::uint64_t first) {
        if (first != next) {
            take(next, first - next, false);
        }
    };
    for (const BlockRange& whole : memory.whole_in(range)) {
        pass_to(whole.first);
        take(whole.first, whole.count, true);
        next = whole.first + whole.count;
    }
    pass_to(range.first + range.count);
}

void add_pieces(std::uint64_t first, std::uint64_t count, std::uint64_t offset,
                std::uint64_t chunk_bytes, std::vector<FilePiece>* pieces) {
    std::uint64_t address = first * kBlockBytes;
    for (std::uint64_t left = count * kBlockBytes; left != 0;) {
        const std::uint64_t room = chunk_bytes - offset % chunk_bytes;
        const std::uint64_t bytes = std::min(left, room);
        pieces->push_back({address, bytes, offset});
        address += bytes;
        offset += bytes;
        left -= bytes;
    }
}

Error bad_runs(const char* what) {
    return {Code::kInvalidArgument, "worker.protocol", fmt::format("runs of a file {}", what)};
}

}  // namespace

Result<FilePlan> FilePlan::make(const MemoryImage& memory, std::span<const FileRun> runs,
                                std::uint64_t file_bytes, std::uint64_t chunk_bytes) {
    FilePlan plan;
    std::uint64_t end = 0;
    for (const FileRun& run : runs) {
        const bool is_bytes = run.form == FileRun::Form::kBytes;
        const std::uint64_t bytes = run.range.count * kBlockBytes;
        if (is_bytes && (run.offset % kPageBytes != 0 || run.offset < end)) {
            return bad_runs("are out of order");
        }
        if (is_bytes && (run.offset > file_bytes || bytes > file_bytes - run.offset)) {
            return Error{Code::kDataLoss, "snapshot.truncated",
                         fmt::format("offset {}: the file ends at {}, where {} more bytes are "
                                     "due; take another copy of the snapshot",
                                     run.offset, file_bytes, bytes)};
        }
        end = is_bytes ? run.offset + bytes : end;
        split_by_whole(
            memory, run.range, [&](std::uint64_t first, std::uint64_t count, bool is_whole) {
                const std::uint64_t ahead = first - run.range.first;
                const bool has_origin =
                    run.form != FileRun::Form::kCopy ||
                    count_of(memory.whole_in({MemorySpace::kDevice, run.origin + ahead, count})) ==
                        count;
                if (!is_whole || !has_origin) {
                    plan.outside.push_back({run.range.space, first, count});
                    return;
                }
                plan.block_count += count;
                if (is_bytes) {
                    add_pieces(first, count, run.offset + ahead * kBlockBytes, chunk_bytes,
                               &plan.pieces);
                } else {
                    const FileRun part{
                        {run.range.space, first, count}, run.form, 0, run.origin + ahead};
                    (run.form == FileRun::Form::kZero ? plan.zeros : plan.copies).push_back(part);
                }
            });
    }
    const std::span<const FilePiece> pieces(plan.pieces);
    for (std::size_t at = 0; at < pieces.size();) {
        std::size_t count = 1;
        while (at + count < pieces.size() &&
               pieces[at + count].offset / chunk_bytes == pieces[at].offset / chunk_bytes) {
            ++count;
        }
        plan.chunks.push_back({pieces.subspan(at, count)});
        at += count;
    }
    return plan;
}

}  // namespace gantry::state
