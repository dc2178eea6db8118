#include "host-daemon/supervisor/workers/worker_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

#include "host-daemon/supervisor/config/accounts.h"
#include "proto/control/process_end.h"

namespace gantry::supervisor {
namespace {

using control::UniqueFd;

/// Where the child failed; sent to the parent through a pipe that exec closes.
struct ChildFailure {
    int step = 0;
    int error = 0;
};
enum ChildStep : int {
    kStepDescriptors = 1,
    kStepPrivateTmp,
    kStepNamespaces,
    kStepLimits,
    kStepUser,
    kStepPrivileges,
    kStepExec,
};
constexpr std::array<const char*, 8> kStepNames = {
    "",
    "passing descriptors",
    "mounting a private /tmp (set worker.private_tmp = false where gantryd is not root)",
    "giving it a network of its own (set worker.private_network = false where gantryd may not)",
    "setting resource limits",
    "changing to worker.user",
    "setting no_new_privs",
    "starting worker.executable",
};

/// All that the child needs, made before fork: afterwards only system calls are allowed.
struct Plan {
    const char* executable;
    std::vector<char*> arguments;
    std::vector<char*> environment;
    int control_fd;
    int log_fd;
    int failure_fd;
    bool private_tmp;
    bool private_network;
    bool change_user;
    bool fixed_addresses;
    uid_t uid;
    gid_t gid;
    rlim_t files_max;
    rlim_t data_bytes_max;
};

/// Of all workers together, which have one user: 65 lanes and some of the driver's each. So that
/// none takes all that the host can have.
constexpr rlim_t kThreadsMax = 32768;

constexpr int kChildControlFd = 3;
constexpr int kChildFailureFd = 4;

bool set_limit(__rlimit_resource which, rlim_t value) {
    const rlimit limit{value, value};
    return ::setrlimit(which, &limit) == 0;
}

int run_child_steps(const Plan& plan) {
    // Move to numbers above the fixed ones first, so that no dup2 overwrites what is still needed.
    const int control = ::fcntl(plan.control_fd, F_DUPFD, 10);
    const int failure = ::fcntl(plan.failure_fd, F_DUPFD, 10);
    const int log = ::fcntl(plan.log_fd, F_DUPFD, 10);
    const int null = ::open("/dev/null", O_RDONLY);
    if (control < 0 || failure < 0 || log < 0 || null < 0 || ::dup2(null, 0) < 0 ||
        ::dup2(log, 1) < 0 || ::dup2(log, 2) < 0 || ::dup2(failure, kChildFailureFd) < 0 ||
        ::dup2(control, kChildControlFd) < 0 ||
        ::fcntl(kChildFailureFd, F_SETFD, FD_CLOEXEC) != 0 ||
        ::syscall(SYS_close_range, kChildFailureFd + 1, ~0U, 0) != 0) {
        return kStepDescriptors;
    }
    ::setsid();
    if (plan.private_tmp && (::unshare(CLONE_NEWNS) != 0 ||
                             ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
                             ::mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC,
                                     "mode=1777,size=16m") != 0)) {
        return kStepPrivateTmp;
    }
    if (plan.private_network && ::unshare(CLONE_NEWNET | CLONE_NEWIPC) != 0) {
        return kStepNamespaces;
    }
    // Processes count by user: of one that gantryd has for itself, there may be any number.
    if (!set_limit(RLIMIT_CORE, 0) || !set_limit(RLIMIT_NOFILE, plan.files_max) ||
        (plan.change_user && !set_limit(RLIMIT_NPROC, kThreadsMax)) ||
        (plan.data_bytes_max != 0 && !set_limit(RLIMIT_DATA, plan.data_bytes_max))) {
        return kStepLimits;
    }
    if (plan.change_user &&
        (::setgroups(0, nullptr) != 0 || ::setresgid(plan.gid, plan.gid, plan.gid) != 0 ||
         ::setresuid(plan.uid, plan.uid, plan.uid) != 0)) {
        return kStepUser;
    }
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
        return kStepPrivileges;
    }
    if (plan.fixed_addresses) {
        ::personality(ADDR_NO_RANDOMIZE);  // refused in some containers: globals may then not place
    }
    ::execve(plan.executable, plan.arguments.data(), plan.environment.data());
    return kStepExec;
}

[[noreturn]] void run_child(const Plan& plan) {
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::signal(SIGPIPE, SIG_DFL);
    ChildFailure failure;
    failure.step = run_child_steps(plan);
    failure.error = errno;
    // The pipe may already have its fixed number, or still the old one; both are the same pipe.
    if (::write(kChildFailureFd, &failure, sizeof failure) < 0) {
        (void)!::write(plan.failure_fd, &failure, sizeof failure);
    }
    ::_exit(127);
}

