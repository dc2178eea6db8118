// Pages of a new file: room that is taken, and pages that are made, before anybody writes there.
//
// To make a page costs the system as much as to fill one that is there, and more. A snapshot of a
// session that goes on has its file's pages made while it still runs (make_pages()). One that ends
// the session is over sooner when a page is made right before it is filled, since the system clears
// it and it is in the caches then: such pages are only taken from the system ahead, as room on a
// disk is (reserve_room()), so that it is known whether there is enough.
// Threads: any. Failure: `snapshot.disk_full`, `snapshot.io`, never a signal. No descriptor is
// owned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

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

/// Takes room for this part of a file from its file system, if that can tell: on tmpfs the pages,
/// which are cleared when they are written. Makes the file as long. `goes_on` is asked now and
/// then; once it says no: kCancelled.
Result<void> reserve_room(int file, const std::string& name, const FileRange& range,
                          const std::function<bool()>& goes_on);

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
