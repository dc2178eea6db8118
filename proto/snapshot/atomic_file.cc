#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "proto/snapshot/container.h"

namespace gantry::snapshot {
namespace {

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
    std::string temporary = path + ".partial-XXXXXX";
    const int fd = ::mkostemp(temporary.data(), O_CLOEXEC);
    if (fd < 0) {
        return io_error("cannot create", temporary);
    }
    return AtomicFile(path, temporary, fd);
}

Result<void> AtomicFile::commit() {
    if (::fsync(fd_) != 0) {
        return io_error("cannot write", temporary_);
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

Result<Seed> random_seed() {
    Seed seed;
    if (::getrandom(&seed, sizeof seed, 0) != static_cast<ssize_t>(sizeof seed)) {
        return io_error("cannot draw random bits from", "the system");
    }
    return seed;
}

}  // namespace gantry::snapshot
