// ContentsFile: the part of a new file into which several threads put blocks, each at its place.
//
// Pages that are there before (file_pages.h) are written through their mapping. What lies beyond
// them is written with pwrite(), in pieces as large as the caller has. Writers to one file exclude
// each other in the kernel; yet two threads, of which one hashes while the other writes, beat those
// that write to a mapping without pages: a large page that is written as a whole is not cleared
// first (one that is mapped always is, by one thread, for which the others wait), and nothing
// faults. A full disk is an error and no signal.
//
// On a tmpfs whose files have small pages the system makes large ones, when asked, in a tenth of
// the time: each step of the file is made by the first writer that comes near it (large_pages.h).
//
// The file has its full length from the start: with huge=within_size this decides about large
// pages, and others can be left to write to it. It may be longer than its contents in the end.
// Threads: write() any; the rest one at a time. Does not own the descriptor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "proto/base/result.h"
#include "proto/snapshot/file_pages.h"

namespace gantry::snapshot {

class ContentsFile {
public:
    /// From `offset` on, at most `bytes_max`. `name`: of the file, for errors. `pages`: made
    /// before, and there as long as this is written to; null: none.
    static Result<ContentsFile> open(int fd, std::string name, std::uint64_t offset,
                                     std::uint64_t bytes_max, const FilePages* pages);

    Result<void> write(std::uint64_t offset, std::span<const std::byte> bytes) const;
    /// Null: none.
    [[nodiscard]] const FilePages* pages() const { return pages_; }

private:
    struct Steps;
    struct EndSteps {
        void operator()(Steps* steps) const;
    };
    ContentsFile(int fd, std::string name, const FilePages* pages)
        : fd_(fd), name_(std::move(name)), pages_(pages) {}

    int fd_;
    std::string name_;
    const FilePages* pages_;
    std::unique_ptr<Steps, EndSteps> steps_;  ///< Empty: no pages are made ahead.
};

/// Writes all of `bytes` at `offset`, whatever the descriptor's own position is.
Result<void> write_at(int fd, const std::string& name, std::uint64_t offset,
                      std::span<const std::byte> bytes);

/// As much as `to` holds; a file that ends before is `snapshot.truncated`.
Result<void> read_at(int fd, const std::string& name, std::uint64_t offset,
                     std::span<std::byte> to);

}  // namespace gantry::snapshot
