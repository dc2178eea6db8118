#include "proto/snapshot/leased_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>

#include "proto/snapshot/file_pages.h"
#include "proto/snapshot/large_pages.h"

namespace gantry::snapshot {

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
    if (offset >= size || bytes == 0) {
        return {};
    }
    const std::uint64_t begin = offset - offset % kLargePageBytes;
    const std::uint64_t end = offset + std::min(bytes, size - offset);
    void* got = map_aligned(fd, begin, end - begin, PROT_READ);
    if (got == MAP_FAILED) {
        return {};
    }
    file.base_ = static_cast<std::byte*>(got);
    file.begin_ = begin;
    file.bytes_ = end - begin;
    return file;
}

LeasedFile::~LeasedFile() {
    if (base_ != nullptr) {
        ::munmap(base_, bytes_);
    }
    if (fd_ >= 0) {
        ::fcntl(fd_, F_SETLEASE, F_UNLCK);
    }
}

const std::byte* LeasedFile::find(std::uint64_t offset, std::uint64_t bytes) const {
    const bool is_inside = base_ != nullptr && offset >= begin_ && offset - begin_ <= bytes_ &&
                           bytes <= bytes_ - (offset - begin_);
    return is_inside && ::fcntl(fd_, F_GETLEASE) == F_RDLCK ? base_ + (offset - begin_) : nullptr;
}

}  // namespace gantry::snapshot
