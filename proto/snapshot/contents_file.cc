#include "proto/snapshot/contents_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace gantry::snapshot {
namespace {

constexpr std::uint64_t kLargePage = 2U << 20;

}  // namespace

Error write_error(int number, const std::string& name, std::uint64_t offset) {
    const bool full = number == ENOSPC || number == EDQUOT || number == EFBIG;
    return {full ? Code::kResourceExhausted : Code::kUnavailable,
            full ? "snapshot.disk_full" : "snapshot.io",
            "cannot write " + name + " at offset " + std::to_string(offset) + ": " +
                std::strerror(number) +
                (full ? "; free some space or choose another folder (no partial file is left)"
                      : "")};
}

Result<void> write_at(int fd, const std::string& name, std::uint64_t offset,
                      std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const ssize_t written =
            ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            return write_error(written < 0 ? errno : EIO, name, offset);
        }
        offset += static_cast<std::uint64_t>(written);
        bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
    return {};
}

Result<void> read_at(int fd, const std::string& name, std::uint64_t offset,
                     std::span<std::byte> to) {
    while (!to.empty()) {
        const ssize_t got = ::pread(fd, to.data(), to.size(), static_cast<off_t>(offset));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return Error{Code::kUnavailable, "snapshot.io",
                         "cannot read " + name + " at offset " + std::to_string(offset) + ": " +
                             std::strerror(errno)};
        }
        if (got == 0) {
            return Error{Code::kDataLoss, "snapshot.truncated",
                         name + ", offset " + std::to_string(offset) + ": the file ends where " +
                             std::to_string(to.size()) +
                             " more bytes are due; take another copy of the snapshot"};
        }
        offset += static_cast<std::uint64_t>(got);
        to = to.subspan(static_cast<std::size_t>(got));
    }
    return {};
}

Result<ContentsFile> ContentsFile::open(int fd, std::string name, std::uint64_t offset,
                                        std::uint64_t bytes_max) {
    ContentsFile file(fd, std::move(name));
    const std::uint64_t end = round_up(offset + bytes_max, kLargePage);
    if (bytes_max < 2 * kLargePage) {
        return file;
    }
    if (::ftruncate(fd, static_cast<off_t>(end)) != 0) {
        return write_error(errno, file.name_, offset);
    }
    file.is_longer_ = true;
    return file;
}

Result<void> ContentsFile::write(std::uint64_t offset, std::span<const std::byte> bytes) const {
    return write_at(fd_, name_, offset, bytes);
}

Result<void> ContentsFile::close(std::uint64_t end) {
    if (is_longer_ && ::ftruncate(fd_, static_cast<off_t>(end)) != 0) {
        return write_error(errno, name_, end);
    }
    return {};
}

}  // namespace gantry::snapshot
