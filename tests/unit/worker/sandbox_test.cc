// What a tenant that has taken its worker over can do to the other workers of the same user. The
// processes here have a worker's user (nobody's, where the test may choose) and its sandbox.
#include "host-daemon/worker/sandbox.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>

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
