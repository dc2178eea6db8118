#include "proto/snapshot/contents_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "proto/base/assert.h"
#include "proto/snapshot/stream_copy.h"

namespace gantry::snapshot {
namespace {

constexpr std::uint64_t kLargePage = 2U << 20;
/// Allocated ahead of the writers; more would ask for room that zero blocks do not need.
constexpr std::uint64_t kReserveStep = 64U << 20;

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
    struct stat status {};
    // The file's length first: with huge=within_size it decides about large pages. What the system
    // then gives as the best size to write in tells whether it has them.
    if (::ftruncate(fd, static_cast<off_t>(end)) != 0) {
        return write_error(errno, file.name_, offset);
    }
    file.end_max_ = end;
    if (::fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
        static_cast<std::uint64_t>(status.st_blksize) >= kLargePage) {
        GANTRY_TRY(file.map(offset, end));
    }
    return file;
}

Result<void> ContentsFile::map(std::uint64_t offset, std::uint64_t end) {
    map_at_ = offset / kLargePage * kLargePage;
    map_bytes_ = end - map_at_;
    reserved_ = offset;
    void* got = ::mmap(nullptr, map_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                       fd_, static_cast<off_t>(map_at_));
    if (got != MAP_FAILED) {  // Else there is always pwrite().
        map_ = static_cast<std::byte*>(got);
        ::madvise(got, map_bytes_, MADV_HUGEPAGE);  // A hint only.
    }
    return {};
}

ContentsFile::ContentsFile(ContentsFile&& other) noexcept
    : fd_(other.fd_),
      name_(std::move(other.name_)),
      map_(std::exchange(other.map_, nullptr)),
      map_at_(other.map_at_),
      map_bytes_(other.map_bytes_),
      reserved_(other.reserved_),
      end_max_(other.end_max_) {}

ContentsFile::~ContentsFile() {
    unmap();
}

void ContentsFile::unmap() {
    if (map_ != nullptr) {
        ::munmap(std::exchange(map_, nullptr), map_bytes_);
    }
}

Result<void> ContentsFile::reserve(std::uint64_t end) {
    if (map_ == nullptr || end <= reserved_) {
        return {};
    }
    GANTRY_ASSERT(end <= end_max_, "%llu", static_cast<unsigned long long>(end));
    const std::uint64_t next = std::min(end_max_, round_up(end, kReserveStep));
    int result = 0;
    do {
        result = ::fallocate(fd_, 0, static_cast<off_t>(reserved_),
                             static_cast<off_t>(next - reserved_));
    } while (result != 0 && errno == EINTR);
    if (result != 0) {
        return write_error(errno, name_, reserved_);
    }
    reserved_ = next;
    return {};
}

Result<void> ContentsFile::write(std::uint64_t offset, std::span<const std::byte> bytes) const {
    if (map_ != nullptr) {
        GANTRY_ASSERT(offset >= map_at_ && offset + bytes.size() <= reserved_, "%llu",
                      static_cast<unsigned long long>(offset));
        stream_copy(map_ + (offset - map_at_), bytes.data(), bytes.size());
        return {};
    }
    return write_at(fd_, name_, offset, bytes);
}

Result<void> ContentsFile::close(std::uint64_t end) {
    unmap();
    if (end_max_ != 0 && ::ftruncate(fd_, static_cast<off_t>(end)) != 0) {
        return write_error(errno, name_, end);
    }
    return {};
}

}  // namespace gantry::snapshot
