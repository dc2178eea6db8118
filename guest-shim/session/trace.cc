#include "guest-shim/session/trace.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>

#include "proto/wire/wait.h"

namespace gantry::session {

bool g_tracing = false;

namespace {
int g_file = -1;
}  // namespace

bool start_trace(const char* path) noexcept {
    g_file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    g_tracing = g_file >= 0;
    return g_tracing;
}

void trace_command(std::uint16_t op, const void* args, std::uint32_t args_bytes,
                   const void* trailing, std::uint32_t trailing_bytes) noexcept {
    (void)args;
    (void)trailing;
    char line[160];
    const int bytes =
        std::snprintf(line, sizeof(line), "%llu tid=%ld op=%u args=%u trailing=%u\n",
                      static_cast<unsigned long long>(wire::monotonic_ns()), syscall(SYS_gettid),
                      op, args_bytes, trailing_bytes);
    if (bytes > 0 && write(g_file, line, static_cast<std::size_t>(bytes)) < 0) {
        g_tracing = false;  // A full disk must not disturb the program.
    }
}

}  // namespace gantry::session
