// Which process a claim is of, from within its PID namespace, from outside and from another.
#include "guest-shim/session/transport/claimant.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

namespace gantry::session {
namespace {

constexpr std::uint32_t kFirstPidNamespace = 0xEFFFFFFC;

/// A directory that children share, with one claim.
class ClaimantTest : public testing::Test {
protected:
    void SetUp() override {
        void* memory = mmap(nullptr, sizeof(wire::GuestDirectory), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        ASSERT_NE(memory, MAP_FAILED);
        directory_ = static_cast<wire::GuestDirectory*>(memory);
    }
    void TearDown() override { munmap(directory_, sizeof(wire::GuestDirectory)); }

    void claim() {
        sign_claim(&directory_->claimants[0]);
        directory_->claims[0].guest_pid = static_cast<std::uint32_t>(getpid());
    }
    [[nodiscard]] Claimant find() const { return find_claimant(*directory_, 0); }

    wire::GuestDirectory* directory_ = nullptr;
};

/// Runs `body` in a process that gets a minute, and waits; false where it did not return true.
bool in_process(const std::function<bool()>& body) {
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        _exit(body() ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/// As the kernel numbers a namespace: programs of other builds read it in the region, too.
std::uint32_t number_of(const char* path) {
    struct stat file {};
    return stat(path, &file) == 0 ? static_cast<std::uint32_t>(file.st_ino) : 0;
}

bool may_make_namespaces() {
    return in_process([] { return unshare(CLONE_NEWPID | CLONE_NEWNS) == 0; });
}

enum class Proc { kOwn, kFromOutside };

/// Runs `body` as the second process of a new PID namespace, as a container's program mostly is not
/// the first one; `outside` beside it, with its number there, whose end is its end. False where one
/// of them did not return true.
bool in_container(
    Proc proc, const std::function<bool()>& body,
    const std::function<bool(pid_t)>& outside = [](pid_t) { return true; }) {
    return in_process([&] {
        int ready[2];
        if (unshare(CLONE_NEWPID) != 0 || pipe(ready) != 0) {
            std::perror("a PID namespace of the test's own");
            return false;
        }
        const pid_t first = fork();
        if (first == 0) {
            if (proc == Proc::kOwn &&
                (unshare(CLONE_NEWNS) != 0 ||
                 mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
                 mount("proc", "/proc", "proc", 0, nullptr) != 0)) {
                std::perror("a /proc of the test's own");
                _exit(2);
            }
            _exit(in_process([&] {
                const bool is_fine = body();
                const char answer = is_fine ? 'y' : 'n';
                return write(ready[1], &answer, 1) == 1 && pause() == -1;
            }));
        }
        close(ready[1]);
        char answer = 'n';
        const bool is_fine = read(ready[0], &answer, 1) == 1 && answer == 'y' && outside(first);
        kill(first, SIGKILL);  // And all others of the namespace with it.
        waitpid(first, nullptr, 0);
        return is_fine;
    });
}

TEST_F(ClaimantTest, OfTheOwnNamespace) {
    EXPECT_EQ(find().state, ClaimantState::kUnknown);  // Nobody has claimed it.
    EXPECT_TRUE(in_process([&] {
        claim();
        const Claimant self = find();
        return self.state == ClaimantState::kAlive &&
               self.pid == static_cast<std::uint32_t>(getpid());
    }));
    EXPECT_EQ(find().state, ClaimantState::kGone);
    wire::ClaimantId& id = directory_->claimants[0];
    id.pid_namespace = 0;  // Of a kernel that has none.
    EXPECT_EQ(find().state, ClaimantState::kGone);
    id.start_time = 0;  // It had no /proc to ask.
    EXPECT_EQ(find().state, ClaimantState::kUnknown);
    claim();
    EXPECT_EQ(find().state, ClaimantState::kAlive);
    EXPECT_EQ(id.pid_namespace, number_of("/proc/self/ns/pid"));
    EXPECT_EQ(id.time_namespace, number_of("/proc/self/ns/time"));
    id.start_time += 1;  // As of one that had this process's number before it.
    EXPECT_EQ(find().state, ClaimantState::kGone);
    id.time_namespace += 1;  // Or it tells the time otherwise.
    EXPECT_EQ(find().state, ClaimantState::kAlive);
    id.start_time = 0;  // It could not say it.
    EXPECT_EQ(find().state, ClaimantState::kAlive);
}

TEST_F(ClaimantTest, OneThatNobodyHasWaitedForIsGone) {
    const pid_t child = fork();
    if (child == 0) {
        claim();
        _exit(0);
    }
    siginfo_t info{};
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
    ASSERT_EQ(directory_->claims[0].guest_pid, static_cast<std::uint32_t>(child));
    EXPECT_EQ(kill(child, 0), 0);
    EXPECT_EQ(find().state, ClaimantState::kGone);
    waitpid(child, nullptr, 0);
    EXPECT_EQ(find().state, ClaimantState::kGone);
}

TEST_F(ClaimantTest, OneWhoseFirstThreadHasEndedIsAlive) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        claim();
        std::thread([&] {
            while (write(ends[1], "c", 1) == 1) {  // Until the test has read enough.
                usleep(1000);
            }
        }).detach();
        syscall(SYS_exit, 0);  // This thread, and nothing else.
    }
    close(ends[1]);
    char is_there = 0;
    char state = 0;
    while (state != 'Z' && read(ends[0], &is_there, 1) == 1) {
        std::ifstream stat("/proc/" + std::to_string(child) + "/stat");
        std::string number, name;
        stat >> number >> name >> state;
    }
    EXPECT_EQ(state, 'Z');
    EXPECT_EQ(find().state, ClaimantState::kAlive);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    EXPECT_EQ(find().state, ClaimantState::kGone);
    close(ends[0]);
}

TEST_F(ClaimantTest, OfAContainerAsSeenFromOutside) {
    if (!may_make_namespaces()) {
        GTEST_SKIP() << "no namespaces can be made here";
    }
    claim();
    const bool sees_all = directory_->claimants[0].pid_namespace == kFirstPidNamespace;
    const auto outside = [&](pid_t first) {
        const Claimant found = find();
        // What it is here is above that of the namespace's first, which is 1 there.
        return directory_->claims[0].guest_pid != found.pid &&
               found.state == ClaimantState::kAlive &&
               found.pid > static_cast<std::uint32_t>(first) &&
               kill(static_cast<pid_t>(found.pid), 0) == 0;
    };
    for (const Proc proc : {Proc::kOwn, Proc::kFromOutside}) {
        EXPECT_TRUE(in_container(
            proc,
            [&] {
                claim();
                return find().state == ClaimantState::kAlive;
            },
            outside));
        EXPECT_EQ(find().state, sees_all ? ClaimantState::kGone : ClaimantState::kUnknown);
    }
}

TEST_F(ClaimantTest, OutsideAsSeenFromAContainer) {
    if (!may_make_namespaces()) {
        GTEST_SKIP() << "no namespaces can be made here";
    }
    claim();
    for (const Proc proc : {Proc::kOwn, Proc::kFromOutside}) {
        EXPECT_TRUE(in_container(proc, [&] {
            const bool has_no_such_process =
                kill(static_cast<pid_t>(directory_->claims[0].guest_pid), 0) != 0;
            return has_no_such_process && find().state == ClaimantState::kUnknown;
        }));
    }
}

TEST_F(ClaimantTest, OfOneContainerAsSeenFromAnother) {
    if (!may_make_namespaces()) {
        GTEST_SKIP() << "no namespaces can be made here";
    }
    EXPECT_TRUE(in_container(
        Proc::kOwn,
        [&] {
            claim();
            return true;
        },
        [&](pid_t) {
            return in_container(Proc::kOwn, [&] {
                return getpid() == static_cast<pid_t>(directory_->claims[0].guest_pid) &&
                       find().state == ClaimantState::kUnknown;
            });
        }));
}

}  // namespace
}  // namespace gantry::session
