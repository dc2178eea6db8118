#include "proto/snapshot/block_ledger.h"

#include "proto/snapshot/container.pb.h"
#include "proto/snapshot/layout.h"

namespace gantry::snapshot {

BlockLedger::Problem BlockLedger::add_part(std::uint64_t id) {
    digests_.try_emplace(id);
    if (digests_.size() > layout::kPartsMax) {
        return "more than " + std::to_string(layout::kPartsMax) + " parts";
    }
    return {};
}

BlockLedger::Problem BlockLedger::check_form(const StoredBlock& block,
                                             const FingerprintKey& key) const {
    switch (block.form) {
        case StoredForm::kBytes: return {};
        case StoredForm::kZero:
            if (block.fingerprint != key.zero_block()) {
                return "a zero block does not match its fingerprint";
            }
            return {};
        case StoredForm::kCopyOf: {
            const auto origin = stored_.find(block.origin);
            if (origin == stored_.end() || origin->second != block.fingerprint) {
                return "a block copies one that is not there";
            }
            return {};
        }
    }
    return "a block of unknown form";
}

BlockLedger::Problem BlockLedger::add(const StoredBlock& block) {
    if (auto problem = add_part(block.ref.part)) {
        return problem;
    }
    if (memory_parts_.contains(block.ref.part)) {
        return "a part whose blocks are there twice";
    }
    digests_[block.ref.part].add(block.ref.space, block.ref.index, block.fingerprint);
    const bool fresh =
        block.form == StoredForm::kBytes
            ? stored_.emplace(block.ref, block.fingerprint).second && !others_.contains(block.ref)
            : others_.insert(block.ref).second && !stored_.contains(block.ref);
    if (!fresh) {
        return "a block that is there twice";
    }
    return {};
}

BlockLedger::Problem BlockLedger::add_memory(std::uint64_t part, std::uint64_t count) {
    if (auto problem = add_part(part)) {
        return problem;
    }
    if (digests_[part].block_count != 0 || !memory_parts_.insert(part).second) {
        return "a part whose blocks are there twice";
    }
    memory_blocks_ += count;
    return {};
}

void BlockLedger::sum_memory(std::uint64_t part, std::span<const StoredBlock> blocks) {
    BlockSetDigest& digest = digests_.at(part);
    for (const StoredBlock& block : blocks) {
        digest.add(block.ref.space, block.ref.index, block.fingerprint);
    }
}

BlockLedger::Problem BlockLedger::check(const SnapshotSummary& summary,
                                        std::uint64_t image_count) const {
    const bool counts = summary.block_count() == stored_.size() + others_.size() + memory_blocks_ &&
                        summary.image_count() == image_count &&
                        static_cast<std::size_t>(summary.parts_size()) == digests_.size();
    if (!counts) {
        return "the summary's counts differ from the content";
    }
    for (const PartSummary& part : summary.parts()) {
        const auto found = digests_.find(part.part_id());
        const BlockSetDigest expected{part.block_count(), {part.digest_low(), part.digest_high()}};
        if (found == digests_.end() || found->second != expected) {
            return "part " + std::to_string(part.part_id()) + " differs from its digest";
        }
    }
    return {};
}

}  // namespace gantry::snapshot
