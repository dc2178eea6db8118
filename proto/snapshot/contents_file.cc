#include "proto/snapshot/contents_file.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <vector>

#include "proto/base/stream_copy.h"
#include "proto/snapshot/large_pages.h"

namespace gantry::snapshot {
/// Pages of the file that are made at a time, and which have been.
struct ContentsFile::Steps {
    static constexpr std::uint64_t kBytes = 64U << 20;
    static constexpr std::uint64_t kFreeMin = 4 * kBytes;
    struct Step {
        std::once_flag made;
        std::atomic<bool> next_is_taken{false};
    };

    Steps(int file, std::uint64_t from, std::uint64_t to)
        : fd(file), begin(from), end(to), steps((to - from + kBytes - 1) / kBytes) {}

    /// The step itself is waited for, the one behind it made while others write to this one.
    void come_to(std::uint64_t offset) {
        const std::uint64_t at = offset < begin ? 0 : (offset - begin) / kBytes;
        if (at >= steps.size()) {
            return;
        }
        make(at);
        if (at + 1 < steps.size() && !steps[at].next_is_taken.exchange(true)) {
            make(at + 1);
        }
    }
    void make(std::uint64_t step) {
        std::call_once(steps[step].made, [&] {
            const std::uint64_t from = begin + step * kBytes;
            // Not all of the step may be written: where room is scarce it is left to what is.
            if (free_bytes(fd) >= kFreeMin) {
                make_large_pages(fd, from, std::min(kBytes, end - from));
            }
        });
    }

    const int fd;
    const std::uint64_t begin;
    const std::uint64_t end;
    std::vector<Step> steps;
};

void ContentsFile::EndSteps::operator()(Steps* steps) const { delete steps; }

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
                                        std::uint64_t bytes_max, const FilePages* pages) {
    ContentsFile file(fd, std::move(name), pages);
    const std::uint64_t end = round_up(offset + bytes_max, kLargePageBytes);
    if (bytes_max < 2 * kLargePageBytes) {
        return file;
    }
    GANTRY_TRY(grow_file(fd, file.name_, end));
    const std::uint64_t made = pages == nullptr ? 0 : pages->range().end;
    const std::uint64_t begin = std::max(round_up(offset, kLargePageBytes), made);
    if (begin < end && is_on_tmpfs(fd) && !has_large_pages(fd)) {
        file.steps_.reset(new Steps(fd, begin, end));
    }
    return file;
}

Result<void> ContentsFile::write(std::uint64_t offset, std::span<const std::byte> bytes) const {
    if (std::byte* at = pages_ == nullptr ? nullptr : pages_->find(offset, bytes.size())) {
        stream_copy(at, bytes.data(), bytes.size());
        return {};
    }
    if (steps_ != nullptr && !bytes.empty()) {
        steps_->come_to(offset);
        steps_->come_to(offset + bytes.size() - 1);
    }
    return write_at(fd_, name_, offset, bytes);
}

}  // namespace gantry::snapshot
