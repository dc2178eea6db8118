#include "host-daemon/worker/sandbox.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

namespace gantry::worker {
namespace {

/// By name, so that one list serves every architecture's numbers. Files may still be opened: a CUDA
/// driver opens its device nodes late; the process's user decides what that can reach.
constexpr const char* kAllowed[] = {
    // memory and threads
    "brk",
    "mmap",
    "munmap",
    "mremap",
    "mprotect",
    "madvise",
    "mlock",
    "mlock2",
    "munlock",
    "membarrier",
    "memfd_create",
    "exit",
    "exit_group",
    "futex",
    "set_robust_list",
    "get_robust_list",
    "rseq",
    "sched_yield",
    // libc asks these of its own threads, by number; what they tell is no secret.
    "sched_getaffinity",
    "sched_getparam",
    "sched_getscheduler",
    "get_mempolicy",
    "set_mempolicy",
    "mbind",
    "move_pages",
    "gettid",
    "getpid",
    "getppid",
    "set_tid_address",
    "restart_syscall",
    // signals and time
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "rt_sigtimedwait",
    "sigaltstack",
    "clock_gettime",
    "clock_getres",
    "clock_nanosleep",
    "nanosleep",
    "gettimeofday",
    "timerfd_create",
    "timerfd_settime",
    "timer_create",
    "timer_settime",
    "timer_delete",
    // descriptors that exist, and files
    "read",
    "write",
    "readv",
    "writev",
    "pread64",
    "pwrite64",
    "preadv",
    "pwritev",
    "lseek",
    "close",
    "close_range",
    "dup",
    "dup2",
    "dup3",
    "ftruncate",
    "fallocate",
    "fstat",
    // A CUDA driver keeps what processes share of events in files of its own in /dev/shm.
    "fchmod",
    "unlink",
    "unlinkat",
    "newfstatat",
    "stat",
    "lstat",
    "statx",
    "statfs",
    "fstatfs",
    "access",
    "faccessat",
    "faccessat2",
    "open",
    "openat",
    "readlink",
    "readlinkat",
    "getdents64",
    "getcwd",
    "poll",
    "ppoll",
    "select",
    "pselect6",
    "epoll_create1",
    "epoll_ctl",
    "epoll_wait",
    "epoll_pwait",
    "eventfd2",
    "pipe2",
    // the control connection and the guest's socket; a local socket pair, no new connections out
    "accept",
    "accept4",
    "recvmsg",
    "recvfrom",
    "sendmsg",
    "sendto",
    "shutdown",
    "getsockopt",
    "getsockname",
    "getpeername",
    "socketpair",
    // what drivers ask about themselves
    "uname",
    "sysinfo",
    "getrandom",
    "getuid",
    "geteuid",
    "getgid",
    "getegid",
    "getrlimit",
    "getrusage",
    "prctl",
    "arch_prctl",
    "getcpu",
    "capget",
    "umask",
};

/// Calls that name a process, as the first argument: of this one only, or its user's other workers
/// could be killed and starved. (What is not held back yet: proto/decisions/0008.)
constexpr const char* kAllowedOfThisProcess[] = {"tgkill", "prlimit64", "sched_setaffinity",
                                                 "sched_setscheduler"};

/// fcntl() that has a signal sent to whomever it names (F_SETOWN, F_SETSIG, leases) is not among
/// them: it would kill a worker of the same user.
constexpr int kFcntlAllowed[] = {F_DUPFD,     F_DUPFD_CLOEXEC, F_GETFD,      F_SETFD,
                                 F_GETFL,     F_SETFL,         F_GETLK,      F_SETLK,
                                 F_SETLKW,    F_OFD_GETLK,     F_OFD_SETLK,  F_OFD_SETLKW,
                                 F_ADD_SEALS, F_GET_SEALS,     F_GETPIPE_SZ, F_SETPIPE_SZ};

/// Of the ioctl() numbers without a size, which sockets, terminals and nvidia-uvm have: the last
/// one's (below kUvmEnd), and these. FIOSETOWN, SIOCSPGRP, FIOASYNC and TIOCSTI are not.
constexpr std::uint32_t kPlainIoctlAllowed[] = {FIONBIO, FIONREAD, TCGETS};
constexpr std::uint32_t kUvmEnd = 1 << 10;

/// A thread, in the namespaces of its process.
constexpr std::uint64_t kThreadMask = CLONE_THREAD | CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS |
                                      CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;

Error sandbox_error(const char* what, int error) {
    return Error{Code::kInternal, "worker.sandbox",
                 fmt::format("{}: {}", what, std::strerror(error))};
}

/// Adds rules until one fails. Of an argument the low 32 bits count, as in the kernel: what the
/// others hold must not tell a call apart that is the same there.
class Rules {
public:
    explicit Rules(scmp_filter_ctx filter) : filter_(filter) {}

