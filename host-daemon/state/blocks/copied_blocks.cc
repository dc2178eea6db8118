#include "host-daemon/state/blocks/copied_blocks.h"

#include <algorithm>

namespace gantry::state {

void CopiedBlocks::add(std::uint64_t address, std::uint64_t bytes) {
    if (address != part_end_) {
        part_begin_ = address;
    }
    part_end_ = address + bytes;
    const std::uint64_t whole = (part_end_ - part_begin_) / kBlockBytes;
    if (whole != 0) {
        unseen_.push_back({MemorySpace::kDevice, part_begin_ / kBlockBytes, whole});
        part_begin_ += whole * kBlockBytes;
    }
}

Result<void> CopiedBlocks::look(const snapshot::FingerprintKey& key) {
    if (unseen_.empty()) {
        return {};
    }
    GANTRY_ASSIGN(const std::vector<Fingerprint> fingerprints,
                  reader_.fingerprints_of(key, unseen_));
    std::span<const Fingerprint> left(fingerprints);
    for (const BlockRange& range : unseen_) {
        see(range, left.first(range.count));
        left = left.subspan(range.count);
    }
    unseen_.clear();
    return {};
}

void CopiedBlocks::see(const BlockRange& range, std::span<const Fingerprint> fingerprints) {
    for (std::uint64_t at = 0; at < range.count;) {
        const std::uint64_t to_sample = kSampleStep - 1 - count_ % kSampleStep;
        const std::uint64_t count = std::min(range.count - at, to_sample);
        if (count != 0) {
            seen_.push_back({range.space, range.first + at, count});
            add_fingerprints(seen_.back(), fingerprints.subspan(at, count), &digest_);
        }
        at += count;
        count_ += count;
        if (at < range.count) {
            sample_.push_back({range.space, range.first + at, 1});
            ++at;
            ++count_;
        }
    }
}

Result<void> CopiedBlocks::look_at_sample(const snapshot::FingerprintKey& key) {
    if (sample_.empty()) {
        return {};
    }
    GANTRY_ASSIGN(const std::vector<Fingerprint> fingerprints,
                  reader_.fingerprints_of(key, sample_));
    for (std::size_t i = 0; i < sample_.size(); ++i) {
        seen_.push_back(sample_[i]);
        add_fingerprints(sample_[i], std::span(fingerprints).subspan(i, 1), &digest_);
    }
    sample_.clear();
    return {};
}

void CopiedBlocks::clear() {
    unseen_.clear();
    sample_.clear();
    seen_.clear();
    digest_ = {};
    part_begin_ = part_end_ = count_ = 0;
}

}  // namespace gantry::state
