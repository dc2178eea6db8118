#include "host-daemon/supervisor/workers/worker_logs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "proto/control/channel.h"

namespace gantry::supervisor {
namespace {

namespace fs = std::filesystem;

struct Log {
    std::string path;
    timespec written{};
};

bool is_older(const Log& a, const Log& b) {
    return a.written.tv_sec != b.written.tv_sec ? a.written.tv_sec < b.written.tv_sec
                                                : a.written.tv_nsec < b.written.tv_nsec;
}

/// The file stays the same one: its worker has it open, and appends. What that writes in between is
/// lost.
void cut(const std::string& path, std::uint64_t bytes) {
    const control::UniqueFd file{::open(path.c_str(), O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW)};
    if (!file.valid()) {
        return;
    }
    std::string kept(kLogBytesKept, '\0');
    const ssize_t got =
        ::pread(file.get(), kept.data(), kept.size(), static_cast<off_t>(bytes - kLogBytesKept));
    kept.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    kept.erase(0, kept.find('\n') + 1);
    const std::string text =
        fmt::format("(gantryd has cut {} bytes from here)\n", bytes - kept.size()) + kept;
    if (::ftruncate(file.get(), 0) == 0) {
        (void)!::write(file.get(), text.data(), text.size());
    }
}

}  // namespace

void bound_worker_logs(const std::string& folder) {
    std::vector<Log> dead;
    std::error_code error;
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
        const fs::path& path = at->path();
        struct stat status {};
        if (path.extension() != ".log" || ::lstat(path.c_str(), &status) != 0 ||
            !S_ISREG(status.st_mode)) {
            continue;
        }
        const auto bytes = static_cast<std::uint64_t>(status.st_size);
        if (bytes > kLogBytesMax) {
            cut(path, bytes);
        }
        struct stat socket {};
        if (::lstat(fs::path(path).replace_extension(".sock").c_str(), &socket) != 0) {
            dead.push_back({path, status.st_mtim});
        }
    }
    if (dead.size() <= kDeadLogsKept) {
        return;
    }
    std::sort(dead.begin(), dead.end(), is_older);
    dead.resize(dead.size() - kDeadLogsKept);
    for (const Log& log : dead) {
        ::unlink(log.path.c_str());
    }
}

void forget_dead_workers(const std::string& folder, const std::set<std::string>& live_sockets) {
    std::error_code error;
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
        const std::string path = at->path();
        if (path.ends_with(".sock") && !live_sockets.contains(path) &&
            !control::PacketSocket::connect(path)) {
            ::unlink(path.c_str());
        }
    }
}

}  // namespace gantry::supervisor
