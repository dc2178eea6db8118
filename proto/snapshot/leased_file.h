// LeasedFile: a part of a file on tmpfs, mapped for reading while a lease keeps it from being cut.
//
// To read a page that a mapped file does not have is a signal (SIGBUS), which would end a process
// that serves other tenants too. So find() makes the pages that it gives, where an error is an
// answer, and what has holes is not mapped: to read one would take memory. A read lease (fcntl
// F_SETLEASE) is given only where nobody has the file open for writing; whoever opens it for
// writing or cuts it from then on waits until the lease is given back, 45 s at most
// (/proc/sys/fs/lease-break-time). find() gives nothing any more once somebody waits, so what it
// gave must be read within that time.
//
// Elsewhere than on tmpfs a mapping is no faster than the disk: nothing is mapped there, nor where
// no lease can be had (another user's file, somebody writes to it), nor a file without a name,
// whose maker may write to it all the same (memfd). Whoever uses this reads the file instead.
// Threads: find() any. Does not own the descriptor, which outlives it and is open for reading only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "proto/snapshot/file_pages.h"

namespace gantry::snapshot {

class LeasedFile {
public:
    /// From `offset` on, as far as the file goes, `bytes` at most.
    static LeasedFile map(int fd, std::uint64_t offset, std::uint64_t bytes);
    LeasedFile() = default;
    LeasedFile(LeasedFile&& other) noexcept
        : fd_(std::exchange(other.fd_, -1)),
          base_(std::exchange(other.base_, nullptr)),
          range_(other.range_) {}
    LeasedFile& operator=(LeasedFile&&) = delete;
    ~LeasedFile();

    /// Where this part of the file lies; null: not here, or no longer, or it cannot be read.
    [[nodiscard]] const std::byte* find(std::uint64_t offset, std::uint64_t bytes) const;

private:
    explicit LeasedFile(int fd) : fd_(fd) {}

    int fd_ = -1;  ///< -1: no lease.
    std::byte* base_ = nullptr;
    FileRange range_;  ///< What lies at base_.
};

}  // namespace gantry::snapshot
