// The blocks that a snapshot file has had so far, and what they come to part by part: no block is
// there twice, a copy names a block that is there, and the summary counts what came. For reader.cc.
//
// One thread. What is wrong with a file comes back in words; none: nothing is.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "proto/snapshot/container.h"

namespace gantry::snapshot {

class BlockLedger {
public:
    using Problem = std::optional<std::string>;

    [[nodiscard]] Problem add_part(std::uint64_t id);
    /// Of a block in a block section, before its bytes are looked at.
    [[nodiscard]] Problem check_form(const StoredBlock& block, const FingerprintKey& key) const;
    [[nodiscard]] Problem add(const StoredBlock& block);
    /// All blocks of a part at once, from a memory section: first that they come, then what they
    /// are, by another thread if need be.
    [[nodiscard]] Problem add_memory(std::uint64_t part, std::uint64_t count);
    void sum_memory(std::uint64_t part, std::span<const StoredBlock> blocks);
    [[nodiscard]] Problem check(const SnapshotSummary& summary, std::uint64_t image_count) const;

private:
    std::map<std::uint64_t, BlockSetDigest> digests_;  ///< By part.
    std::unordered_map<BlockRef, Fingerprint, BlockRefHash> stored_;
    std::unordered_set<BlockRef, BlockRefHash> others_;  ///< Zeros and copies.
    std::unordered_set<std::uint64_t> memory_parts_;
    std::uint64_t memory_blocks_ = 0;
};

}  // namespace gantry::snapshot
