// Which process a claim is of, from within its PID namespace, from outside and from another.
#include "guest-shim/session/claimant.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>

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
        directory_->pid_namespaces[0] = own_pid_namespace();
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

enum class Proc { kOwn, kFromOutside };

/// Runs `body` as the second process of a new PID namespace, as a container's program mostly is not
/// the first one; `outside` beside it, with its number there, whose end is its end. False where one
/// of them did not return true.
bool in_container(Proc proc, const std::function<bool()>& body,
                  const std::function<bool(pid_t)>& outside = [](pid_t) { return true; }) {
    return in_process([&] {
        int ready[2];
        if (unshare(CLONE_NEWPID) != 0 || pipe(ready) != 0) {
            std::perror("a PID namespace of the test's own (it needs root)");
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
    directory_->pid_namespaces[0] = 0;  // It could not say it.
    EXPECT_EQ(find().state, ClaimantState::kGone);
    claim();
    EXPECT_EQ(find().state, ClaimantState::kAlive);
}

TEST_F(ClaimantTest, OfAContainerAsSeenFromOutside) {
    const bool sees_all = own_pid_namespace() == kFirstPidNamespace;
    const auto outside = [&](pid_t first) {
        const Claimant found = find();
        // Its number there is 2, and what it is here is above that of the namespace's first.
        return directory_->claims[0].guest_pid == 2 && found.state == ClaimantState::kAlive &&
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
    EXPECT_TRUE(in_container(
        Proc::kOwn,
        [&] {
            claim();
            return true;
        },
        [&](pid_t) {
            return in_container(Proc::kOwn, [&] {
                return getpid() == 2 && find().state == ClaimantState::kUnknown;
            });
        }));
}

}  // namespace
}  // namespace gantry::session
