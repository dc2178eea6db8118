// What a tenant that has taken its worker over can do to the other workers of the same user. The
// processes here have a worker's user (nobody's, where the test may choose) and its sandbox.
#include "host-daemon/worker/sandbox.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <thread>

namespace gantry::worker {
namespace {

constexpr uid_t kNobody = 65534;

/// What a root process may do says nothing of a worker.
bool become_user() {
    return geteuid() != 0 ||
           (setresgid(kNobody, kNobody, kNobody) == 0 && setresuid(kNobody, kNobody, kNobody) == 0);
}

/// A worker as far as its user and sandbox go, which waits to be killed.
class Victim {
public:
    Victim() {
        int ready[2];
        EXPECT_EQ(pipe(ready), 0);
        pid_ = fork();
        if (pid_ == 0) {
            const bool is_ready = become_user() && lock_down(true).ok();
            const char word = is_ready ? 'y' : 'n';
            (void)!write(ready[1], &word, 1);
            for (;;) {
                poll_forever();
            }
        }
        char word = 0;
        EXPECT_EQ(read(ready[0], &word, 1), 1);
        EXPECT_EQ(word, 'y');
        close(ready[0]);
        close(ready[1]);
    }
    ~Victim() {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
    }
    Victim(const Victim&) = delete;
    Victim& operator=(const Victim&) = delete;
    [[nodiscard]] pid_t pid() const { return pid_; }
    [[nodiscard]] bool alive() const { return waitpid(pid_, nullptr, WNOHANG) == 0; }

private:
    static void poll_forever() {
        const timespec long_time{3600, 0};
        nanosleep(&long_time, nullptr);
    }
    pid_t pid_ = -1;
};

/// The exit status of a process of that user and, if asked, in the sandbox.
int in_attacker(bool is_locked_down, const std::function<int()>& attack) {
    const pid_t child = fork();
    if (child == 0) {
        const bool is_ready = become_user() && (!is_locked_down || lock_down(true).ok());
        _exit(is_ready ? attack() : 100);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 200;
}

TEST(Sandbox, AnotherWorkerCannotBeKilledOrStarved) {
    const Victim locked;
    ASSERT_EQ(in_attacker(false, [&] { return kill(locked.pid(), 0) == 0 ? 0 : errno; }), 0)
        << "without the sandbox its user may";
    EXPECT_EQ(in_attacker(true,
                          [&] {
                              const long done =
                                  syscall(SYS_tgkill, locked.pid(), locked.pid(), SIGKILL);
                              return done == 0 ? 0 : errno;
                          }),
              EPERM);
    EXPECT_EQ(in_attacker(true,
                          [&] {
                              const rlimit none{0, 0};
                              return prlimit(locked.pid(), RLIMIT_NOFILE, &none, nullptr) == 0
                                         ? 0
                                         : errno;
                          }),
              EPERM);
    EXPECT_EQ(in_attacker(true, [&] { return kill(locked.pid(), SIGKILL) == 0 ? 0 : errno; }),
              EPERM);
    EXPECT_TRUE(locked.alive());
}

int pair_end() {
    int ends[2] = {-1, -1};
    (void)socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
    return ends[0];
}

long own_by_ioctl(long number) {
    const pid_t self = getpid();
    return syscall(SYS_ioctl, pair_end(), number, &self);
}

/// What a worker has no use for. Each is tried without the filter, too: there it fails for another
/// reason, or not at all, so that it is the filter that says EPERM.
TEST(Sandbox, OtherProgramsProcessesAndConnectionsAreOutOfReach) {
    const Victim victim;
    const pid_t other = victim.pid();
    const struct {
        const char* name;
        std::function<long()> call;
    } kCalls[] = {
        {"execve", [] { return syscall(SYS_execve, "/nonexistent", nullptr, nullptr); }},
        {"execveat",
         [] { return syscall(SYS_execveat, AT_FDCWD, "/nonexistent", nullptr, nullptr, 0); }},
        {"fork",
         [] {
             const long child = syscall(SYS_fork);
             return child == 0 ? (_exit(0), 0L) : child;
         }},
        {"clone of a process",
         [] {
             const long child = syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr);
             return child == 0 ? (_exit(0), 0L) : child;
         }},
        {"clone into a namespace, with what a thread has",
         [] { return syscall(SYS_clone, CLONE_THREAD | CLONE_NEWUSER, 0, 0, 0, 0); }},
        {"F_SETOWN", [] { return syscall(SYS_fcntl, pair_end(), F_SETOWN, getpid()); }},
        {"F_SETOWN, bits above",
         [] { return syscall(SYS_fcntl, pair_end(), F_SETOWN | 1L << 40, getpid()); }},
        {"F_SETSIG", [] { return syscall(SYS_fcntl, pair_end(), F_SETSIG, SIGKILL); }},
        {"FIOSETOWN", [] { return own_by_ioctl(FIOSETOWN); }},
        {"FIOSETOWN, bits above", [] { return own_by_ioctl(FIOSETOWN | 1L << 40); }},
        {"SIOCSPGRP", [] { return own_by_ioctl(SIOCSPGRP); }},
        {"FIOASYNC",
         [] {
             int on = 0;
             return syscall(SYS_ioctl, pair_end(), FIOASYNC, &on);
         }},
        {"TIOCSTI", [] { return syscall(SYS_ioctl, pair_end(), TIOCSTI, "x"); }},
        {"another's scheduler",
         [=] {
             const sched_param idle{};
             return syscall(SYS_sched_setscheduler, other, SCHED_IDLE, &idle);
         }},
        {"another's processors",
         [=] {
             cpu_set_t set;
             CPU_ZERO(&set);
             CPU_SET(0, &set);
             return syscall(SYS_sched_setaffinity, other, sizeof(set), &set);
         }},
        {"ptrace", [] { return syscall(SYS_ptrace, PTRACE_TRACEME, 0, 0, 0); }},
        {"process_vm_readv",
         [=] { return syscall(SYS_process_vm_readv, other, nullptr, 0, nullptr, 0, 0); }},
        {"process_vm_writev",
         [=] { return syscall(SYS_process_vm_writev, other, nullptr, 0, nullptr, 0, 0); }},
        {"pidfd_open", [=] { return syscall(SYS_pidfd_open, other, 0); }},
        {"kill", [=] { return syscall(SYS_kill, other, 0); }},
        {"tkill", [=] { return syscall(SYS_tkill, getpid(), 0); }},
        {"socket", [] { return syscall(SYS_socket, AF_INET, SOCK_STREAM, 0); }},
        {"socket, local", [] { return syscall(SYS_socket, AF_UNIX, SOCK_STREAM, 0); }},
        {"connect", [] { return syscall(SYS_connect, -1, nullptr, 0); }},
        {"bind", [] { return syscall(SYS_bind, -1, nullptr, 0); }},
        {"listen", [] { return syscall(SYS_listen, -1, 1); }},
        {"mkdir", [] { return syscall(SYS_mkdir, "/nonexistent/a", 0700); }},
        {"rename", [] { return syscall(SYS_rename, "/nonexistent/a", "/nonexistent/b"); }},
        {"link", [] { return syscall(SYS_link, "/nonexistent/a", "/nonexistent/b"); }},
        {"symlink", [] { return syscall(SYS_symlink, "a", "/nonexistent/b"); }},
        {"chmod", [] { return syscall(SYS_chmod, "/nonexistent", 0700); }},
        {"chown", [] { return syscall(SYS_chown, "/nonexistent", 0, 0); }},
        {"unshare", [] { return syscall(SYS_unshare, 0); }},
        {"keyctl", [] { return syscall(SYS_keyctl, 0, 0, 0, 0, 0); }},
        {"inotify_init1", [] { return syscall(SYS_inotify_init1, 0); }},
        {"shmget", [] { return syscall(SYS_shmget, 1, 0, 0); }},
        {"msgget", [] { return syscall(SYS_msgget, 1, 0); }},
    };
    for (const auto& [name, call] : kCalls) {
        const auto answer = [&call = call] { return call() >= 0 ? 0 : errno; };
        EXPECT_NE(in_attacker(false, answer), EPERM) << name << ", without the filter";
        EXPECT_EQ(in_attacker(true, answer), EPERM) << name;
    }
    EXPECT_TRUE(victim.alive());
}

TEST(Sandbox, AWorkerMayStillHaveThreadsLocksAndItsOwnScheduling) {
    EXPECT_EQ(in_attacker(true,
                          [] {
                              int value = 0;
                              std::thread([&value] { value = 1; }).join();
                              const int end = pair_end();
                              int on = 1;
                              const sched_param normal{};
                              cpu_set_t set;
                              CPU_ZERO(&set);
                              return value == 1 && fcntl(end, F_GETFL) >= 0 &&
                                             fcntl(end, F_SETFD, FD_CLOEXEC) == 0 &&
                                             fcntl(end, F_DUPFD_CLOEXEC, 3) >= 0 &&
                                             ioctl(end, FIONBIO, &on) == 0 &&
                                             sched_setscheduler(0, SCHED_OTHER, &normal) == 0 &&
                                             sched_getaffinity(getpid(), sizeof(set), &set) == 0
                                         ? 0
                                         : errno;
                          }),
              0);
    // As nvidia's devices have them: what refuses is the file, not the filter.
    EXPECT_EQ(
        in_attacker(true,
                    [] {
                        for (const unsigned long number : {0xc0384600UL, 0x27UL, 0x30000001UL}) {
                            if (ioctl(pair_end(), number, nullptr) == 0 || errno == EPERM) {
                                return 1;
                            }
                        }
                        return 0;
                    }),
        0);
}

TEST(Sandbox, AWorkerMayStillAskAboutItselfAndAbort) {
    EXPECT_EQ(in_attacker(true,
                          [] {
                              rlimit limit{};
                              return getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
                                             prlimit(getpid(), RLIMIT_NOFILE, nullptr, &limit) ==
                                                 0 &&
                                             open("/proc/self/maps", O_RDONLY) >= 0 &&
                                             open("/proc/self/fd", O_RDONLY | O_DIRECTORY) >= 0
                                         ? 0
                                         : errno;
                          }),
              0);
    EXPECT_EQ(in_attacker(true,
                          [] {
                              signal(SIGABRT, [](int) { _exit(42); });
                              return raise(SIGABRT);  // by tgkill
                          }),
              42);
}

}  // namespace
}  // namespace gantry::worker
