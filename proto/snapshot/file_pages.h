// FilePages: pages of a new file that are made before anybody writes there, and where they are
// mapped.
//
// To make a page costs the system as much as to fill one that is there, and more. A snapshot of a
// session that goes on has its file's pages made while it still runs, and copies into the mapping
// when it is frozen: no page is missing then, threads that write to a mapping do not exclude each
// other, as writers to a file do, and what is copied there is fingerprinted on the way. One that
// ends the session is over sooner when a page is made right before it is filled, since the system
// clears it and it is in the caches then: such pages are only taken from the system ahead. On a
// disk room is reserved, and nothing mapped: whether it suffices is known all the same.
//
// Nobody may cut the file while somebody writes to the mapping: a missing page would be a signal.
// Threads: make() waits for threads of its own; the rest any. Failure: `snapshot.disk_full`,
// `snapshot.io`. Does not own the descriptor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "proto/base/result.h"
#include "proto/snapshot/large_pages.h"

namespace gantry::snapshot {

/// From `begin` to before `end`, as offsets in a file.
struct FileRange {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    [[nodiscard]] std::uint64_t bytes() const { return end - begin; }
    [[nodiscard]] bool contains(std::uint64_t offset, std::uint64_t count) const {
        return offset >= begin && offset <= end && count <= end - offset;
    }
};

class FilePages {
public:
    FilePages() = default;
    FilePages(FilePages&& other) noexcept
        : at_(std::exchange(other.at_, nullptr)),
          range_(std::exchange(other.range_, {})),
          are_cleared_(other.are_cleared_) {}
    FilePages& operator=(FilePages&& other) noexcept;
    ~FilePages();

    /// kWhenWritten: each by whoever writes there first, where the file has large pages by itself.
    /// Small ones cost too much for that, unless large ones are asked for before (make_pages()).
    enum class Cleared { kNow, kWhenWritten };
    /// Whether make() only takes a file's pages from the system.
    static bool reserves_only(int file, Cleared cleared) {
        return cleared == Cleared::kWhenWritten && has_large_pages(file);
    }
    /// Makes the file at least as long as `range`, whose ends are multiples of a large page, and
    /// the pages in it, by `threads`. `goes_on` is asked now and then; once it says no: kCancelled.
    static Result<FilePages> make(int file, const std::string& name, FileRange range,
                                  Cleared cleared, unsigned threads,
                                  const std::function<bool()>& goes_on);

    /// Where this part of the file is mapped, with all its pages; null: not as a whole.
    [[nodiscard]] std::byte* find(std::uint64_t offset, std::uint64_t bytes) const {
        const bool is_inside = at_ != nullptr && range_.contains(offset, bytes);
        return is_inside ? at_ + (offset - range_.begin) : nullptr;
    }
    [[nodiscard]] const FileRange& range() const { return range_; }
    /// Else a page that is written for the first time lies in the writer's caches.
    [[nodiscard]] bool are_cleared() const { return are_cleared_; }

private:
    FilePages(std::byte* at, FileRange range) : at_(at), range_(range) {}

    std::byte* at_ = nullptr;
    FileRange range_;
    bool are_cleared_ = true;
};

/// The system's answer to a failed write, in the words of every part of the writer.
Error write_error(int number, const std::string& name, std::uint64_t offset);

/// Makes a file at least this long.
Result<void> grow_file(int file, const std::string& name, std::uint64_t bytes);

/// Makes the pages of a part of a file on tmpfs, large ones where they can be had. `at`: where the
/// part is mapped, shared and writable. What lies there stays.
Result<void> make_pages(int file, const std::string& name, std::uint64_t offset, std::byte* at,
                        std::uint64_t bytes);

/// That can still be written to the file system of this file; 0: it does not tell.
std::uint64_t free_bytes(int file);

}  // namespace gantry::snapshot