Result<std::uint64_t> start_time_of(pid_t pid) {
    std::ifstream file(fmt::format("/proc/{}/stat", pid));
    std::string text;
    std::getline(file, text);
    const std::size_t after_name = text.rfind(')');
    if (after_name == std::string::npos) {
        return Error{Code::kNotFound, "worker.gone", fmt::format("process {} has ended", pid)};
    }
    std::istringstream fields(text.substr(after_name + 1));
    std::string field;
    for (int number = 3; number <= 22; ++number) {
        fields >> field;
    }
    return static_cast<std::uint64_t>(std::strtoull(field.c_str(), nullptr, 10));
}

Result<UniqueFd> open_pidfd(pid_t pid) {
    UniqueFd fd{static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))};
    if (!fd.valid()) {
        return Error{Code::kNotFound, "worker.gone",
                     fmt::format("process {}: {}", pid, std::strerror(errno))};
    }
    return fd;
}

Error spawn_error(const std::string& text, int error) {
    return Error{Code::kUnavailable, "worker.spawn",
                 "cannot start a worker: " + text + ": " + std::strerror(error)};
}

/// Variables that a driver may need; everything else of gantryd's environment stays out.
constexpr std::array kPassedVariables = {"PATH",         "LANG",          "GANTRY_FINGERPRINTS",
                                         "ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"};

std::vector<std::string> passed_variables() {
    std::vector<std::string> variables;
    for (const char* variable : kPassedVariables) {
        if (const char* value = ::getenv(variable)) {
            variables.push_back(std::string(variable) + "=" + value);
        }
    }
    return variables;
}

/// What a worker gets.
std::vector<std::string> variables_for(const WorkerConfig& config) {
    std::vector<std::string> variables = passed_variables();
    // The others are not initialised then, and NVIDIA's driver gives every worker the same
    // addresses, whichever device it has and how many the host has.
    variables.push_back("CUDA_VISIBLE_DEVICES=" + std::to_string(config.device));
    return variables;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
    std::vector<char*> pointers;
    for (std::string& text : texts) {
        pointers.push_back(text.data());
    }
    pointers.push_back(nullptr);
    return pointers;
}

/// What comes out of a pipe until its end, or for so long.
std::string read_all(int fd, std::chrono::seconds patience) {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    constexpr std::size_t kBytesMax = 64 << 10;  // 256 devices.
    std::string text;
    for (;;) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
            deadline - std::chrono::steady_clock::now());
        pollfd entry{fd, POLLIN, 0};
        std::array<char, 512> piece;
        const int ready = ::poll(&entry, 1, std::max<int>(static_cast<int>(left.count()), 0));
        const ssize_t got = ready > 0 ? ::read(fd, piece.data(), piece.size()) : 0;
        if (got <= 0 || text.size() > kBytesMax) {
            return text;
        }
        text.append(piece.data(), static_cast<std::size_t>(got));
    }
}

/// What gantry-worker prints for a question that it answers without a context.
Result<std::string> ask_worker(const WorkerConfig& config, const std::string& question,
                               std::vector<std::string> variables) {
    int out[2];
    if (::pipe2(out, O_CLOEXEC) != 0) {
        return spawn_error("pipe", errno);
    }
    const UniqueFd read_end{out[0]};
    UniqueFd write_end{out[1]};
    std::vector<std::string> arguments = {"gantry-worker", question + "=" + config.driver};
    if (!config.profile.empty()) {
        variables.push_back("GANTRY_SOFT_PROFILE=" + config.profile);
    }
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDOUT_FILENO);
    ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    pid_t pid = -1;
    const int failed = ::posix_spawn(&pid, config.executable.c_str(), &actions, nullptr,
                                     pointers_to(arguments).data(), pointers_to(variables).data());
    ::posix_spawn_file_actions_destroy(&actions);
    write_end.reset();
    if (failed != 0) {
        return spawn_error(config.executable, failed);
    }
    std::string text = read_all(read_end.get(), std::chrono::seconds{config.start_timeout_s});
    ::kill(pid, SIGKILL);  // Its answer is here, or will not come.
    int status = 0;
    ::waitpid(pid, &status, 0);
    return text;
}

/// "NUMBER UUID MAJOR.MINOR BYTES NAME".
std::optional<ListedDevice> parse_device(const std::string& line) {
    ListedDevice out;
    std::istringstream fields(line);
    char dot = 0;
    fields >> out.number >> out.uuid >> out.cc_major >> dot >> out.cc_minor >> out.memory_bytes;
    if (!fields || dot != '.' || out.number >= kDevicesMax) {
        return std::nullopt;
    }
    std::getline(fields >> std::ws, out.name);
    return out;
}

}  // namespace

Result<std::vector<ListedDevice>> list_worker_devices(const WorkerConfig& config) {
    GANTRY_ASSIGN(const std::string text, ask_worker(config, "--list-devices", passed_variables()));
    std::vector<ListedDevice> out;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        auto device = parse_device(line);
        if (!device) {
            return Error{Code::kFailedPrecondition, "gpu.list", line};
        }
        out.push_back(std::move(*device));
    }
    if (out.empty()) {
        return Error{Code::kFailedPrecondition, "gpu.list",
                     config.executable + " does not say which GPUs " + config.driver + " has"};
    }
    return out;
}

