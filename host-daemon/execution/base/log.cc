#include "host-daemon/execution/base/log.h"

#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>

namespace gantry::worker {
namespace {

std::atomic<int> log_fd{2};
std::atomic<std::uint64_t> limited_count{0};

void write_line(const char* format, va_list arguments) {
    char line[1024];
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    int used = std::snprintf(line, sizeof(line),
                             "%lld.%03ld gantry-worker[%d]: ", static_cast<long long>(now.tv_sec),
                             now.tv_nsec / 1'000'000, static_cast<int>(getpid()));
    const int text = std::vsnprintf(line + used, sizeof(line) - static_cast<std::size_t>(used) - 1,
                                    format, arguments);
    used += text > 0 ? text : 0;
    if (used > static_cast<int>(sizeof(line)) - 2) {
        used = static_cast<int>(sizeof(line)) - 2;
    }
    line[used++] = '\n';
    [[maybe_unused]] const ssize_t written =
        write(log_fd.load(), line, static_cast<std::size_t>(used));
}

}  // namespace

void set_log_descriptor(int fd) { log_fd.store(fd); }

void log_line(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    write_line(format, arguments);
    va_end(arguments);
}

void log_limited(const char* format, ...) {
    const std::uint64_t count = limited_count.fetch_add(1);
    if (count >= 20 && count % 1000 != 0) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    write_line(format, arguments);
    va_end(arguments);
}

}  // namespace gantry::worker
