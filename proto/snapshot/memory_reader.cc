#include "proto/snapshot/memory_reader.h"

#include <algorithm>
#include <thread>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "proto/snapshot/contents_file.h"
#include "proto/snapshot/large_pages.h"

namespace gantry::snapshot {

using namespace layout;

namespace {

bool is_before(const BlockRef& a, const BlockRef& b) {
    return a.space != b.space ? a.space < b.space : a.index < b.index;
}

/// Entries that one thread parses; fewer are not worth another one.
constexpr std::size_t kPieceEntriesMin = 4096;
constexpr std::size_t kPiecesMax = 8;
constexpr const char* kOutOfOrder = "blocks out of order";

/// Null: the entry is sound by itself.
const char* problem_of(const StoredBlock& block, const FingerprintKey& key) {
    switch (block.form) {
        case StoredForm::kBytes:
            return block.stored_bytes == kBlockBytes ? nullptr : "a block of a wrong size";
        case StoredForm::kZero:
            return block.fingerprint == key.zero_block()
                       ? nullptr
                       : "a zero block does not match its fingerprint";
        case StoredForm::kCopyOf:
            return nullptr;
    }
    return "a block of unknown form";
}

/// Of a copy: its origin is one of those before it.
bool has_origin(const StoredBlock& copy, std::span<const StoredBlock> before) {
    const auto origin = std::lower_bound(
        before.begin(), before.end(), copy.origin,
        [](const StoredBlock& a, const BlockRef& b) { return is_before(a.ref, b); });
    return origin != before.end() && origin->ref == copy.origin &&
           origin->form == StoredForm::kBytes && origin->fingerprint == copy.fingerprint;
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
    want_large_pages(blocks_.data(), blocks_.capacity() * sizeof(StoredBlock));
}

MemoryTable::~MemoryTable() = default;

void MemoryTable::hash(std::span<const std::byte> entries) {
    XXH3_64bits_update(&checksum_->state, entries.data(), entries.size());
}

/// Some of a table's entries, parsed by one thread.
struct MemoryTable::Piece {
    std::size_t first = 0;  ///< Of the table's.
    std::size_t count = 0;
    std::uint64_t stored_bytes = 0;
    bool has_copies = false;
    const char* problem = nullptr;  ///< The first.
};

void MemoryTable::parse(std::span<const std::byte> entries) {
    const std::size_t count = entries.size() / kEntryBytes;
    if (count == 0 || problem_ != nullptr) {
        return;
    }
    const std::size_t base = blocks_.size();
    blocks_.resize(base + count);
    std::vector<Piece> pieces(std::clamp<std::size_t>(count / kPieceEntriesMin, 1, kPiecesMax));
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        pieces[i].first = base + count * i / pieces.size();
        pieces[i].count = base + count * (i + 1) / pieces.size() - pieces[i].first;
    }
    each(pieces, [&](Piece& piece) {
        parse(piece, entries.subspan((piece.first - base) * kEntryBytes));
    });
    // What precedes a piece, and the origins of its copies, may be another thread's.
    const bool has_copies = std::any_of(pieces.begin(), pieces.end(),
                                        [](const Piece& piece) { return piece.has_copies; });
    if (has_copies) {
        each(pieces, [&](Piece& piece) { look_before(piece); });
    } else {
        std::for_each(pieces.begin(), pieces.end(), [&](Piece& piece) { look_before(piece); });
    }
    for (const Piece& piece : pieces) {
        problem_ = problem_ == nullptr ? piece.problem : problem_;
        stored_bytes_ += piece.stored_bytes;
    }
}

void MemoryTable::each(std::span<Piece> pieces, const std::function<void(Piece&)>& work) {
    std::vector<std::jthread> helpers;
    for (Piece& piece : pieces.subspan(1)) {
        helpers.emplace_back([&work, &piece] { work(piece); });
    }
    work(pieces.front());
}

void MemoryTable::parse(Piece& piece, std::span<const std::byte> entries) {
    for (std::size_t i = 0; i < piece.count && piece.problem == nullptr; ++i) {
        StoredBlock& block = blocks_[piece.first + i];
        block = parse_entry(&entries[i * kEntryBytes]);
        if (block.ref.part != head_.part) {
            piece.problem = "a memory section with blocks of another part";
        } else if (i != 0 && !is_before(blocks_[piece.first + i - 1].ref, block.ref)) {
            piece.problem = kOutOfOrder;
        } else {
            piece.problem = problem_of(block, key_);
        }
        piece.has_copies |= block.form == StoredForm::kCopyOf;
        piece.stored_bytes += block.stored_bytes;
    }
}

void MemoryTable::look_before(Piece& piece) const {
    const std::span<const StoredBlock> blocks = blocks_;
    if (piece.problem == nullptr && piece.first != 0 &&
        !is_before(blocks[piece.first - 1].ref, blocks[piece.first].ref)) {
        piece.problem = kOutOfOrder;
    }
    const std::size_t end = piece.has_copies ? piece.first + piece.count : piece.first;
    for (std::size_t i = piece.first; i < end && piece.problem == nullptr; ++i) {
        if (blocks[i].form == StoredForm::kCopyOf && !has_origin(blocks[i], blocks.first(i))) {
            piece.problem = "a block copies one that is not there";
        }
    }
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

Result<void> StoredMemory::read(std::uint64_t at, std::span<std::byte> to) const {
    return read_at(fd, *name, at, to);
}

Error StoredMemory::damaged(std::uint64_t at) const {
    return {Code::kDataLoss, "snapshot.checksum",
            *name + ", offset " + std::to_string(at) +
                ": a block is damaged; take another copy of the snapshot"};
}

}  // namespace gantry::snapshot
