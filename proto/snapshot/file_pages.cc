#include "proto/snapshot/file_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "proto/base/mutex.h"

namespace gantry::snapshot {
namespace {

/// Made by one thread at a time.
constexpr std::uint64_t kStepBytes = 64U << 20;

Error cancelled(const std::string& name) {
    return {Code::kCancelled, "snapshot.cancelled", "the pages of " + name + " are not wanted"};
}

/// Room for the file's contents, where the file system can tell: on tmpfs the pages.
Result<void> reserve(int file, const std::string& name, const FileRange& range,
                     const std::function<bool()>& goes_on) {
    constexpr std::uint64_t kReservedBytes = 1U << 30;
    for (std::uint64_t at = range.begin; at < range.end; at += kReservedBytes) {
        if (!goes_on()) {
            return cancelled(name);
        }
        const std::uint64_t bytes = std::min(kReservedBytes, range.end - at);
        if (::fallocate(file, 0, static_cast<off_t>(at), static_cast<off_t>(bytes)) != 0) {
            if (errno == EOPNOTSUPP || errno == ENOSYS) {
                return {};
            }
            return write_error(errno, name, at);
        }
    }
    return {};
}

}  // namespace

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

Result<FilePages> FilePages::make(int file, const std::string& name, FileRange range,
                                  Cleared cleared, unsigned threads,
                                  const std::function<bool()>& goes_on) {
    if (range.bytes() == 0) {
        return FilePages();
    }
    GANTRY_TRY(grow_file(file, name, range.end));
    const bool on_tmpfs = is_on_tmpfs(file);
    const bool only_reserved = reserves_only(file, cleared);
    if (!on_tmpfs || only_reserved) {
        GANTRY_TRY(reserve(file, name, range, goes_on));
    }
    if (!on_tmpfs) {
        return FilePages();
    }
    void* got = map_aligned(file, range.begin, range.bytes(), PROT_READ | PROT_WRITE);
    if (got == MAP_FAILED) {
        return write_error(errno, name, range.begin);
    }
    FilePages pages(static_cast<std::byte*>(got), range);
    if (only_reserved) {
        pages.are_cleared_ = false;
        return pages;
    }
    ::madvise(got, range.bytes(), MADV_HUGEPAGE);  // A hint only.
    std::atomic<std::uint64_t> next{range.begin};
    Mutex mutex;
    Result<void> outcome;
    const auto take = [&] {
        for (std::uint64_t at = next.fetch_add(kStepBytes); at < range.end;
             at = next.fetch_add(kStepBytes)) {
            const Result<void> made =
                goes_on() ? make_pages(file, name, at, pages.at_ + (at - range.begin),
                                       std::min(kStepBytes, range.end - at))
                          : Result<void>(cancelled(name));
            if (!made) {
                const MutexLock lock(mutex);
                outcome = outcome ? made : outcome;
                next = range.end;
            }
        }
    };
    {
        const std::uint64_t steps = (range.bytes() + kStepBytes - 1) / kStepBytes;
        std::vector<std::jthread> helpers;
        for (unsigned i = 1; i < std::min<std::uint64_t>(threads, steps); ++i) {
            helpers.emplace_back(take);
        }
        take();
    }
    GANTRY_TRY(outcome);
    return pages;
}

FilePages& FilePages::operator=(FilePages&& other) noexcept {
    std::swap(at_, other.at_);
    std::swap(range_, other.range_);
    std::swap(are_cleared_, other.are_cleared_);
    return *this;
}

FilePages::~FilePages() {
    if (at_ != nullptr) {
        ::munmap(at_, range_.bytes());
    }
}

}  // namespace gantry::snapshot
