#include "guest-shim/session/crew.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "guest-shim/session/base/futex_mutex.h"
#include "guest-shim/session/base/spin.h"
#include "guest-shim/session/connection.h"
#include "proto/wire/wait.h"

namespace gantry::session {
namespace {

struct Job {
    void (*work)(void*);
    void* data;
    unsigned wanted;  ///< Helpers that may still begin.
    std::atomic<std::uint32_t> users{0};
    Job* next;
};

FutexMutex g_mutex;  // Guards `wanted` and `next` of open jobs, too.
Job* g_jobs GANTRY_GUARDED_BY(g_mutex) = nullptr;
unsigned g_helpers GANTRY_GUARDED_BY(g_mutex) = 0;
std::atomic<std::uint32_t> g_calls{0};  // Changes when there may be work.
std::atomic<std::uint32_t> g_sleepers{0};
std::atomic<std::uint64_t> g_ended_ns{0};  // When the last job did.

/// A program that copies does so again soon, and to be woken takes as long as to copy 256 KiB.
constexpr std::uint64_t kAwakeNs = 100'000;
constexpr unsigned kLooks = 32;

void sleep_while(const std::atomic<std::uint32_t>& word, std::uint32_t value) {
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void wake(const std::atomic<std::uint32_t>& word, unsigned count) {
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

/// False at once where processors are few.
template <typename IsOver>
bool is_over_soon(IsOver is_over) {
    return g_connection.cpus >= kCpusToSpin && look_until(is_over, kAwakeNs, kLooks);
}

Job* begin_any() {
    Guard guard(g_mutex);
    for (Job* job = g_jobs; job != nullptr; job = job->next) {
        if (job->wanted != 0) {
            --job->wanted;
            job->users.fetch_add(1, std::memory_order_relaxed);
            return job;
        }
    }
    return nullptr;
}

void* help(void*) {
    bool was_busy = false;
    for (;;) {
        const std::uint32_t calls = g_calls.load(std::memory_order_acquire);
        Job* job = begin_any();
        if (job == nullptr) {
            const auto is_called = [&] { return g_calls.load(std::memory_order_acquire) != calls; };
            if (!was_busy || !is_over_soon(is_called)) {
                g_sleepers.fetch_add(1);  // Before the kernel looks at the word.
                sleep_while(g_calls, calls);
                g_sleepers.fetch_sub(1);
            }
            was_busy = false;
            continue;
        }
        was_busy = true;
        job->work(job->data);
        Guard guard(g_mutex);  // The job is its caller's again once this is free.
        if (job->users.fetch_sub(1, std::memory_order_release) == 1) {
            wake(job->users, 1);
        }
    }
    return nullptr;
}

void start_helpers(unsigned count) GANTRY_REQUIRES(g_mutex) {
    // Signals are the application's threads' business.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; g_helpers < count; ++g_helpers) {
        pthread_t thread;
        if (pthread_create(&thread, nullptr, help, nullptr) != 0) {
            break;
        }
        pthread_setname_np(thread, "gantry-copy");
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void open_job(Job* job, bool wakes) {
    Guard guard(g_mutex);
    if (wakes && g_helpers < job->wanted) {
        start_helpers(job->wanted);
    }
    job->next = g_jobs;
    g_jobs = job;
    g_calls.fetch_add(1);
}

void close_job(Job* job) {
    Guard guard(g_mutex);
    Job** link = &g_jobs;
    while (*link != job) {
        link = &(*link)->next;
    }
    *link = job->next;
}

}  // namespace

void work_together(Help help, void (*work)(void*), void* data) noexcept {
    const unsigned helpers = help.helpers < kMostHelpers ? help.helpers : kMostHelpers;
    if (helpers == 0) {
        work(data);
        return;
    }
    Job job{work, data, helpers, {}, nullptr};
    const bool wakes = help.is_long || wire::monotonic_ns() - g_ended_ns.load() < kAwakeNs;
    open_job(&job, wakes);
    if (wakes && g_sleepers.load() != 0) {
        wake(g_calls, helpers);
    }
    work(data);
    close_job(&job);
    is_over_soon([&] { return job.users.load(std::memory_order_acquire) == 0; });
    for (;;) {
        const std::uint32_t users = job.users.load(std::memory_order_acquire);
        if (users == 0) {
            break;
        }
        sleep_while(job.users, users);
    }
    g_ended_ns.store(wire::monotonic_ns());
    Guard guard(g_mutex);  // The last one may still hold it.
}

}  // namespace gantry::session
