#include "guest-shim/session/transport/claimant.h"

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
constexpr int kTextBytes = 4096;

/// Which namespace of a kind (pid, time) a process is in. 0, and errno: it may not be asked, or has
/// ended.
std::uint32_t namespace_of(const char* process, const char* kind) noexcept {
    char path[kPathBytes];
    std::snprintf(path, sizeof(path), "/proc/%.20s/ns/%.8s", process, kind);
    struct stat file {};
    return stat(path, &file) == 0 ? static_cast<std::uint32_t>(file.st_ino) : 0;
}

/// The beginning of a file of /proc/PID; how many bytes. 0, and errno: it cannot be read.
std::size_t read_file(const char* process, const char* name, char (&text)[kTextBytes]) noexcept {
    char path[kPathBytes];
    std::snprintf(path, sizeof(path), "/proc/%.20s/%.8s", process, name);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t bytes = file < 0 ? -1 : read(file, text, sizeof(text) - 1);
    const int error = errno;
    if (file >= 0) {
        close(file);
    }
    errno = error;
    text[bytes > 0 ? bytes : 0] = 0;
    return bytes > 0 ? static_cast<std::size_t>(bytes) : 0;
}

/// Of a process that could not be looked at: because it has ended?
bool has_ended(int error) noexcept { return error == ENOENT || error == ESRCH; }

/// What a process calls itself, and in how many namespaces it is, from the caller's inwards: the
/// line NSpid. 0, and errno: it cannot be read.
struct Numbers {
    std::uint32_t innermost;
    unsigned depth;
};

Numbers numbers_of(const char* process) noexcept {
    char text[kTextBytes];  // The line follows that of the groups, in the first KB of most.
    if (read_file(process, "status", text) == 0) {
        return {};
    }
    errno = EPROTO;  // As of a kernel without such a line.
    const char* at = std::strstr(text, "\nNSpid:");
    Numbers numbers{};
    for (at += at != nullptr ? std::strlen("\nNSpid:") : 0; at != nullptr && *at == '\t';) {
        char* end = nullptr;
        numbers = {static_cast<std::uint32_t>(std::strtoul(at, &end, 10)), numbers.depth + 1};
        at = end;
    }
    return numbers;
}

/// Of /proc/PID/stat, whose fields are separated by blanks after the name in parentheses.
struct Stat {
    bool has_died;  ///< It waits to be waited for, and no thread of it runs on.
    std::uint64_t start_time;
};

bool read_stat(const char* process, Stat* out) noexcept {
    constexpr int kState = 3;
    constexpr int kThreads = 20;
    constexpr int kStartTime = 22;
    char text[kTextBytes];
    const char* at = read_file(process, "stat", text) != 0 ? std::strrchr(text, ')') : nullptr;
    char state = 0;
    unsigned long long threads = 0;
    for (int field = kState; at != nullptr && (at = std::strchr(at, ' ')) != nullptr; ++field) {
        ++at;
        if (field == kState) {
            state = *at;
        } else if (field == kThreads) {
            threads = std::strtoull(at, nullptr, 10);
        } else if (field == kStartTime) {
            *out = {(state == 'Z' || state == 'X') && threads <= 1, std::strtoull(at, nullptr, 10)};
            return true;
        }
    }
    return false;
}

/// Is the process of that number the one that signed? Where that cannot be asked, it is.
bool lives_on(const char* process, const wire::ClaimantId& id) noexcept {
    Stat stat{};
    if (!read_stat(process, &stat)) {
        return true;
    }
    const std::uint64_t start = id.start_time.load(std::memory_order_relaxed);
    const bool can_compare = start != 0 && id.time_namespace.load(std::memory_order_relaxed) ==
                                               namespace_of("self", "time");
    return !stat.has_died && (!can_compare || start == stat.start_time);
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

Claimant search(const wire::ClaimantId& id, std::uint32_t pid, std::uint32_t own) noexcept {
    const std::uint32_t pid_namespace = id.pid_namespace.load(std::memory_order_relaxed);
    DIR* processes = proc_is_own() ? opendir("/proc") : nullptr;
    if (processes == nullptr) {
        return {ClaimantState::kUnknown, 0};
    }
    bool can_tell = sees_all(own);
    Claimant claimant{ClaimantState::kUnknown, 0};
    while (const dirent* entry = readdir(processes)) {
        const char* process = entry->d_name;
        if (process[0] < '1' || process[0] > '9') {
            continue;
        }
        const Numbers numbers = numbers_of(process);
        if (numbers.innermost == 0) {
            can_tell = can_tell && has_ended(errno);
        } else if (numbers.innermost == pid && numbers.depth > 1) {
            const std::uint32_t its = namespace_of(process, "pid");
            can_tell = can_tell && (its != 0 || has_ended(errno));
            if (its == pid_namespace && lives_on(process, id)) {
                claimant = {ClaimantState::kAlive,
                            static_cast<std::uint32_t>(std::strtoul(process, nullptr, 10))};
                break;
            }
        }
    }
    closedir(processes);
    if (claimant.state == ClaimantState::kUnknown && can_tell) {
        claimant.state = ClaimantState::kGone;
    }
    return claimant;
}

}  // namespace

void sign_claim(wire::ClaimantId* id) noexcept {
    Stat stat{};
    id->start_time.store(read_stat("self", &stat) ? stat.start_time : 0, std::memory_order_relaxed);
    id->time_namespace.store(namespace_of("self", "time"), std::memory_order_relaxed);
    id->pid_namespace.store(namespace_of("self", "pid"), std::memory_order_relaxed);
}

Claimant find_claimant(const wire::GuestDirectory& directory, std::uint32_t channel) noexcept {
    const std::uint32_t pid = directory.claims[channel].guest_pid;
    if (pid == 0) {
        return {ClaimantState::kUnknown, 0};
    }
    const wire::ClaimantId& id = directory.claimants[channel];
    const std::uint32_t pid_namespace = id.pid_namespace.load(std::memory_order_relaxed);
    if (pid_namespace == 0 && id.start_time.load(std::memory_order_relaxed) == 0) {
        return {ClaimantState::kUnknown, 0};  // A container without /proc: whose number is it?
    }
    const std::uint32_t own = namespace_of("self", "pid");
    if (pid_namespace != 0 && pid_namespace != own) {
        return search(id, pid, own);
    }
    bool is_gone = kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH;
    if (!is_gone && proc_is_own()) {
        char process[16];
        std::snprintf(process, sizeof(process), "%u", pid);
        is_gone = !lives_on(process, id);
    }
    return {is_gone ? ClaimantState::kGone : ClaimantState::kAlive, pid};
}

}  // namespace gantry::session
