#include "host-daemon/supervisor/config/file_modes.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace gantry::supervisor {
namespace {

bool is_ours(const struct stat& status) {
    return status.st_uid == 0 || status.st_uid == ::geteuid();
}

/// What is wrong, or "". One that does not exist is another check's. In a folder like /tmp, whose
/// files only their owners replace, a file of ours is safe.
std::string fault_of(const std::string& path, mode_t forbidden) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) {
        return "";
    }
    if (!is_ours(status)) {
        return fmt::format("{} belongs to user {}; give it to root", path, status.st_uid);
    }
    const bool is_sticky = S_ISDIR(status.st_mode) && (status.st_mode & S_ISVTX) != 0;
    if ((status.st_mode & forbidden) != 0 && !is_sticky) {
        return fmt::format("{} has mode {:04o}; take {:04o} from it (chmod)", path,
                           status.st_mode & 07777U, status.st_mode & forbidden);
    }
    return "";
}

}  // namespace

std::vector<ModeFault> mode_faults(const Config& config, const std::string& config_path) {
    constexpr mode_t kWritableByOthers = 0022;
    constexpr mode_t kOpenToOthers = 0027;  // its group may read it
    std::vector<ModeFault> faults;
    const auto look = [&](const std::string& path, mode_t forbidden) {
        if (std::string fault = fault_of(path, forbidden); !fault.empty()) {
            faults.push_back({path, std::move(fault), forbidden == kOpenToOthers});
        }
    };
    if (!config_path.empty()) {
        look(config_path, kWritableByOthers);
        const std::string folder = std::filesystem::path(config_path).parent_path();
        look(folder.empty() ? "." : folder, kWritableByOthers);
    }
    look(config.daemon.run_directory, kWritableByOthers);
    look(config.daemon.state_directory, kWritableByOthers);
    if (!config.peer.listen.empty()) {
        look(config.peer.key, kOpenToOthers);
        look(config.peer.certificate, kWritableByOthers);
        look(config.peer.authority, kWritableByOthers);
    }
    return faults;
}

Result<void> check_modes(const Config& config, const std::string& config_path) {
    std::string text;
    for (const ModeFault& fault : mode_faults(config, config_path)) {
        text += (text.empty() ? "" : "\n") + fault.text;
    }
    return text.empty() ? Result<void>{} : Error{Code::kPermissionDenied, "config.mode", text};
}

Result<void> check_snapshot_path(const OperatorConfig& config, const std::string& path) {
    if (config.group.empty()) {
        return {};  // who asks is root, or gantryd's own user
    }
    const auto refuse = [](const std::string& why) {
        return Error{Code::kPermissionDenied, "snapshot.directory", why};
    };
    std::filesystem::path folder(config.snapshot_directory);
    folder = folder.has_filename() ? folder : folder.parent_path();
    const std::filesystem::path file(path);
    if (file.parent_path() != folder || !file.has_filename() || file.filename() == "." ||
        file.filename() == "..") {
        return refuse("members of operator.group may have snapshots in " + folder.string() +
                      " (operator.snapshot_directory) only, not at '" + path + "'");
    }
    struct stat status {};
    if ((::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) ||
        ::lstat(folder.c_str(), &status) != 0) {
        return refuse("cannot make " + folder.string() + ": " + std::strerror(errno));
    }
    if (!S_ISDIR(status.st_mode) || !is_ours(status) || (status.st_mode & 0022) != 0) {
        return refuse(folder.string() + " must be a folder that only gantryd may write");
    }
    return {};
}

}  // namespace gantry::supervisor
