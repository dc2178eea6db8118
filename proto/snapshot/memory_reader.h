// Head and table of a memory section (FORMAT.md), checked. For reader.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "proto/snapshot/container.h"
#include "proto/snapshot/large_pages.h"
#include "proto/snapshot/layout.h"

namespace gantry::snapshot {

struct MemoryHead {
    std::uint64_t part = 0;
    std::uint32_t count = 0;
    std::uint64_t contents_at = 0;  ///< Offset in the file.
    std::uint64_t table_checksum = 0;
};

/// An entry of a block as it lies in the file; nothing is checked.
StoredBlock parse_entry(const std::byte* entry);

/// What is wrong; none: `what` is null.
struct MemoryProblem {
    const char* what = nullptr;
    bool is_damage = false;  ///< A checksum does not match; else the writer was wrong.
};

/// `section_end`: offset in the file at which the section's payload ends.
MemoryProblem parse_memory_head(std::span<const std::byte, layout::kMemoryHeadBytes> bytes,
                                std::uint64_t section_at, std::uint64_t section_end,
                                MemoryHead* head);

/// The table that follows: its entries as they are read. Nothing of it is to be used before end()
/// has found no problem.
class MemoryTable {
public:
    /// `entries_max`: as many as the file may still hold; memory is taken ahead for no more.
    MemoryTable(const MemoryHead& head, std::uint64_t section_at, const FingerprintKey& key,
                std::uint64_t entries_max);
    ~MemoryTable();
    MemoryTable(const MemoryTable&) = delete;
    MemoryTable& operator=(const MemoryTable&) = delete;

    /// The next entries, whole ones; so many in all as the head says. The two may be called by two
    /// threads, each in order.
    void hash(std::span<const std::byte> entries);
    void parse(std::span<const std::byte> entries);
    /// `contents_bytes`: as many as the section has.
    [[nodiscard]] MemoryProblem end(std::uint64_t contents_bytes) const;
    [[nodiscard]] std::span<StoredBlock> blocks() { return blocks_; }
    /// Before end(): those that were parsed, all of them sound. They stay where they are; empty:
    /// one is not, or they might not.
    [[nodiscard]] std::span<const StoredBlock> parsed() const;

private:
    const MemoryHead head_;
    const FingerprintKey& key_;
    struct Checksum;
    const std::unique_ptr<Checksum> checksum_;
    std::uint64_t stored_bytes_ = 0;
    const char* problem_ = nullptr;  ///< The first.
    std::vector<StoredBlock> blocks_;
    std::optional<PagesAhead> ahead_;  ///< Of blocks_.
};

}  // namespace gantry::snapshot
