// Head and table of a memory section (FORMAT.md), checked. For reader.cc.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "proto/snapshot/container.h"
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

/// `contents_bytes`: as many as the section has.
MemoryProblem parse_memory_table(const MemoryHead& head, std::span<const std::byte> table,
                                 std::uint64_t section_at, std::uint64_t contents_bytes,
                                 const FingerprintKey& key, std::vector<StoredBlock>* blocks);

}  // namespace gantry::snapshot
