#include "proto/snapshot/memory_reader.h"

#include <algorithm>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "proto/snapshot/file_io.h"

namespace gantry::snapshot {

using namespace layout;

namespace {

bool is_before(const BlockRef& a, const BlockRef& b) {
    return a.space != b.space ? a.space < b.space : a.index < b.index;
}

/// Null: the entry is sound, the ones before it having been.
const char* problem_of(const StoredBlock& block, std::span<const StoredBlock> before,
                       const FingerprintKey& key) {
    if (!before.empty() && !is_before(before.back().ref, block.ref)) {
        return "blocks out of order";
    }
    switch (block.form) {
        case StoredForm::kBytes:
            return block.stored_bytes == kBlockBytes ? nullptr : "a block of a wrong size";
        case StoredForm::kZero:
            return block.fingerprint == key.zero_block()
                       ? nullptr
                       : "a zero block does not match its fingerprint";
        case StoredForm::kCopyOf: {
            const auto origin = std::lower_bound(
                before.begin(), before.end(), block.origin,
                [](const StoredBlock& a, const BlockRef& b) { return is_before(a.ref, b); });
            const bool sound = origin != before.end() && origin->ref == block.origin &&
                               origin->form == StoredForm::kBytes &&
                               origin->fingerprint == block.fingerprint;
            return sound ? nullptr : "a block copies one that is not there";
        }
    }
    return "a block of unknown form";
}

}  // namespace

StoredBlock parse_entry(const std::byte* entry) {
    StoredBlock block;
    block.ref = {get<std::uint64_t>(entry), get<std::uint32_t>(entry + 16),
                 get<std::uint64_t>(entry + 8)};
    block.form = static_cast<StoredForm>(get<std::uint32_t>(entry + 20));
    block.fingerprint = {get<std::uint64_t>(entry + 24), get<std::uint64_t>(entry + 32)};
    block.origin = {get<std::uint64_t>(entry + 40), get<std::uint32_t>(entry + 56),
                    get<std::uint64_t>(entry + 48)};
    block.stored_bytes = get<std::uint32_t>(entry + 60) & kStoredBytesMask;
    return block;
}

MemoryProblem parse_memory_head(std::span<const std::byte, kMemoryHeadBytes> bytes,
                                std::uint64_t section_at, std::uint64_t section_end,
                                MemoryHead* head) {
    if (get<std::uint64_t>(&bytes[32]) != XXH3_64bits_withSeed(bytes.data(), 32, section_at)) {
        return {"a memory section's head", true};
    }
    head->part = get<std::uint64_t>(bytes.data());
    head->count = get<std::uint32_t>(&bytes[8]);
    head->contents_at = get<std::uint64_t>(&bytes[16]);
    head->table_checksum = get<std::uint64_t>(&bytes[24]);
    if (get<std::uint32_t>(&bytes[12]) != 0 || head->count > kMemoryBlocksMax) {
        return {"a memory section with a wrong count"};
    }
    const std::uint64_t table_end = section_at + kSectionHeaderBytes + kMemoryHeadBytes +
                                    std::uint64_t{head->count} * kEntryBytes;
    if (table_end > section_end || head->contents_at < table_end ||
        head->contents_at > section_end || head->contents_at - table_end >= kMemoryPadMax ||
        head->contents_at % kMemoryAlign != 0) {
        return {"a memory section whose contents lie elsewhere"};
    }
    const std::uint64_t contents = section_end - head->contents_at;
    if (contents % kBlockBytes != 0 || contents / kBlockBytes > head->count) {
        return {"a memory section of a wrong size"};
    }
    return {};
}

struct MemoryTable::Checksum {
    XXH3_state_t state{};
};

MemoryTable::MemoryTable(const MemoryHead& head, std::uint64_t section_at,
                         const FingerprintKey& key, std::uint64_t entries_max)
    : head_(head), key_(key), checksum_(std::make_unique<Checksum>()) {
    XXH3_64bits_reset_withSeed(&checksum_->state, section_at);
    blocks_.reserve(std::min<std::uint64_t>(head.count, entries_max));
    ahead_.emplace(blocks_.data(), blocks_.capacity() * sizeof(StoredBlock));
}

MemoryTable::~MemoryTable() = default;

void MemoryTable::hash(std::span<const std::byte> entries) {
    XXH3_64bits_update(&checksum_->state, entries.data(), entries.size());
}

void MemoryTable::parse(std::span<const std::byte> entries) {
    for (; entries.size() >= kEntryBytes && problem_ == nullptr;
         entries = entries.subspan(kEntryBytes)) {
        const StoredBlock block = parse_entry(entries.data());
        problem_ = block.ref.part == head_.part ? problem_of(block, blocks_, key_)
                                                : "a memory section with blocks of another part";
        stored_bytes_ += block.stored_bytes;
        blocks_.push_back(block);
    }
}

std::span<const StoredBlock> MemoryTable::parsed() const {
    const bool stay = blocks_.capacity() >= head_.count;
    return stay && problem_ == nullptr ? std::span(blocks_) : std::span<const StoredBlock>();
}

MemoryProblem MemoryTable::end(std::uint64_t contents_bytes) const {
    if (XXH3_64bits_digest(&checksum_->state) != head_.table_checksum) {
        return {"a memory section's table", true};
    }
    if (problem_ == nullptr && stored_bytes_ != contents_bytes) {
        return {"a memory section with bytes left over"};
    }
    return {problem_};
}

StoredMemory StoredMemory::beyond(std::size_t count) const {
    StoredMemory rest = *this;
    rest.blocks = blocks.subspan(count);
    for (const StoredBlock& block : blocks.first(count)) {
        rest.offset += block.stored_bytes;
    }
    return rest;
}

Result<void> StoredMemory::read(std::uint64_t at, std::span<std::byte> to) const {
    return read_at(fd, *name, at, to);
}

Error StoredMemory::damaged(std::uint64_t at) const {
    return {Code::kDataLoss, "snapshot.checksum",
            *name + ", offset " + std::to_string(at) +
                ": a block is damaged; take another copy of the snapshot"};
}

}  // namespace gantry::snapshot
