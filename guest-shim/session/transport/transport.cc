#include "guest-shim/session/transport/transport.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "proto/cuda/abi.h"
#include "proto/wire/attach.h"

namespace gantry::session {
namespace {

/// The text after `scheme`, or null when the setting has another scheme.
const char* after(const char* setting, const char* scheme) {
    const std::size_t bytes = std::strlen(scheme);
    return std::strncmp(setting, scheme, bytes) == 0 ? setting + bytes : nullptr;
}

}  // namespace

bool fail(AttachProblem* problem, std::uint32_t cuda_error, const char* format, ...) {
    problem->cuda_error = cuda_error;
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(problem->text, sizeof(problem->text), format, arguments);
    va_end(arguments);
    return false;
}

bool attach(const char* setting, std::uint64_t table_hash, unsigned timeout_ms, Attachment* out,
            AttachProblem* problem) {
    if (setting == nullptr || *setting == '\0') {
        char path[256];
        if (find_ivshmem(path, sizeof(path))) {
            return attach_ivshmem(path, out, problem);
        }
        return attach_unix(wire::kDefaultGuestSocket, table_hash, timeout_ms, out, problem);
    }
    if (const char* path = after(setting, "unix:")) {
        return attach_unix(path, table_hash, timeout_ms, out, problem);
    }
    if (const char* path = after(setting, "file:")) {
        return attach_file(path, out, problem);
    }
    if (const char* path = after(setting, "ivshmem:")) {
        return attach_ivshmem(path, out, problem);
    }
    return fail(problem, CUDA_ERROR_INVALID_VALUE,
                "GANTRY_TRANSPORT=%s: unknown transport; use unix:PATH, ivshmem:[PATH] or "
                "file:PATH (over TCP: unix:PATH of a gantry-guest)",
                setting);
}

}  // namespace gantry::session
