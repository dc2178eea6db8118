#include "proto/snapshot/file_io.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "proto/snapshot/file_pages.h"

namespace gantry::snapshot {

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

}  // namespace gantry::snapshot
