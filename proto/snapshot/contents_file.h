// ContentsFile: the part of a new file into which several threads put blocks, each at its place.
//
// Written with pwrite(), in pieces as large as the caller has. Writers to one file exclude each
// other in the kernel; yet two threads, of which one hashes while the other writes, beat those that
// write to a mapping: a large page that is written as a whole is not cleared first (one that is
// mapped always is, by one thread, for which the others wait), and nothing faults. A full disk is
// an error and no signal.
//
// On a tmpfs whose files have small pages the system makes large ones, when asked, in a tenth of
// the time: each step of the file is made by the first writer that comes near it (large_pages.h).
//
// The file has its full length from the start: with huge=within_size this decides about large
// pages, and others can be left to write to it.
// Threads: write() any; the rest one at a time, not beside close(). Does not own the descriptor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "proto/base/result.h"

namespace gantry::snapshot {

class ContentsFile {
public:
    /// From `offset` on, at most `bytes_max`. `name`: of the file, for errors.
    static Result<ContentsFile> open(int fd, std::string name, std::uint64_t offset,
                                     std::uint64_t bytes_max);

    Result<void> write(std::uint64_t offset, std::span<const std::byte> bytes) const;
    /// Nothing follows `end`: the file ends there, or where more is written later.
    Result<void> close(std::uint64_t end);

private:
    struct Steps;
    struct EndSteps {
        void operator()(Steps* steps) const;
    };
    ContentsFile(int fd, std::string name) : fd_(fd), name_(std::move(name)) {}

    int fd_;
    std::string name_;
    std::unique_ptr<Steps, EndSteps> steps_;  ///< Empty: no pages are made ahead.
    bool is_longer_ = false;  ///< Than its contents, until it is closed.
};

/// Writes all of `bytes` at `offset`, whatever the descriptor's own position is.
Result<void> write_at(int fd, const std::string& name, std::uint64_t offset,
                      std::span<const std::byte> bytes);

/// As much as `to` holds; a file that ends before is `snapshot.truncated`.
Result<void> read_at(int fd, const std::string& name, std::uint64_t offset,
                     std::span<std::byte> to);

/// The least multiple of `unit` that is not below `value`.
constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
    return (value + unit - 1) / unit * unit;
}

/// The system's answer to a failed write, in the words of every part of the writer.
Error write_error(int number, const std::string& name, std::uint64_t offset);

}  // namespace gantry::snapshot
