#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "guest-shim/session/connection.h"
#include "guest-shim/session/session.h"
#include "tests/unit/shim/moving_rig.h"

// Of the shim's driver half, which these tests do without.
namespace gantry::session {
std::uint64_t table_hash() noexcept { return 0x1234; }
}  // namespace gantry::session

namespace gantry::test {
namespace {

/// A mapping of the guest's, by its first page in the region.
struct LoggedMapping {
    std::byte* base = nullptr;
    std::size_t first_page = 0;
    std::size_t pages = 0;
};
LoggedMapping g_logged[2];
MovingRig* g_rig = nullptr;
thread_local bool t_calls = false;  ///< This thread is in a call of the test's.
/// A page is dirty and writable, or neither, whenever this is free.
std::atomic_flag g_log_lock = ATOMIC_FLAG_INIT;

void lock_log() {
    while (g_log_lock.test_and_set(std::memory_order_acquire)) {
        wire::cpu_relax();
    }
}
void unlock_log() { g_log_lock.clear(std::memory_order_release); }

void note_guest_write(int, siginfo_t* info, void*) {
    auto* const at = static_cast<std::byte*>(info->si_addr);
    for (const LoggedMapping& mapping : g_logged) {
        if (at >= mapping.base && at < mapping.base + mapping.pages * wire::kPageBytes) {
            const auto page = static_cast<std::size_t>(at - mapping.base) / wire::kPageBytes;
            lock_log();
            g_rig->dirty[mapping.first_page + page].store(true);
            mprotect(mapping.base + page * wire::kPageBytes, wire::kPageBytes,
                     PROT_READ | PROT_WRITE);
            unlock_log();
            return;
        }
    }
    _exit(3);
}

/// Gives the log since the last time away: what is written from here on is in the next one.
void give_log(bool whole) {
    for (const LoggedMapping& mapping : g_logged) {
        if (whole) {
            lock_log();
            mprotect(mapping.base, mapping.pages * wire::kPageBytes, PROT_READ);
        }
        for (std::size_t i = 0; i < mapping.pages; ++i) {
            const std::size_t page = mapping.first_page + i;
            if (whole) {
                g_rig->dirty[page].store(false);
                g_rig->taken[page] = true;
            } else if (g_rig->dirty[page].load()) {
                lock_log();
                mprotect(mapping.base + i * wire::kPageBytes, wire::kPageBytes, PROT_READ);
                g_rig->dirty[page].store(false);
                g_rig->taken[page] = true;
                unlock_log();
            }
        }
        if (whole) {
            unlock_log();
        }
    }
}

void begin_to_log() {
    const session::Connection& connection = session::g_connection;
    const std::size_t pool = connection.layout.pinned / wire::kPageBytes;
    g_logged[0] = {reinterpret_cast<std::byte*>(connection.guest_directory), 0, pool};
    g_logged[1] = {reinterpret_cast<std::byte*>(wire::kPinnedBase), pool, kMovedPages - pool};
    struct sigaction action {};
    action.sa_sigaction = note_guest_write;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, nullptr);
}

/// Calls as often as it may. Before each call and behind it page-locked memory must be what the
/// host wrote for the last one.
void call_on(std::uint32_t thread, volatile std::uint64_t* word) {
    std::uint64_t done = 0;
    const auto check_word = [&](const char* when) {
        if (const std::uint64_t found = *word; found != done) {
            end_with(g_rig, "page-locked memory is stale: %llu instead of %llu %s",
                     static_cast<unsigned long long>(found), static_cast<unsigned long long>(done),
                     when);
        }
    };
    for (;;) {
        while (g_rig->calls_allowed.load() <= done) {
            usleep(200);
            check_word("between calls");
        }
        const MovedCall arguments{reinterpret_cast<std::uint64_t>(word)};
        std::uint64_t value = 0;
        t_calls = true;
        const CUresult result =
            session::call(static_cast<cuda::Op>(kMovedOp), &arguments, sizeof(arguments), nullptr,
                          0, &value, sizeof(value), nullptr, 0, nullptr);
        t_calls = false;
        ++done;
        if (result != CUDA_SUCCESS) {
            const auto state = session::g_connection.host->worker_state.load();
            end_with(
                g_rig, "a call that was disturbed: CUDA error %d, %s", static_cast<int>(result),
                state == wire::WorkerState::kDisowned ? "told that the session is another host's"
                                                      : "nobody said why");
        }
        if (value != done) {
            end_with(g_rig, "call %llu was answered as number %llu",
                     static_cast<unsigned long long>(done), static_cast<unsigned long long>(value));
        }
        check_word("behind a call");
        g_rig->calls_done[thread].store(done);
    }
}

/// As libc's, which this one takes the place of in this program.
int polled(pollfd* files, nfds_t count, int timeout_ms) {
    const timespec timeout{timeout_ms / 1000, timeout_ms % 1000 * 1'000'000L};
    return static_cast<int>(
        syscall(SYS_ppoll, files, count, timeout_ms < 0 ? nullptr : &timeout, nullptr, 0));
}

}  // namespace

/// Who waits for an answer looks at the host's words, who serves it, and then at the host's end of
/// its link (worker_is_gone()): so the test hears of the look.
extern "C" int poll(pollfd* files, nfds_t count, int timeout_ms) {
    const int result = polled(files, count, timeout_ms);
    if (t_calls && count == 1 && files->fd == session::g_connection.attachment.link_fd) {
        g_rig->looks.fetch_add(1);
    }
    return result;
}

void end_with(MovingRig* rig, const char* format, ...) {
    static std::atomic<bool> taken{false};
    if (!taken.exchange(true) && !rig->failed.load()) {
        va_list arguments;
        va_start(arguments, format);
        std::vsnprintf(rig->failure, sizeof(rig->failure), format, arguments);
        va_end(arguments);
        rig->failed.store(true);
        _exit(1);
    }
    for (;;) {
        pause();
    }
}

void run_moved_guest(MovingRig* rig, std::uint32_t threads) {
    g_rig = rig;
    if (session::start() != CUDA_SUCCESS) {
        end_with(rig, "the session does not start");
    }
    std::vector<std::thread> callers;
    std::vector<volatile std::uint64_t*> words;
    for (std::uint32_t i = 0; i < threads; ++i) {
        words.push_back(
            static_cast<volatile std::uint64_t*>(session::pinned_allocate(wire::kPageBytes)));
        *words.back() = 0;
    }
    begin_to_log();
    for (std::uint32_t i = 0; i < threads; ++i) {
        callers.emplace_back([i, &words] { call_on(i, words[i]); });
    }
    rig->started.store(true);
    for (;;) {
        if (rig->log_asked.load() == rig->log_given.load()) {
            usleep(100);
            continue;
        }
        give_log(rig->log_whole.load());
        rig->log_given.fetch_add(1);
    }
}

}  // namespace gantry::test
