#include "proto/snapshot/file_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace gantry::snapshot {
Error write_error(int number, const std::string& name, std::uint64_t offset) {
    const bool full = number == ENOSPC || number == EDQUOT || number == EFBIG;
    return {
        full ? Code::kResourceExhausted : Code::kUnavailable,
        full ? "snapshot.disk_full" : "snapshot.io",
        "cannot write " + name + " at offset " + std::to_string(offset) + ": " +
            std::strerror(number) +
            (full ? "; free some space or choose another folder (no partial file is left)" : "")};
}

std::uint64_t free_bytes(int file) {
    struct statvfs system {};
    if (::fstatvfs(file, &system) != 0) {
        return 0;
    }
    return (::geteuid() == 0 ? system.f_bfree : system.f_bavail) * system.f_frsize;
}

Result<void> grow_file(int file, const std::string& name, std::uint64_t bytes) {
    struct stat status {};
    if (::fstat(file, &status) != 0 || (static_cast<std::uint64_t>(status.st_size) < bytes &&
                                        ::ftruncate(file, static_cast<off_t>(bytes)) != 0)) {
        return write_error(errno, name, bytes);
    }
    return {};
}

Result<void> make_pages(int file, const std::string& name, std::uint64_t offset, std::byte* at,
                        std::uint64_t bytes) {
    make_large_pages(at, bytes);
    for (int attempt = 0; attempt < 2; ++attempt) {
        if (::madvise(at, bytes, MADV_POPULATE_WRITE) == 0) {
            return {};
        }
        const bool is_unknown = errno == EINVAL;  // To kernels before 5.14.
        if (::fallocate(file, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0) {
            break;  // It says why.
        }
        if (is_unknown) {
            return {};
        }
        errno = EIO;
    }
    return write_error(errno, name, offset);
}

Result<void> reserve_room(int file, const std::string& name, const FileRange& range,
                          const std::function<bool()>& goes_on) {
    constexpr std::uint64_t kStepBytes = 1U << 30;
    GANTRY_TRY(grow_file(file, name, range.end));
    for (std::uint64_t at = range.begin; at < range.end; at += kStepBytes) {
        if (!goes_on()) {
            return Error{Code::kCancelled, "snapshot.cancelled",
                         "the pages of " + name + " are not wanted"};
        }
        const std::uint64_t bytes = std::min(kStepBytes, range.end - at);
        if (::fallocate(file, 0, static_cast<off_t>(at), static_cast<off_t>(bytes)) != 0) {
            if (errno == EOPNOTSUPP || errno == ENOSYS) {
                return {};
            }
            return write_error(errno, name, at);
        }
    }
    return {};
}

}  // namespace gantry::snapshot
