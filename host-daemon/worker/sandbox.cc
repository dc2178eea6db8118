#include "host-daemon/worker/sandbox.h"

#include <fmt/format.h>
#include <seccomp.h>
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
    "clone",
    "clone3",
    "exit",
    "exit_group",
    "futex",
    "set_robust_list",
    "get_robust_list",
    "rseq",
    "sched_yield",
    "sched_getaffinity",
    "sched_setaffinity",
    "sched_getparam",
    "sched_getscheduler",
    "sched_setscheduler",
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
    "fcntl",
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
    "ioctl",
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
constexpr const char* kAllowedOfThisProcess[] = {"tgkill", "prlimit64"};

Error sandbox_error(const char* what, int error) {
    return Error{Code::kInternal, "worker.sandbox",
                 fmt::format("{}: {}", what, std::strerror(error))};
}

Result<void> install_filter() {
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(EPERM));
    if (filter == nullptr) {
        return sandbox_error("cannot make the syscall filter", ENOMEM);
    }
    int result = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1);
    for (const char* name : kAllowed) {
        const int number = seccomp_syscall_resolve_name(name);
        if (result == 0 && number >= 0) {
            result = seccomp_rule_add(filter, SCMP_ACT_ALLOW, number, 0);
        }
    }
    for (const char* name : kAllowedOfThisProcess) {
        const int number = seccomp_syscall_resolve_name(name);
        for (const auto process : {pid_t{0}, getpid()}) {  // 0: this one, where it means any
            if (result == 0 && number >= 0) {
                result =
                    seccomp_rule_add(filter, SCMP_ACT_ALLOW, number, 1,
                                     SCMP_A0_32(SCMP_CMP_EQ, static_cast<std::uint32_t>(process)));
            }
        }
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
