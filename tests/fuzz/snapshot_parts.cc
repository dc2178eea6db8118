#include "tests/fuzz/snapshot_parts.h"

#include <algorithm>
#include <concepts>
#include <map>
#include <tuple>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "proto/snapshot/block_codec.h"
#include "proto/snapshot/container.h"
#include "proto/snapshot/container.pb.h"
#include "proto/snapshot/fingerprint.h"

namespace gantry::fuzz {

using namespace snapshot;
using namespace snapshot::layout;

namespace {

std::uint64_t checksum_of(std::span<const std::byte> bytes, std::uint64_t seed) {
    return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

template <std::unsigned_integral T>
void append(SnapshotBytes* to, T value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    to->insert(to->end(), bytes.begin(), bytes.end());
}

void append(SnapshotBytes* to, std::span<const std::byte> bytes) {
    to->insert(to->end(), bytes.begin(), bytes.end());
}

bool take_memory_apart(std::span<const std::byte> payload, std::uint64_t section_at,
                       SnapshotSection* section) {
    if (payload.size() < kMemoryHeadBytes) {
        return false;
    }
    section->part = get<std::uint64_t>(payload.data());
    section->count = get<std::uint32_t>(payload.data() + 8);
    const auto contents_at = get<std::uint64_t>(payload.data() + 16);
    const std::uint64_t before = section_at + kSectionHeaderBytes;
    const std::uint64_t table_bytes = std::uint64_t{section->count} * kEntryBytes;
    if (table_bytes > payload.size() - kMemoryHeadBytes || contents_at < before ||
        contents_at - before < kMemoryHeadBytes + table_bytes ||
        contents_at - before > payload.size()) {
        return false;
    }
    section->table_bytes = static_cast<std::size_t>(table_bytes);
    append(&section->payload, payload.subspan(kMemoryHeadBytes, section->table_bytes));
    append(&section->payload, payload.subspan(static_cast<std::size_t>(contents_at - before)));
    return true;
}

/// Head, table, zeros and contents; the checksum is that of the head.
SnapshotBytes memory_payload(const SnapshotSection& section, std::uint64_t section_at,
                             std::uint64_t* checksum) {
    const std::uint64_t before = section_at + kSectionHeaderBytes;
    const std::uint64_t table_end = before + kMemoryHeadBytes + section.table_bytes;
    const std::uint64_t contents_at = (table_end + kMemoryAlign - 1) / kMemoryAlign * kMemoryAlign;
    const std::span<const std::byte> bytes(section.payload);
    const auto table = bytes.first(section.table_bytes);
    SnapshotBytes payload;
    append(&payload, section.part);
    append(&payload, std::uint64_t{section.count});
    append(&payload, contents_at);
    append(&payload, checksum_of(table, section_at));
    append(&payload, checksum_of(payload, section_at));
    *checksum = checksum_of(payload, section_at);
    append(&payload, table);
    payload.resize(static_cast<std::size_t>(contents_at - before));
    append(&payload, bytes.subspan(section.table_bytes));
    return payload;
}

/// What the blocks of a file come to, in the form of its summary.
class Tally {
public:
    explicit Tally(const FingerprintKey& key) : key_(key) {}

    void add_part(std::uint64_t part) { digests_.try_emplace(part); }
    void add_image() { summary_.set_image_count(summary_.image_count() + 1); }

    /// Gives every entry whose contents are there the fingerprint of these, and counts it.
    void add_section(std::span<std::byte> entries, std::span<const std::byte> contents) {
        for (std::size_t at = 0; at + kEntryBytes <= entries.size(); at += kEntryBytes) {
            add_entry(entries.data() + at, &contents);
        }
    }

    [[nodiscard]] const SnapshotSummary& summary() {
        summary_.clear_parts();
        for (const auto& [part, digest] : digests_) {
            PartSummary* one = summary_.add_parts();
            one->set_part_id(part);
            one->set_block_count(digest.block_count);
            one->set_digest_low(digest.sum.low);
            one->set_digest_high(digest.sum.high);
        }
        return summary_;
    }

private:
    using Place = std::tuple<std::uint64_t, std::uint32_t, std::uint64_t>;

    void add_entry(std::byte* entry, std::span<const std::byte>* contents) {
        const auto part = get<std::uint64_t>(entry);
        const auto index = get<std::uint64_t>(entry + 8);
        const auto space = get<std::uint32_t>(entry + 16);
        summary_.set_block_count(summary_.block_count() + 1);
        Fingerprint content{get<std::uint64_t>(entry + 24), get<std::uint64_t>(entry + 32)};
        switch (static_cast<StoredForm>(get<std::uint32_t>(entry + 20))) {
            case StoredForm::kZero:
                content = key_.zero_block();
                summary_.set_zero_block_count(summary_.zero_block_count() + 1);
                break;
            case StoredForm::kCopyOf: {
                const auto origin =
                    stored_.find({get<std::uint64_t>(entry + 40), get<std::uint32_t>(entry + 56),
                                  get<std::uint64_t>(entry + 48)});
                content = origin == stored_.end() ? content : origin->second;
                summary_.set_copy_block_count(summary_.copy_block_count() + 1);
                break;
            }
            case StoredForm::kBytes: {
                const auto how = get<std::uint32_t>(entry + 60);
                const std::size_t bytes =
                    std::min<std::size_t>(how & kStoredBytesMask, contents->size());
                content =
                    fingerprint_of(static_cast<Codec>(how >> 24), contents->first(bytes), content);
                *contents = contents->subspan(bytes);
                summary_.set_stored_bytes(summary_.stored_bytes() + bytes);
                stored_.emplace(Place{part, space, index}, content);
                break;
            }
        }
        put(entry + 24, content.low);
        put(entry + 32, content.high);
        digests_[part].add(space, index, content);
    }

    Fingerprint fingerprint_of(Codec codec, std::span<const std::byte> stored,
                               Fingerprint or_this) {
        if (codec == Codec::kStored && stored.size() == kBlockBytes) {
            return fingerprint(key_, BlockSpan(stored));
        }
        plain_.resize(kBlockBytes);
        return unpack_block(codec, stored, plain_) ? fingerprint(key_, BlockSpan(plain_)) : or_this;
    }

    const FingerprintKey& key_;
    SnapshotSummary summary_;
    std::map<std::uint64_t, BlockSetDigest> digests_;
    std::map<Place, Fingerprint> stored_;
    SnapshotBytes plain_;
};

}  // namespace

std::span<std::byte> entries_of(SnapshotSection& section) {
    const std::span<std::byte> payload(section.payload);
    if (section.kind == Kind::kMemory) {
        return payload.first(section.table_bytes);
    }
    if (section.kind != Kind::kBlocks || payload.size() < kBlocksHeaderBytes) {
        return {};
    }
    const std::size_t most = (payload.size() - kBlocksHeaderBytes) / kEntryBytes;
    const std::size_t count = std::min<std::size_t>(get<std::uint32_t>(payload.data()), most);
    return payload.subspan(kBlocksHeaderBytes, count * kEntryBytes);
}

std::optional<SnapshotParts> SnapshotParts::take_apart(std::span<const std::byte> file) {
    if (file.size() < kPreambleBytes) {
        return std::nullopt;
    }
    SnapshotParts parts;
    parts.preamble.assign(file.begin(), file.begin() + kPreambleBytes);
    std::size_t at = kPreambleBytes;
    while (file.size() - at >= kSectionHeaderBytes + 8) {
        SnapshotSection section;
        section.kind = static_cast<Kind>(get<std::uint32_t>(file.data() + at));
        const auto size = get<std::uint64_t>(file.data() + at + 8);
        if (size > file.size() - at - kSectionHeaderBytes - 8) {
            return std::nullopt;
        }
        const auto payload = file.subspan(at + kSectionHeaderBytes, static_cast<std::size_t>(size));
        if (section.kind != Kind::kMemory) {
            append(&section.payload, payload);
        } else if (!take_memory_apart(payload, at, &section)) {
            return std::nullopt;
        }
        parts.sections.push_back(std::move(section));
        at += kSectionHeaderBytes + payload.size() + 8;
    }
    return at == file.size() ? std::optional(std::move(parts)) : std::nullopt;
}

void SnapshotParts::refit_contents() {
    SnapshotHeader header;
    for (const SnapshotSection& section : sections) {
        if (section.kind == Kind::kHeader) {
            header.ParseFromArray(section.payload.data(), static_cast<int>(section.payload.size()));
            break;
        }
    }
    const FingerprintKey key(Seed{header.seed_low(), header.seed_high()});
    Tally tally(key);
    for (SnapshotSection& section : sections) {
        const auto entries = entries_of(section);
        const std::span<const std::byte> payload(section.payload);
        switch (section.kind) {
            case Kind::kGraph:
                if (payload.size() >= 8) {
                    tally.add_part(get<std::uint64_t>(payload.data()));
                }
                break;
            case Kind::kImage: tally.add_image(); break;
            case Kind::kBlocks:
                if (payload.size() >= kBlocksHeaderBytes) {
                    tally.add_section(entries,
                                      payload.subspan(kBlocksHeaderBytes + entries.size()));
                }
                break;
            case Kind::kMemory:
                tally.add_part(section.part);
                tally.add_section(entries, payload.subspan(entries.size()));
                break;
            case Kind::kSummary: {
                const std::string text = tally.summary().SerializeAsString();
                const auto bytes = std::as_bytes(std::span(text));
                section.payload.assign(bytes.begin(), bytes.end());
                break;
            }
            default: break;
        }
    }
}

SnapshotBytes SnapshotParts::put_together(Refit refit) {
    if (refit == Refit::kChecksumsAndContents) {
        refit_contents();
    }
    SnapshotBytes file = preamble;
    put(file.data() + 56, checksum_of(std::span(file).first(56), 0));
    std::vector<std::uint64_t> checksums;
    for (const SnapshotSection& section : sections) {
        const std::uint64_t at = file.size();
        std::uint64_t checksum = 0;
        SnapshotBytes payload = section.payload;
        if (section.kind == Kind::kMemory) {
            payload = memory_payload(section, at, &checksum);
        } else if (section.kind == Kind::kEnd && payload.size() == 16) {
            put(payload.data(), checksum_of(std::as_bytes(std::span(checksums)), 0));
            put(payload.data() + 8, at + kSectionHeaderBytes + payload.size() + 8);
        }
        if (section.kind != Kind::kMemory) {
            checksum = checksum_of(payload, at);
        }
        SnapshotBytes header;
        append(&header, static_cast<std::uint64_t>(section.kind));
        append(&header, static_cast<std::uint64_t>(payload.size()));
        append(&header, static_cast<std::uint64_t>(checksums.size()));
        append(&header, checksum_of(header, at));
        append(&file, header);
        append(&file, payload);
        append(&file, checksum);
        checksums.push_back(checksum);
    }
    return file;
}

}  // namespace gantry::fuzz
