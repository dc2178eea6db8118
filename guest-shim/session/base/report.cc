#include "guest-shim/session/base/report.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>

#include "guest-shim/session/base/futex_mutex.h"

namespace gantry::session {

bool g_reporting = false;

namespace {

constexpr std::size_t kMostOps = 1024;
constexpr std::size_t kMostFailures = 512;  // Kinds of failure; a full table drops new ones.

/// One kind of failure. `key` is 0 while unused, else (op << 16 | result) + 1.
struct Failure {
    std::atomic<std::uint64_t> key;
    std::atomic<std::uint64_t> count;
};

Failure g_failures[kMostFailures];
std::atomic<std::uint64_t> g_round_trips[kMostOps];
FutexMutex g_file_mutex;
char g_path[512];
pid_t g_process = 0;
NameOfCommand g_name = nullptr;

const char* name_of(std::uint16_t op) {
    const char* name = g_name != nullptr ? g_name(op) : nullptr;
    return name != nullptr ? name : "unknown";
}

void write_failures(FILE* file) {
    for (const Failure& failure : g_failures) {
        const std::uint64_t key = failure.key.load(std::memory_order_acquire);
        if (key == 0) {
            return;
        }
        const auto op = static_cast<std::uint16_t>((key - 1) >> 16);
        const auto result = static_cast<unsigned>((key - 1) & 0xffff);
        const auto count = static_cast<unsigned long long>(failure.count.load());
        if (result == CUDA_ERROR_NOT_SUPPORTED) {
            std::fprintf(file, "refused %s %llu\n", name_of(op), count);
        } else {
            std::fprintf(file, "failed %s %u %llu\n", name_of(op), result, count);
        }
    }
}

}  // namespace

void set_name_of_command(NameOfCommand name) noexcept { g_name = name; }

bool start_report(const char* path) noexcept {
    g_process = getpid();
    const int bytes =
        std::snprintf(g_path, sizeof(g_path), "%s.%d", path, static_cast<int>(g_process));
    if (bytes <= 0 || static_cast<std::size_t>(bytes) >= sizeof(g_path)) {
        return false;
    }
    const int file = open(g_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0) {
        return false;
    }
    close(file);
    g_reporting = true;
    return true;
}

void note_failure(std::uint16_t op, CUresult result) noexcept {
    const std::uint64_t key =
        ((std::uint64_t{op} << 16) | (static_cast<std::uint32_t>(result) & 0xffff)) + 1;
    for (Failure& failure : g_failures) {
        std::uint64_t seen = failure.key.load(std::memory_order_acquire);
        const bool is_new =
            seen == 0 && failure.key.compare_exchange_strong(seen, key, std::memory_order_acq_rel);
        if (is_new || seen == key) {
            failure.count.fetch_add(1, std::memory_order_relaxed);
            if (is_new && reporting()) {
                write_report();
            }
            return;
        }
    }
}

void note_round_trip(std::uint16_t op) noexcept {
    if (op < kMostOps) {
        g_round_trips[op].fetch_add(1, std::memory_order_relaxed);
    }
}

void write_report() noexcept {
    if (!reporting() || getpid() != g_process) {
        return;  // A forked child must not write its parent's report.
    }
    Guard guard(g_file_mutex);
    FILE* file = std::fopen(g_path, "we");
    if (file == nullptr) {
        return;
    }
    write_failures(file);
    for (std::size_t op = 0; op < kMostOps; ++op) {
        if (const std::uint64_t count = g_round_trips[op].load(std::memory_order_relaxed)) {
            std::fprintf(file, "round-trip %s %llu\n", name_of(static_cast<std::uint16_t>(op)),
                         static_cast<unsigned long long>(count));
        }
    }
    std::fclose(file);
}

}  // namespace gantry::session
