// unix:PATH, the region of a process on the host itself: gantryd hands out a memfd.
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "guest-shim/session/transport/transport.h"
#include "proto/base/packet.h"
#include "proto/cuda/abi.h"
#include "proto/wire/attach.h"

namespace gantry::session {
namespace {

bool connect_to(const char* path, int* out, AttachProblem* problem) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (std::strlen(path) >= sizeof(address.sun_path)) {
        return fail(problem, CUDA_ERROR_INVALID_VALUE, "unix:%s: the path is longer than %zu bytes",
                    path, sizeof(address.sun_path) - 1);
    }
    std::memcpy(address.sun_path, path, std::strlen(path) + 1);
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return fail(problem, CUDA_ERROR_OPERATING_SYSTEM, "socket: %s", std::strerror(errno));
    }
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
        const int error = errno;
        close(fd);
        return fail(problem, CUDA_ERROR_NO_DEVICE,
                    "unix:%s: %s; is gantryd running, and is GANTRY_TRANSPORT right?", path,
                    std::strerror(error));
    }
    *out = fd;
    return true;
}

/// Receives the reply and, beside it, the region's descriptor (-1 when none came).
bool receive_reply(int link, unsigned timeout_ms, wire::AttachReply* reply, int* region_fd) {
    pollfd waiting{link, POLLIN, 0};
    if (poll(&waiting, 1, static_cast<int>(timeout_ms)) <= 0) {
        return false;
    }
    const ReceivedPacket packet = receive_packet_with(link, reply, sizeof(*reply), region_fd, 1);
    if (packet.bytes != static_cast<ssize_t>(sizeof(*reply))) {
        return false;
    }
    reply->text[sizeof(reply->text) - 1] = '\0';
    return true;
}

bool check_reply(const char* path, const wire::AttachReply& reply, int region_fd,
                 AttachProblem* problem) {
    if (reply.magic != wire::kRegionMagic) {
        return fail(problem, CUDA_ERROR_NO_DEVICE, "unix:%s: the peer is not gantryd", path);
    }
    if (reply.accepted != 1) {
        const std::uint32_t error = reply.cuda_error != 0
                                        ? reply.cuda_error
                                        : static_cast<std::uint32_t>(CUDA_ERROR_NO_DEVICE);
        return fail(problem, error, "gantryd at %s refuses this process: %s", path, reply.text);
    }
    if (reply.wire_version != wire::kWireVersion) {
        return fail(problem, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
                    "gantryd at %s speaks wire version %u, this libcuda.so.1 version %u; install "
                    "the same Gantry version on both sides",
                    path, reply.wire_version, wire::kWireVersion);
    }
    if (region_fd < 0) {
        return fail(problem, CUDA_ERROR_OPERATING_SYSTEM,
                    "gantryd at %s sent no region; its log says why", path);
    }
    return true;
}

}  // namespace

bool attach_unix(const char* path, std::uint64_t table_hash, unsigned timeout_ms, Attachment* out,
                 AttachProblem* problem) {
    if (!connect_to(path, &out->link_fd, problem)) {
        return false;
    }
    const int link = out->link_fd;  // There from here on: the child of a fork closes it.
    const auto hang_up = [&] {
        out->link_fd = -1;
        close(link);
    };
    wire::AttachRequest request;
    request.table_hash = table_hash;
    request.guest_pid = static_cast<std::uint32_t>(getpid());
    wire::AttachReply reply{};
    int region_fd = -1;
    if (send(link, &request, sizeof(request), MSG_NOSIGNAL) !=
            static_cast<ssize_t>(sizeof(request)) ||
        !receive_reply(link, timeout_ms, &reply, &region_fd)) {
        hang_up();
        return fail(problem, CUDA_ERROR_NO_DEVICE, "unix:%s: no answer from gantryd in %u ms", path,
                    timeout_ms);
    }
    struct stat status {};
    if (!check_reply(path, reply, region_fd, problem) || fstat(region_fd, &status) != 0 ||
        status.st_size <= 0) {
        hang_up();
        if (region_fd >= 0) {
            close(region_fd);
        }
        return problem->cuda_error != 0
                   ? false
                   : fail(problem, CUDA_ERROR_OPERATING_SYSTEM, "unix:%s: empty region", path);
    }
    const auto bytes = static_cast<std::uint64_t>(status.st_size);
    void* region = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, region_fd, 0);
    if (region == MAP_FAILED) {
        const int error = errno;
        hang_up();
        close(region_fd);
        return fail(problem, CUDA_ERROR_OPERATING_SYSTEM, "mapping a region of %llu bytes: %s",
                    static_cast<unsigned long long>(bytes), std::strerror(error));
    }
    *out = Attachment{
        static_cast<std::byte*>(region), bytes, region_fd, link, wire::Sleep::kFutex, true};
    return true;
}

}  // namespace gantry::session
