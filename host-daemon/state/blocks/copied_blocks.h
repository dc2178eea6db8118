// CopiedBlocks: device memory that went to a file or came from one (file_blocks.h), and the digest
// of what of it was read again since, while other blocks were still on their way: so that little is
// left to be read when all of it is there.
//
// Every so many-th block is left out at first: it is read once all are there.
// Threads: one at a time. Failure: look(): `state.*`.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "host-daemon/state/blocks/block_reader.h"
#include "proto/snapshot/fingerprint.h"

namespace gantry::state {

class CopiedBlocks {
public:
    explicit CopiedBlocks(BlockReader& reader) : reader_(reader) {}

    /// Was copied, all of it: the next blocks, or the next bytes of the last one. It begins a block
    /// unless it goes on where the last one ended.
    void add(std::uint64_t address, std::uint64_t bytes);
    /// Reads what was added and has not been read, but for the sample.
    Result<void> look(const snapshot::FingerprintKey& key);
    /// Reads the sample: all blocks are there.
    Result<void> look_at_sample(const snapshot::FingerprintKey& key);
    void clear();

    [[nodiscard]] const std::vector<BlockRange>& seen() const { return seen_; }
    [[nodiscard]] const engine::BlockSetDigest& digest() const { return digest_; }  ///< Of seen().

private:
    /// Of so many blocks one is left out.
    static constexpr std::uint64_t kSampleStep = 1024;

    void see(const BlockRange& range, std::span<const Fingerprint> fingerprints);

    BlockReader& reader_;
    std::vector<BlockRange> unseen_;
    std::vector<BlockRange> sample_;
    std::vector<BlockRange> seen_;
    engine::BlockSetDigest digest_;
    std::uint64_t part_begin_ = 0;  ///< Of a block that is not all there yet.
    std::uint64_t part_end_ = 0;
    std::uint64_t count_ = 0;  ///< Blocks that were read.
};

}  // namespace gantry::state