Result<void> check_worker_device(const WorkerConfig& config) {
    GANTRY_ASSIGN(std::string text, ask_worker(config, "--check-device", variables_for(config)));
    constexpr std::string_view kRefusal = "gpu.pageable_access: ";
    if (!text.starts_with(kRefusal)) {
        return {};
    }
    text.erase(text.find_last_not_of('\n') + 1);
    return Error{Code::kFailedPrecondition, "gpu.pageable_access", text.substr(kRefusal.size())};
}

Result<WorkerProcess> WorkerProcess::start(const WorkerConfig& config,
                                           const std::string& control_path,
                                           const std::string& log_path) {
    Plan plan{};
    plan.change_user = !config.user.empty();
    if (plan.change_user) {
        GANTRY_ASSIGN(const UserIds user, find_worker_user(config.user));
        plan.uid = user.uid;
        plan.gid = user.gid;
    }
    GANTRY_ASSIGN(control::PacketListener listener, control::PacketListener::bind(control_path));
    UniqueFd log{::open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)};
    int failure_pipe[2];
    if (!log.valid() || ::pipe2(failure_pipe, O_CLOEXEC) != 0) {
        return spawn_error("opening " + log_path, errno);
    }
    UniqueFd failure_read{failure_pipe[0]};
    UniqueFd failure_write{failure_pipe[1]};

    std::string fd_argument = "--control-fd=" + std::to_string(kChildControlFd);
    std::string name = "gantry-worker";
    plan.arguments = {name.data(), fd_argument.data(), nullptr};
    std::vector<std::string> variables = variables_for(config);
    plan.environment = pointers_to(variables);
    plan.executable = config.executable.c_str();
    plan.control_fd = listener.fd();
    plan.log_fd = log.get();
    plan.failure_fd = failure_write.get();
    plan.private_tmp = config.private_tmp && ::geteuid() == 0;
    plan.private_network = config.private_network && ::geteuid() == 0;
    plan.fixed_addresses = config.fixed_addresses;
    plan.files_max = static_cast<rlim_t>(config.files_max);
    plan.data_bytes_max = static_cast<rlim_t>(config.memory_limit_mib) << 20;

    const pid_t pid = ::fork();
    if (pid < 0) {
        return spawn_error("fork", errno);
    }
    if (pid == 0) {
        run_child(plan);
    }
    failure_write.reset();
    ChildFailure failure;
    ssize_t got = 0;
    do {
        got = ::read(failure_read.get(), &failure, sizeof failure);
    } while (got < 0 && errno == EINTR);
    if (got == sizeof failure) {
        ::waitpid(pid, nullptr, 0);
        ::unlink(control_path.c_str());
        const std::size_t step = static_cast<std::size_t>(failure.step);
        return spawn_error(std::string(kStepNames[step < kStepNames.size() ? step : 0]) +
                               (failure.step == kStepExec ? " " + config.executable : ""),
                           failure.error);
    }
    WorkerProcess process;
    GANTRY_ASSIGN(process.pidfd_, open_pidfd(pid));
    process.record_.pid = pid;
    process.record_.control_path = control_path;
    GANTRY_ASSIGN(process.record_.start_time_ticks, start_time_of(pid));
    return process;
}

Result<WorkerProcess> WorkerProcess::adopt(const ProcessRecord& record) {
    WorkerProcess process;
    // The pidfd first, then the comparison: what the pidfd names cannot change any more.
    GANTRY_ASSIGN(process.pidfd_, open_pidfd(record.pid));
    GANTRY_ASSIGN(const std::uint64_t started, start_time_of(record.pid));
    process.record_ = record;
    if (started != record.start_time_ticks || process.wait(std::chrono::milliseconds{0})) {
        return Error{Code::kNotFound, "worker.gone",
                     fmt::format("worker process {} has ended", record.pid)};
    }
    return process;
}

std::optional<std::string> WorkerProcess::wait(std::chrono::milliseconds timeout) {
    {
        const MutexLock lock(*ending_);
        if (ended_) {
            return ended_;
        }
    }
    pollfd entry{pidfd_.get(), POLLIN, 0};
    if (::poll(&entry, 1, static_cast<int>(timeout.count())) <= 0) {
        return std::nullopt;
    }
    const MutexLock lock(*ending_);
    if (ended_) {
        return ended_;  // Somebody else waited too.
    }
    siginfo_t info{};
    if (::waitid(P_PIDFD, static_cast<id_t>(pidfd_.get()), &info, WEXITED) != 0) {
        ended_ = "ended";  // adopted: its parent is init now
    } else {
        ended_ = control::describe_end(info);
    }
    return ended_;
}

void WorkerProcess::kill() {
    const MutexLock lock(*ending_);
    if (pidfd_.valid() && !ended_) {
        ::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
    }
}

}  // namespace gantry::supervisor
