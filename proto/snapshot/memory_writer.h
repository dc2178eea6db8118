// MemoryWriter: one part's memory section (FORMAT.md), but for its contents.
//
// Entries come in order and get their places at once: zero blocks and repeats none, the others one
// after the other. Whoever has the contents writes them to file() there, in any order and by any
// number of threads. Head and table are written at the end.
// Threads: one at a time. Made by SnapshotWriter, which outlives it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "proto/base/result.h"
#include "proto/snapshot/fingerprint.h"

namespace gantry::snapshot {

class MemoryWriter {
public:
    struct Block {
        std::uint32_t space = 0;
        std::uint64_t index = 0;
        Fingerprint fingerprint;
        bool is_zero = false;  ///< Looked at: a fingerprint alone proves nothing.
    };
    static constexpr std::uint64_t kNotStored = ~std::uint64_t{0};

    /// Makes the file long enough for `count` stored blocks: with huge=within_size its length
    /// decides about large pages.
    static Result<std::unique_ptr<MemoryWriter>> start(int fd, std::string name,
                                                       std::uint64_t section_at, std::uint64_t part,
                                                       std::uint64_t count);

    /// The next entries, ascending. `places`: where in the file the bytes of each have to be
    /// stored, or kNotStored.
    Result<void> place(std::span<const Block> blocks, std::span<std::uint64_t> places);
    /// Where the contents of stored blocks go. The file is as long as all of them take, or longer.
    [[nodiscard]] int file() const { return fd_; }
    [[nodiscard]] const std::string& name() const { return name_; }

    struct Finished {
        std::uint64_t end = 0;  ///< Offset in the file of what comes after the section.
        std::uint64_t checksum = 0;
    };
    /// All entries were placed: writes the rest. Contents may come later. `ordinal`: of the
    /// section.
    Result<Finished> finish(std::uint64_t ordinal);

    [[nodiscard]] const BlockSetDigest& digest() const { return digest_; }
    [[nodiscard]] std::uint64_t zero_count() const { return zero_count_; }
    [[nodiscard]] std::uint64_t copy_count() const { return copy_count_; }
    [[nodiscard]] std::uint64_t stored_bytes() const { return next_ - contents_at_; }

private:
    MemoryWriter(int fd, std::string name, std::uint64_t section_at, std::uint64_t part,
                 std::uint64_t count, std::uint64_t contents_at);
    /// The stored entry with this fingerprint, which it is from now on unless there is one.
    std::uint32_t origin_of(const Fingerprint& fingerprint, std::uint32_t entry);

    int fd_;
    std::string name_;
    std::uint64_t section_at_;
    std::uint64_t part_;
    std::uint64_t count_;
    std::uint64_t contents_at_;
    std::uint64_t next_;  ///< Place of the next stored block.
    std::vector<std::byte> table_;
    /// Stored entries by fingerprint: their numbers plus 1, each in the first place that was free
    /// from its fingerprint's on; 0: free. At most half full. In as few pages as possible: a frozen
    /// program waits for them to be made.
    std::vector<std::uint32_t> origins_;
    BlockSetDigest digest_;
    std::uint64_t zero_count_ = 0;
    std::uint64_t copy_count_ = 0;
    std::uint32_t last_space_ = 0;
    std::uint64_t last_index_ = 0;
};

}  // namespace gantry::snapshot
