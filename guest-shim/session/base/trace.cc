#include "guest-shim/session/base/trace.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>

#include "proto/wire/wait.h"

namespace gantry::session {

bool g_tracing = false;

namespace {
int g_file = -1;
TraceFormat g_format = nullptr;
}  // namespace

void set_trace_format(TraceFormat format) noexcept { g_format = format; }

bool start_trace(const char* path) noexcept {
    g_file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    g_tracing = g_file >= 0;
    return g_tracing;
}

void trace_command(std::uint16_t op, const void* args, std::uint32_t args_bytes,
                   std::uint32_t trailing_bytes) noexcept {
    char text[1024];
    int used = 0;
    if (g_format != nullptr) {
        used = g_format(text, sizeof(text), op, args, args_bytes);
    }
    if (used <= 0) {
        std::snprintf(text, sizeof(text), "command %u", op);
    }
    char line[1200];
    const int bytes = std::snprintf(line, sizeof(line), "%llu %ld %s trailing=%u\n",
                                    static_cast<unsigned long long>(wire::monotonic_ns()),
                                    syscall(SYS_gettid), text, trailing_bytes);
    if (bytes > 0 && write(g_file, line, static_cast<std::size_t>(bytes)) < 0) {
        g_tracing = false;  // A full disk must not disturb the program.
    }
}

}  // namespace gantry::session
