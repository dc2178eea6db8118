// Between lists of block addresses, digests and their forms in worker.proto. For both its ends.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "migration/engine/state.h"
#include "proto/control/channel.h"
#include "proto/control/worker.pb.h"

namespace gantry::state {

using RunList = google::protobuf::RepeatedPtrField<control::BlockRun>;

/// A neighbour of the last one is joined to it.
inline void append_run(const engine::BlockAddress& block, RunList* runs) {
    if (!runs->empty()) {
        control::BlockRun& last = *runs->Mutable(runs->size() - 1);
        if (last.space() == static_cast<std::uint32_t>(block.space) &&
            last.first() + last.count() == block.index && last.count() != ~0u) {
            last.set_count(last.count() + 1);
            return;
        }
    }
    control::BlockRun& run = *runs->Add();
    run.set_space(static_cast<std::uint32_t>(block.space));
    run.set_first(block.index);
    run.set_count(1);
}

/// The order stays.
inline void append_runs(std::span<const engine::BlockAddress> blocks, RunList* runs) {
    for (const engine::BlockAddress& block : blocks) {
        append_run(block, runs);
    }
}

constexpr std::uint64_t kBlocksMax = 1ull << 24;  ///< A TiB.

/// Refuses unknown spaces, empty runs and more than `blocks_max` blocks.
inline Result<std::uint64_t> count_runs(const RunList& runs, std::uint64_t blocks_max) {
    std::uint64_t count = 0;
    for (const control::BlockRun& run : runs) {
        const bool known =
            run.space() >= static_cast<std::uint32_t>(engine::MemorySpace::kDevice) &&
            run.space() <= static_cast<std::uint32_t>(engine::MemorySpace::kArray);
        if (!known || run.count() == 0 || run.count() > blocks_max - count ||
            run.first() > ~std::uint64_t{0} - run.count()) {
            return Error{Code::kInvalidArgument, "worker.protocol",
                         "a list of blocks names space " + std::to_string(run.space()) + ", " +
                             std::to_string(run.count()) + " blocks"};
        }
        count += run.count();
    }
    return count;
}

/// The same.
inline Result<std::vector<engine::BlockAddress>> expand_runs(
    const RunList& runs, std::uint64_t blocks_max = kBlocksMax) {
    GANTRY_ASSIGN(const std::uint64_t count, count_runs(runs, blocks_max));
    std::vector<engine::BlockAddress> blocks;
    blocks.reserve(count);
    for (const control::BlockRun& run : runs) {
        for (std::uint64_t i = 0; i < run.count(); ++i) {
            blocks.push_back({static_cast<engine::MemorySpace>(run.space()), run.first() + i});
        }
    }
    return blocks;
}

/// As worker.proto has fingerprints: 16 bytes, low and high.
inline std::span<const std::byte> raw_fingerprints(
    std::span<const snapshot::Fingerprint> fingerprints) {
    static_assert(sizeof(snapshot::Fingerprint) == 16 &&
                  offsetof(snapshot::Fingerprint, high) == 8);
    return std::as_bytes(fingerprints);
}
inline void append_fingerprint(const snapshot::Fingerprint& fingerprint, std::string* out) {
    const auto raw = raw_fingerprints({&fingerprint, 1});
    out->append(reinterpret_cast<const char*>(raw.data()), raw.size());
}

inline void set_digest(const engine::BlockSetDigest& digest, control::Digest* out) {
    out->set_block_count(digest.block_count);
    out->set_sum_low(digest.sum.low);
    out->set_sum_high(digest.sum.high);
}

}  // namespace gantry::state
