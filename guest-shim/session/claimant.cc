#include "guest-shim/session/claimant.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace gantry::session {
namespace {

/// The namespace that all others are in: PROC_PID_INIT_INO of Linux.
constexpr std::uint32_t kFirstPidNamespace = 0xEFFFFFFC;
constexpr int kPathBytes = 64;

/// 0, and errno: it may not be asked, or has ended.
std::uint32_t pid_namespace_of(const char* process) noexcept {
    char path[kPathBytes];
    std::snprintf(path, sizeof(path), "/proc/%.20s/ns/pid", process);
    struct stat file {};
    return stat(path, &file) == 0 ? static_cast<std::uint32_t>(file.st_ino) : 0;
}

/// Of a process that could not be looked at: because it has ended?
bool has_ended(int error) noexcept {
    return error == ENOENT || error == ESRCH;
}

/// What a process calls itself, and in how many namespaces it is, from the caller's inwards: the
/// line NSpid. 0, and errno: it cannot be read.
struct Numbers {
    std::uint32_t innermost;
    unsigned depth;
};

Numbers numbers_of(const char* process) noexcept {
    char path[kPathBytes];
    std::snprintf(path, sizeof(path), "/proc/%.20s/status", process);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return {};
    }
    char text[4096];  // The line follows that of the groups, in the first KB of most.
    const ssize_t bytes = read(file, text, sizeof(text) - 1);
    const int error = errno;
    close(file);
    errno = bytes < 0 ? error : EPROTO;  // As of a kernel without such a line.
    text[bytes > 0 ? bytes : 0] = 0;
    const char* at = std::strstr(text, "\nNSpid:");
    Numbers numbers{};
    for (at += at != nullptr ? std::strlen("\nNSpid:") : 0; at != nullptr && *at == '\t';) {
        char* end = nullptr;
        numbers = {static_cast<std::uint32_t>(std::strtoul(at, &end, 10)), numbers.depth + 1};
        at = end;
    }
    return numbers;
}

/// Does the caller see every process there is? In the first namespace, with its own /proc, that
/// hides none (hidepid would hide the first).
bool sees_all(std::uint32_t own) noexcept {
    return own == kFirstPidNamespace && numbers_of("1").innermost == 1;
}

/// Is /proc that of the caller's namespace? Then it finds itself there by its own number.
bool proc_is_own() noexcept {
    char self[16] = {};
    return readlink("/proc/self", self, sizeof(self) - 1) > 0 && std::atoi(self) == getpid();
}

Claimant search(std::uint32_t pid_namespace, std::uint32_t pid, std::uint32_t own) noexcept {
    DIR* processes = proc_is_own() ? opendir("/proc") : nullptr;
    if (processes == nullptr) {
        return {ClaimantState::kUnknown, 0};
    }
    bool can_tell = sees_all(own);
    std::uint32_t found = 0;
    for (const dirent* entry = nullptr; found == 0 && (entry = readdir(processes)) != nullptr;) {
        const char* process = entry->d_name;
        if (process[0] < '1' || process[0] > '9') {
            continue;
        }
        const Numbers numbers = numbers_of(process);
        if (numbers.innermost == 0) {
            can_tell = can_tell && has_ended(errno);
        } else if (numbers.innermost == pid && numbers.depth > 1) {
            const std::uint32_t its = pid_namespace_of(process);
            can_tell = can_tell && (its != 0 || has_ended(errno));
            found = its == pid_namespace
                        ? static_cast<std::uint32_t>(std::strtoul(process, nullptr, 10))
                        : 0;
        }
    }
    closedir(processes);
    if (found != 0) {
        return {ClaimantState::kAlive, found};
    }
    return {can_tell ? ClaimantState::kGone : ClaimantState::kUnknown, 0};
}

}  // namespace

std::uint32_t own_pid_namespace() noexcept {
    return pid_namespace_of("self");
}

Claimant find_claimant(const wire::GuestDirectory& directory, std::uint32_t channel) noexcept {
    const std::uint32_t pid = directory.claims[channel].guest_pid;
    if (pid == 0) {
        return {ClaimantState::kUnknown, 0};
    }
    const std::uint32_t pid_namespace =
        directory.pid_namespaces[channel].load(std::memory_order_relaxed);
    const std::uint32_t own = own_pid_namespace();
    if (pid_namespace != 0 && pid_namespace != own) {
        return search(pid_namespace, pid, own);
    }
    const bool is_gone = kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH;
    return {is_gone ? ClaimantState::kGone : ClaimantState::kAlive, pid};
}

}  // namespace gantry::session