    void add(const char* name, std::uint32_t action = SCMP_ACT_ALLOW) {
        if (const int number = find(name); number >= 0) {
            result_ = seccomp_rule_add(filter_, action, number, 0);
        }
    }
    /// Allowed where the argument's bits in `mask` are `value`.
    void add_if(const char* name, unsigned argument, std::uint32_t mask, std::uint32_t value) {
        if (const int number = find(name); number >= 0) {
            result_ = seccomp_rule_add(filter_, SCMP_ACT_ALLOW, number, 1,
                                       SCMP_CMP(argument, SCMP_CMP_MASKED_EQ, mask, value));
        }
    }
    [[nodiscard]] int result() const { return result_; }

private:
    /// Negative: this system has no such call, or a rule has failed.
    [[nodiscard]] int find(const char* name) const {
        return result_ == 0 ? seccomp_syscall_resolve_name(name) : -1;
    }
    scmp_filter_ctx filter_;
    int result_ = 0;
};

int add_rules(scmp_filter_ctx filter) {
    constexpr std::uint32_t kAll = ~std::uint32_t{0};
    Rules rules(filter);
    for (const char* name : kAllowed) {
        rules.add(name);
    }
    for (const char* name : kAllowedOfThisProcess) {
        for (const auto process : {pid_t{0}, getpid()}) {  // 0: this one, where it means any
            rules.add_if(name, 0, kAll, static_cast<std::uint32_t>(process));
        }
    }
    rules.add_if("clone", 0, static_cast<std::uint32_t>(kThreadMask), CLONE_THREAD);
    rules.add("clone3", SCMP_ACT_ERRNO(ENOSYS));  // Its flags lie in memory; libc takes clone().
    for (const int command : kFcntlAllowed) {
        rules.add_if("fcntl", 1, kAll, static_cast<std::uint32_t>(command));
    }
    for (const std::uint32_t number : kPlainIoctlAllowed) {
        rules.add_if("ioctl", 1, kAll, number);
    }
    rules.add_if("ioctl", 1, ~(kUvmEnd - 1), 0);
    for (unsigned bit = 16; bit < 32; ++bit) {  // A direction or a size.
        rules.add_if("ioctl", 1, std::uint32_t{1} << bit, std::uint32_t{1} << bit);
    }
    return rules.result();
}

Result<void> install_filter() {
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(EPERM));
    if (filter == nullptr) {
        return sandbox_error("cannot make the syscall filter", ENOMEM);
    }
    int result = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1);
    if (result == 0) {
        result = add_rules(filter);
    }
    if (result == 0) {
        result = seccomp_load(filter);
    }
    seccomp_release(filter);
    return result == 0 ? Result<void>{}
                       : sandbox_error("cannot install the syscall filter", -result);
}

}  // namespace

Result<void> lock_down(bool with_syscall_filter) {
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
        return sandbox_error("cannot give up new privileges", errno);
    }
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);  // A core file would hold a tenant's device memory.
    return with_syscall_filter ? install_filter() : Result<void>{};
}

}  // namespace gantry::worker
