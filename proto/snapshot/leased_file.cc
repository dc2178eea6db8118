#include "proto/snapshot/leased_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>

#include "proto/snapshot/large_pages.h"

namespace gantry::snapshot {
namespace {

/// Of the whole file, which is not read for it.
bool has_holes(const struct stat& status) {
    constexpr std::uint64_t kStatBlockBytes = 512;
    const auto size = static_cast<std::uint64_t>(status.st_size);
    return static_cast<std::uint64_t>(status.st_blocks) * kStatBlockBytes <
           round_up(size, kSmallPageBytes);
}

}  // namespace

LeasedFile LeasedFile::map(int fd, std::uint64_t offset, std::uint64_t bytes) {
    // The system tells a lease's holder by a signal when somebody waits. SIGIO would end the
    // process; find() asks, and this one is ignored where nobody handles it.
    if (!is_on_tmpfs(fd) || ::fcntl(fd, F_SETSIG, SIGURG) != 0 ||
        ::fcntl(fd, F_SETLEASE, F_RDLCK) != 0) {
        return {};
    }
    LeasedFile file(fd);
    struct stat status {};  // Of what cannot be cut from now on.
    const std::uint64_t size =
        ::fstat(fd, &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
    if (offset >= size || bytes == 0 || status.st_nlink == 0 || has_holes(status)) {
        return {};
    }
    const FileRange range{offset - offset % kLargePageBytes,
                          offset + std::min(bytes, size - offset)};
    void* got = map_aligned(fd, range.begin, range.bytes(), PROT_READ);
    if (got == MAP_FAILED) {
        return {};
    }
    file.base_ = static_cast<std::byte*>(got);
    file.range_ = range;
    return file;
}

LeasedFile::~LeasedFile() {
    if (base_ != nullptr) {
        ::munmap(base_, range_.bytes());
    }
    if (fd_ >= 0) {
        ::fcntl(fd_, F_SETLEASE, F_UNLCK);
    }
}

const std::byte* LeasedFile::find(std::uint64_t offset, std::uint64_t bytes) const {
    if (base_ == nullptr || !range_.contains(offset, bytes) ||
        ::fcntl(fd_, F_GETLEASE) != F_RDLCK) {
        return nullptr;
    }
    std::byte* const at = base_ + (offset - range_.begin);
    const auto inside = reinterpret_cast<std::uintptr_t>(at) % kSmallPageBytes;
    return ::madvise(at - inside, inside + bytes, MADV_POPULATE_READ) == 0 ? at : nullptr;
}

}  // namespace gantry::snapshot
