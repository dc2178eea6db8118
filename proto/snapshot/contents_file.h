// ContentsFile: the part of a new file into which several threads put blocks, each at its place.
//
// Two ways. Where the file system backs files with large pages (tmpfs mounted with huge=always or
// within_size) the file is preallocated step by step and mapped: writers to one file exclude each
// other in the kernel, those to its mapping do not, and a page of 2 MiB costs one fault. Elsewhere
// pwrite() is used, which neither clears pages first nor faults.
//
// Invariant: mapped bytes are allocated before anyone may write them, so a full disk is an error
// and never a signal. Nobody else may cut the file meanwhile (it is new, and not under its name).
// Threads: write() any; the rest one at a time, not beside close(). Does not own the descriptor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "proto/base/result.h"

namespace gantry::snapshot {

class ContentsFile {
public:
    /// From `offset` on, at most `bytes_max`. `name`: of the file, for errors.
    static Result<ContentsFile> open(int fd, std::string name, std::uint64_t offset,
                                     std::uint64_t bytes_max);
    ContentsFile(ContentsFile&& other) noexcept;
    ContentsFile& operator=(ContentsFile&&) = delete;
    ~ContentsFile();

    /// Bytes up to this offset of the file may be written from here on.
    Result<void> reserve(std::uint64_t end);
    Result<void> write(std::uint64_t offset, std::span<const std::byte> bytes) const;
    /// Nothing follows `end`: cuts off what was reserved beyond.
    Result<void> close(std::uint64_t end);
    /// Others write to the file themselves: reserve() does nothing from here on.
    void leave_to_others() { unmap(); }
    [[nodiscard]] bool mapped() const { return map_ != nullptr; }

private:
    ContentsFile(int fd, std::string name) : fd_(fd), name_(std::move(name)) {}
    Result<void> map(std::uint64_t offset, std::uint64_t end);
    void unmap();

    int fd_;
    std::string name_;
    std::byte* map_ = nullptr;
    std::uint64_t map_at_ = 0;  ///< Offset in the file.
    std::uint64_t map_bytes_ = 0;
    std::uint64_t reserved_ = 0;
    std::uint64_t end_max_ = 0;
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
