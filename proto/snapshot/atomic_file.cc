#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "proto/base/random.h"
#include "proto/snapshot/container.h"

namespace gantry::snapshot {
namespace {

/// What follows the path in the name of a file that is not whole yet.
constexpr char kPartial[] = ".partial-";

Error io_error(const std::string& what, const std::string& path) {
    const int number = errno;
    const bool full = number == ENOSPC || number == EDQUOT;
    return {full ? Code::kResourceExhausted : Code::kUnavailable,
            full ? "snapshot.disk_full" : "snapshot.io",
            what + " " + path + ": " + std::strerror(number) +
                (full ? "; free some space or choose another folder" : "")};
}

std::string folder_of(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    if (slash == std::string::npos) {
        return ".";
    }
    return slash == 0 ? "/" : path.substr(0, slash);
}

/// A rename would take the place of a device or a socket, too, and fails on a folder only when all
/// is written.
Result<void> check_replaceable(const std::string& path) {
    struct stat status {};
    const bool is_other = ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
    if (is_other || path.ends_with('/')) {
        return Error{Code::kInvalidArgument, "snapshot.io",
                     path + " is no regular file; name a file"};
    }
    return {};
}

}  // namespace

AtomicFile::AtomicFile(std::string path, std::string temporary, int fd)
    : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)), temporary_(std::move(other.temporary_)), fd_(other.fd_) {
    other.fd_ = -1;
    other.temporary_.clear();
}

AtomicFile::~AtomicFile() {
    if (fd_ >= 0) {
        ::close(fd_);
    }
    if (!temporary_.empty()) {
        ::unlink(temporary_.c_str());
    }
}

Result<AtomicFile> AtomicFile::create(const std::string& path) {
    GANTRY_TRY(check_replaceable(path));
    std::string temporary = path + kPartial + "XXXXXX";
    if (temporary.size() - (temporary.rfind('/') + 1) > NAME_MAX || temporary.size() >= PATH_MAX) {
        errno = ENAMETOOLONG;  // Better now than when all is written.
        return io_error("cannot create", temporary);
    }
    const int nameless =
        ::access("/proc/self/fd", X_OK) != 0
            ? -1
            : ::open(folder_of(path).c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (nameless >= 0) {
        return AtomicFile(path, {}, nameless);
    }
    const int fd = ::mkostemp(temporary.data(), O_CLOEXEC);
    if (fd < 0) {
        return io_error("cannot create", temporary);
    }
    return AtomicFile(path, temporary, fd);
}

/// A file without a name gets one beside its own: no call puts it in another's place at once.
Result<void> AtomicFile::name() {
    const std::string held = "/proc/self/fd/" + std::to_string(fd_);
    for (;;) {
        char suffix[7];
        std::snprintf(suffix, sizeof suffix, "%06x",
                      static_cast<unsigned>(random_bits()[0] & 0xffffff));
        const std::string temporary = path_ + kPartial + suffix;
        if (::linkat(AT_FDCWD, held.c_str(), AT_FDCWD, temporary.c_str(), AT_SYMLINK_FOLLOW) == 0) {
            temporary_ = temporary;
            return {};
        }
        if (errno != EEXIST) {
            return io_error("cannot create", temporary);
        }
    }
}

Result<void> AtomicFile::commit() {
    if (::fsync(fd_) != 0) {
        return io_error("cannot write", path_);
    }
    if (temporary_.empty()) {
        GANTRY_TRY(name());
    }
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
        return io_error("cannot rename to", path_);
    }
    temporary_.clear();
    const int folder = ::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) {
        return io_error("cannot open the folder of", path_);
    }
    const bool synced = ::fsync(folder) == 0;
    const Error error = synced ? Error{} : io_error("cannot sync the folder of", path_);
    ::close(folder);
    if (!synced) {
        return error;
    }
    return {};
}

Seed random_seed() {
    const auto [low, high] = random_bits();
    return {low, high};
}

}  // namespace gantry::snapshot
