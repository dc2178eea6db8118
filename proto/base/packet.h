// One packet of a unix socket with descriptors beside it (SCM_RIGHTS).
//
// For gantryd, workers, gantry-guest, gantry-relay and the shim alike: libc only, no exceptions, no
// allocation. EINTR is retried. Received descriptors are close-on-exec and belong to the caller.
// Failure: -1 with errno set. Threads: any.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

namespace gantry {

inline constexpr std::size_t kPacketDescriptorsMax = 64;

struct ReceivedPacket {
    ssize_t bytes = -1;      ///< 0: the other end is closed; -1: errno says why.
    bool bytes_cut = false;  ///< The packet was longer than the buffer.
    /// More descriptors came than were asked for; those are gone.
    bool descriptors_cut = false;
    std::size_t descriptor_count = 0;  ///< How many were stored.
};

/// Sends one packet with `count` descriptors, at most kPacketDescriptorsMax. Returns as sendmsg().
inline ssize_t send_packet_with(int socket, const void* data, std::size_t bytes,
                                const int* descriptors, std::size_t count) {
    if (count > kPacketDescriptorsMax) {
        errno = EINVAL;
        return -1;
    }
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kPacketDescriptorsMax)] = {};
    iovec part{const_cast<void*>(data), bytes};  // sendmsg only reads.
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (count != 0) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        cmsghdr* header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(count * sizeof(int));
        std::memcpy(CMSG_DATA(header), descriptors, count * sizeof(int));
    }
    ssize_t sent = 0;
    do {
        sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent;
}

/// Receives one packet of up to `bytes` bytes and up to `capacity` descriptors (at most
/// kPacketDescriptorsMax). What the other end sent beyond either is dropped, and told.
inline ReceivedPacket receive_packet_with(int socket, void* data, std::size_t bytes,
                                          int* descriptors, std::size_t capacity) {
    ReceivedPacket packet;
    if (capacity > kPacketDescriptorsMax) {
        errno = EINVAL;
        return packet;
    }
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kPacketDescriptorsMax)];
    iovec part{data, bytes};
    msghdr message{};
    do {
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = control;
        // CMSG_LEN, not CMSG_SPACE: its padding would let the kernel hand out one more descriptor.
        message.msg_controllen = CMSG_LEN(capacity * sizeof(int));
        packet.bytes = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    } while (packet.bytes < 0 && errno == EINTR);
    if (packet.bytes < 0) {
        return packet;
    }
    packet.bytes_cut = (message.msg_flags & MSG_TRUNC) != 0;
    packet.descriptors_cut = (message.msg_flags & MSG_CTRUNC) != 0;
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        std::memcpy(descriptors + packet.descriptor_count, CMSG_DATA(header), count * sizeof(int));
        packet.descriptor_count += count;
    }
    return packet;
}

}  // namespace gantry
