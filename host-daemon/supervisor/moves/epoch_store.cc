#include "host-daemon/supervisor/moves/epoch_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "proto/control/unique_fd.h"

namespace gantry::supervisor {
namespace {

using control::UniqueFd;

constexpr std::string_view kFirstLine = "gantry-epoch 1\n";
constexpr std::size_t kFileBytesMax = 4096;

/// FNV-1a: against torn or edited files, not against an attacker (the folder is gantryd's own).
std::uint64_t checksum(std::string_view text) {
    std::uint64_t hash = 0xCBF29CE484222325ULL;
    for (const char c : text) {
        hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
    }
    return hash;
}

std::string serialise(const engine::DurableRecord& record) {
    std::array<char, 512> text{};
    std::snprintf(text.data(), text.size(),
                  "epoch %llu\ngranted %d\nmigration %016llx %016llx\ntoken %016llx %016llx %llu\n",
                  static_cast<unsigned long long>(record.epoch.value), record.granted ? 1 : 0,
                  static_cast<unsigned long long>(record.granted_migration.low),
                  static_cast<unsigned long long>(record.granted_migration.high),
                  static_cast<unsigned long long>(record.granted_token.migration.low),
                  static_cast<unsigned long long>(record.granted_token.migration.high),
                  static_cast<unsigned long long>(record.granted_token.count));
    std::string body = std::string(kFirstLine) + text.data();
    if (!record.granted_peer.empty()) {
        body += "peer " + record.granted_peer + "\n";
    }
    std::array<char, 40> sum{};
    std::snprintf(sum.data(), sum.size(), "checksum %016llx\n",
                  static_cast<unsigned long long>(checksum(body)));
    return body + sum.data();
}

std::optional<engine::DurableRecord> parse(const std::string& text) {
    const std::size_t last = text.rfind("checksum ");
    unsigned long long sum = 0;
    if (!text.starts_with(kFirstLine) || last == std::string::npos || text.back() != '\n' ||
        std::sscanf(text.c_str() + last, "checksum %16llx\n", &sum) != 1 ||
        text.size() - last != 26 || sum != checksum(std::string_view(text).substr(0, last))) {
        return std::nullopt;
    }
    unsigned long long epoch = 0, low = 0, high = 0, token_low = 0, token_high = 0, count = 0;
    int granted = 0;
    if (std::sscanf(text.c_str() + kFirstLine.size(),
                    "epoch %llu\ngranted %d\nmigration %16llx %16llx\ntoken %16llx %16llx %llu\n",
                    &epoch, &granted, &low, &high, &token_low, &token_high, &count) != 7) {
        return std::nullopt;
    }
    engine::DurableRecord record;
    record.epoch.value = epoch;
    record.granted = granted != 0;
    record.granted_migration = {low, high};
    record.granted_token = {{token_low, token_high}, count};
    constexpr std::string_view kPeer = "\npeer ";
    if (const std::size_t at = text.find(kPeer); at != std::string::npos) {
        const std::size_t begin = at + kPeer.size();
        record.granted_peer = text.substr(begin, text.find('\n', begin) - begin);
    }
    return record;
}

Error io_error(const std::string& what, const std::string& path, int error) {
    return Error{error == ENOSPC ? Code::kResourceExhausted : Code::kUnavailable, "epoch.write",
                 what + " " + path + ": " + std::strerror(error) +
                     "; free space or repair the state directory"};
}

int write_all(int fd, const std::string& text) {
    std::size_t done = 0;
    while (done < text.size()) {
        const ssize_t put = ::write(fd, text.data() + done, text.size() - done);
        if (put < 0 && errno != EINTR) {
            return errno;
        }
        done += put > 0 ? static_cast<std::size_t>(put) : 0;
    }
    return 0;
}

}  // namespace

Epoch first_epoch(const std::optional<engine::DurableRecord>& known, std::chrono::sys_seconds now) {
    const std::uint64_t seconds = std::max<std::int64_t>(now.time_since_epoch().count(), 1);
    return {known ? std::max(known->epoch.value + 2, seconds) : seconds};
}

bool is_session_id(const std::string& text) {
    return !text.empty() && text.size() <= 64 && text.front() != '.' &&
           std::all_of(text.begin(), text.end(), [](char c) {
               return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '-' || c == '_' || c == '.';
           });
}

Result<EpochStore> EpochStore::open(const std::string& state_directory) {
    ::mkdir(state_directory.c_str(), 0700);
    const std::string folder = state_directory + "/epochs";
    // Whoever made them: the gantryd before may have ended just then.
    const auto make_durable = [&]() -> Result<void> {
        for (const std::string& parent :
             {state_directory, std::filesystem::path(state_directory).parent_path().string()}) {
            const UniqueFd opened{
                ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
            if (!opened.valid() || ::fsync(opened.get()) != 0) {
                return io_error("syncing", parent, errno);
            }
        }
        return {};
    };
    if ((::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) ||
        ::access(folder.c_str(), R_OK | W_OK | X_OK) != 0) {
        return Error{Code::kPermissionDenied, "epoch.folder",
                     "cannot use " + folder + ": " + std::strerror(errno) +
                         "; set daemon.state_directory to a folder that gantryd may write"};
    }
    GANTRY_TRY(make_durable());
    return EpochStore{folder};
}

int EpochStore::step(StoreStep which, const std::function<int()>& action) const {
    if (fault_) {
        if (const int error = fault_(which); error != 0) {
            return error;
        }
    }
    return action();
}

SaveOutcome EpochStore::save(const std::string& session_id, const engine::DurableRecord& record) {
    GANTRY_ASSERT(is_session_id(session_id), "'%s'", session_id.c_str());
    const std::string path = folder_ + "/" + session_id;
    const std::string temporary = path + ".new";  // '.new' of one session: one writer at a time
    UniqueFd file;
    int error = step(StoreStep::kOpen, [&] {
        file.reset(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
        return file.valid() ? 0 : errno;
    });
    if (error == 0) {
        error = step(StoreStep::kWrite, [&] { return write_all(file.get(), serialise(record)); });
    }
    if (error == 0) {
        error = step(StoreStep::kSyncFile, [&] { return ::fsync(file.get()) == 0 ? 0 : errno; });
    }
    UniqueFd folder{::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    if (error == 0 && !folder.valid()) {
        error = errno;
    }
    if (error == 0) {
        error = step(StoreStep::kRename,
                     [&] { return ::rename(temporary.c_str(), path.c_str()) == 0 ? 0 : errno; });
    }
    if (error != 0) {  // The rename was not done: the old record stands.
        ::unlink(temporary.c_str());
        return {SaveFailure::kProvenUnwritten, io_error("writing", temporary, error)};
    }
    error = step(StoreStep::kSyncFolder, [&] { return ::fsync(folder.get()) == 0 ? 0 : errno; });
    if (error != 0) {  // The new name may or may not survive a crash.
        return {SaveFailure::kUnknown, io_error("syncing the folder of", path, error)};
    }
    return {};
}

Result<std::optional<engine::DurableRecord>> EpochStore::load(const std::string& session_id) const {
    GANTRY_ASSERT(is_session_id(session_id), "'%s'", session_id.c_str());
    const std::string path = folder_ + "/" + session_id;
    UniqueFd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    if (!file.valid()) {
        if (errno == ENOENT) {
            return std::optional<engine::DurableRecord>{};
        }
        return Error{Code::kUnavailable, "epoch.read",
                     "cannot read " + path + ": " + std::strerror(errno)};
    }
    std::string text(kFileBytesMax, '\0');
    const ssize_t got = ::read(file.get(), text.data(), text.size());
    text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    if (auto record = parse(text)) {
        return record;
    }
    return Error{Code::kDataLoss, "epoch.corrupt",
                 path + " is damaged: this host cannot know whether it owns session " + session_id +
                     "; look at the other host's `gantry status`, then remove the file on the host "
                     "that does not own it"};
}

Result<void> EpochStore::remove(const std::string& session_id) {
    GANTRY_ASSERT(is_session_id(session_id), "'%s'", session_id.c_str());
    const std::string path = folder_ + "/" + session_id;
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
        return io_error("removing", path, errno);
    }
    const int error = step(StoreStep::kSyncRemoval, [&] {
        const UniqueFd folder{::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
        return folder.valid() && ::fsync(folder.get()) == 0 ? 0 : errno;
    });
    return error == 0 ? Result<void>{} : io_error("syncing the folder of", path, error);
}

Result<std::vector<std::string>> EpochStore::sessions() const {
    std::vector<std::string> names;
    DIR* folder = ::opendir(folder_.c_str());
    if (folder == nullptr) {
        return Error{Code::kUnavailable, "epoch.read",
                     "cannot list " + folder_ + ": " + std::strerror(errno)};
    }
    while (const dirent* entry = ::readdir(folder)) {
        const std::string name = entry->d_name;
        if (is_session_id(name) && !name.ends_with(".new")) {
            names.push_back(name);
        }
    }
    ::closedir(folder);
    std::sort(names.begin(), names.end());
    return names;
}

}  // namespace gantry::supervisor
