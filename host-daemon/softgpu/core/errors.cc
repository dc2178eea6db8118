#include "host-daemon/softgpu/core/errors.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace gantry::softgpu {
namespace {

std::atomic<int> g_poison{0};

std::mutex g_report_mutex;
void (*g_report_sink)(void*, const char*, std::size_t) = nullptr;
void* g_report_user = nullptr;

}  // namespace

CUresult poison() { return static_cast<CUresult>(g_poison.load(std::memory_order_relaxed)); }

void set_poison(CUresult error, const std::string& text) {
    int expected = 0;
    if (g_poison.compare_exchange_strong(expected, static_cast<int>(error))) {
        report(text);
    }
}

void report(const std::string& text) {
    static const bool silent = [] {
        const char* level = std::getenv("GANTRY_SOFT_LOG");
        return level != nullptr && std::strcmp(level, "off") == 0;
    }();
    if (text.empty()) {
        return;
    }
    const std::string line = "gantry soft GPU: " + text + "\n";
    const std::lock_guard lock(g_report_mutex);
    if (g_report_sink != nullptr) {
        g_report_sink(g_report_user, line.data(), line.size());
    } else if (!silent) {
        [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
    }
}

void report_refusal(const std::string& text) {
    static const bool loud = [] {
        const char* level = std::getenv("GANTRY_SOFT_LOG");
        return level != nullptr && std::strcmp(level, "refusals") == 0;
    }();
    if (loud) {
        report(text);
    }
}

void set_report_sink(void (*sink)(void*, const char*, std::size_t), void* user) {
    const std::lock_guard lock(g_report_mutex);
    g_report_sink = sink;
    g_report_user = user;
}

}  // namespace gantry::softgpu
