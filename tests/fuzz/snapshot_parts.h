// A snapshot file taken apart into its sections, to be changed and put together again with
// checksums, fingerprints and a summary that fit, so that a fuzzer gets past them to what they
// guard. A file that nothing was changed in comes out as it went in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "proto/snapshot/layout.h"

namespace gantry::fuzz {

using SnapshotBytes = std::vector<std::byte>;

struct SnapshotSection {
    snapshot::layout::Kind kind = snapshot::layout::Kind::kEnd;
    /// As FORMAT.md has it. Of a memory section without its head and the zeros before the contents.
    SnapshotBytes payload;
    // Of a memory section.
    std::uint64_t part = 0;
    std::uint32_t count = 0;
    std::size_t table_bytes = 0;  ///< Of the payload.
};

enum class Refit { kChecksums, kChecksumsAndContents };

class SnapshotParts {
public:
    /// None: not even the lengths make sense.
    static std::optional<SnapshotParts> take_apart(std::span<const std::byte> file);

    /// With kChecksums what fingerprints and summary say is left as it is.
    [[nodiscard]] SnapshotBytes put_together(Refit refit);

    SnapshotBytes preamble;
    std::vector<SnapshotSection> sections;

private:
    void refit_contents();
};

/// The 64-byte entries of a block or memory section; empty for any other.
std::span<std::byte> entries_of(SnapshotSection& section);

}  // namespace gantry::fuzz
