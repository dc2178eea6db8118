#include "proto/control/channel.h"

#include <fcntl.h>
#include <google/protobuf/message_lite.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "proto/base/packet.h"

namespace gantry::control {
namespace {

Error system_error(Code code, const char* reason, const std::string& what) {
    return Error{code, reason, what + ": " + std::strerror(errno)};
}

Error bad_packet(const std::string& text) {
    return Error{Code::kInvalidArgument, "control.packet", text + "; the connection is dropped"};
}

Result<void> wait_readable(int fd, std::chrono::milliseconds timeout) {
    pollfd entry{fd, POLLIN, 0};
    const auto end = std::chrono::steady_clock::now() + timeout;
    for (;;) {
        int wait_ms = -1;
        if (timeout >= std::chrono::milliseconds{0}) {
            const auto left = std::chrono::ceil<std::chrono::milliseconds>(
                end - std::chrono::steady_clock::now());
            wait_ms = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1 << 30));
        }
        const int ready = ::poll(&entry, 1, wait_ms);
        if (ready > 0) {
            return {};
        }
        if (ready == 0) {
            return Error{
                Code::kDeadlineExceeded, "control.timeout",
                "the other side sent nothing within " + std::to_string(timeout.count()) + " ms"};
        }
        if (errno != EINTR) {
            return system_error(Code::kUnavailable, "control.poll", "poll failed");
        }
    }
}

Result<sockaddr_un> socket_address(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof address.sun_path) {
        return Error{Code::kInvalidArgument, "control.path",
                     "a unix socket path must have 1 to " +
                         std::to_string(sizeof address.sun_path - 1) + " characters: '" + path +
                         "'; choose a shorter run directory"};
    }
    std::memcpy(address.sun_path, path.data(), path.size());
    return address;
}

}  // namespace

Result<std::pair<PacketSocket, PacketSocket>> PacketSocket::pair() {
    int fds[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
        return system_error(Code::kResourceExhausted, "control.socket", "socketpair failed");
    }
    return std::pair{PacketSocket{UniqueFd{fds[0]}}, PacketSocket{UniqueFd{fds[1]}}};
}

Result<PacketSocket> PacketSocket::connect(const std::string& path) {
    GANTRY_ASSIGN(const sockaddr_un address, socket_address(path));
    UniqueFd fd{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
    if (!fd.valid()) {
        return system_error(Code::kResourceExhausted, "control.socket", "socket failed");
    }
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
        return system_error(Code::kUnavailable, "control.connect", "connecting to " + path);
    }
    return PacketSocket{std::move(fd)};
}

void PacketSocket::shut_down() {
    if (fd_.valid()) {
        ::shutdown(fd_.get(), SHUT_RDWR);
    }
}

Result<void> PacketSocket::send(std::span<const std::byte> bytes,
                                std::span<const int> descriptors) {
    if (bytes.empty() || bytes.size() > kMaxPacketBytes ||
        descriptors.size() > kMaxPacketDescriptors) {
        return Error{Code::kInvalidArgument, "control.packet_size",
                     "a packet of " + std::to_string(bytes.size()) + " bytes and " +
                         std::to_string(descriptors.size()) + " descriptors is over the limit of " +
                         std::to_string(kMaxPacketBytes) + " and " +
                         std::to_string(kMaxPacketDescriptors)};
    }
    if (send_packet_with(fd_.get(), bytes.data(), bytes.size(), descriptors.data(),
                         descriptors.size()) < 0) {
        const bool is_full = errno == EAGAIN || errno == EWOULDBLOCK;
        return system_error(is_full ? Code::kDeadlineExceeded : Code::kUnavailable, "control.send",
                            "sending a packet failed");
    }
    return {};
}

Result<Packet> PacketSocket::receive(std::chrono::milliseconds timeout) {
    if (timeout >= std::chrono::milliseconds{0}) {
        GANTRY_TRY(wait_readable(fd_.get(), timeout));
    }
    Packet packet;
    packet.bytes.resize(kMaxPacketBytes);
    std::array<int, kMaxPacketDescriptors> descriptors{};
    const ReceivedPacket got =
        receive_packet_with(fd_.get(), packet.bytes.data(), packet.bytes.size(), descriptors.data(),
                            descriptors.size());
    // Take ownership of the descriptors first, so that no error path below leaks one.
    for (std::size_t i = 0; i < got.descriptor_count; ++i) {
        packet.descriptors.emplace_back(descriptors[i]);
    }
    if (got.bytes < 0) {
        return system_error(Code::kUnavailable, "control.receive", "receiving a packet failed");
    }
    if (got.bytes == 0) {
        return Error{Code::kUnavailable, "control.closed", "the other side closed the connection"};
    }
    if (got.bytes_cut) {
        return bad_packet("a packet is longer than " + std::to_string(kMaxPacketBytes) + " bytes");
    }
    if (got.descriptors_cut) {
        return bad_packet("a packet carries more than " + std::to_string(kMaxPacketDescriptors) +
                          " descriptors, or this process has no descriptor left");
    }
    packet.bytes.resize(static_cast<std::size_t>(got.bytes));
    return packet;
}

Result<void> PacketSocket::send_message(const google::protobuf::MessageLite& message,
                                        std::span<const int> descriptors) {
    const std::size_t size = message.ByteSizeLong();
    if (size == 0 || size > kMaxPacketBytes) {
        return Error{
            Code::kInvalidArgument, "control.packet_size",
            message.GetTypeName() + " of " + std::to_string(size) + " bytes does not fit a packet"};
    }
    std::vector<std::byte> bytes(size);
    message.SerializeToArray(bytes.data(), static_cast<int>(size));
    return send(bytes, descriptors);
}

Result<std::vector<UniqueFd>> PacketSocket::receive_message(google::protobuf::MessageLite& message,
                                                            std::chrono::milliseconds timeout) {
    GANTRY_ASSIGN(Packet packet, receive(timeout));
    if (!message.ParseFromArray(packet.bytes.data(), static_cast<int>(packet.bytes.size()))) {
        return bad_packet("a packet of " + std::to_string(packet.bytes.size()) +
                          " bytes is not a " + message.GetTypeName());
    }
    return std::move(packet.descriptors);
}

Result<PacketListener> PacketListener::adopt(UniqueFd fd) {
    int type = 0;
    int listening = 0;
    socklen_t size = sizeof type;
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_SEQPACKET ||
        ::getsockopt(fd.get(), SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0 ||
        listening == 0) {
        return Error{Code::kInvalidArgument, "control.fd",
                     "descriptor " + std::to_string(fd.get()) +
                         " is not a listening SOCK_SEQPACKET socket; gantryd passes one by "
                         "--control-fd"};
    }
    ::fcntl(fd.get(), F_SETFD, FD_CLOEXEC);
    return PacketListener{std::move(fd)};
}

Result<PacketListener> PacketListener::bind(const std::string& path) {
    GANTRY_ASSIGN(const sockaddr_un address, socket_address(path));
    UniqueFd fd{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
    if (!fd.valid()) {
        return system_error(Code::kResourceExhausted, "control.socket", "socket failed");
    }
    ::unlink(path.c_str());
    ::fchmod(fd.get(), 0600);  // before bind: the socket file takes this mode
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
        ::listen(fd.get(), 4) != 0) {
        return system_error(Code::kUnavailable, "control.bind", "listening on " + path);
    }
    return PacketListener{std::move(fd)};
}

Result<PacketSocket> PacketListener::accept(std::chrono::milliseconds timeout) {
    if (timeout >= std::chrono::milliseconds{0}) {
        GANTRY_TRY(wait_readable(fd_.get(), timeout));
    }
    for (;;) {
        UniqueFd fd{::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC)};
        if (fd.valid()) {
            return PacketSocket{std::move(fd)};
        }
        if (errno != EINTR && errno != ECONNABORTED) {
            return system_error(Code::kUnavailable, "control.accept", "accept failed");
        }
    }
}

Result<void> BlobWriter::open() {
    if (!fd_.valid()) {
        fd_ = UniqueFd{::memfd_create("gantry-blob", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    }
    if (!fd_.valid()) {
        return system_error(Code::kResourceExhausted, "control.blob", "memfd_create failed");
    }
    return {};
}

Result<void> BlobWriter::add(std::span<const std::byte> bytes) {
    GANTRY_TRY(open());
    while (!bytes.empty()) {
        const ssize_t put = ::write(fd_.get(), bytes.data(), bytes.size());
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            return system_error(Code::kResourceExhausted, "control.blob", "writing a blob failed");
        }
        bytes = bytes.subspan(static_cast<std::size_t>(put));
        size_ += static_cast<std::uint64_t>(put);
    }
    return {};
}

Result<UniqueFd> BlobWriter::seal() && {
    GANTRY_TRY(open());
    if (::fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) !=
        0) {
        return system_error(Code::kInternal, "control.blob", "sealing a blob failed");
    }
    return std::move(fd_);
}

Result<UniqueFd> make_blob(std::span<const std::byte> bytes) {
    BlobWriter blob;
    GANTRY_TRY(blob.add(bytes));
    return std::move(blob).seal();
}

Result<MappedBlob> MappedBlob::map(UniqueFd fd, std::uint64_t bytes_expected,
                                   std::uint64_t bytes_max) {
    const int seals = ::fcntl(fd.get(), F_GET_SEALS);
    if (seals < 0 || (seals & (F_SEAL_WRITE | F_SEAL_SHRINK)) != (F_SEAL_WRITE | F_SEAL_SHRINK)) {
        return bad_packet("a blob is not a sealed memfd");
    }
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0 ||
        static_cast<std::uint64_t>(status.st_size) != bytes_expected ||
        bytes_expected > bytes_max) {
        return bad_packet("a blob of " + std::to_string(status.st_size) +
                          " bytes was announced as " + std::to_string(bytes_expected) + " (limit " +
                          std::to_string(bytes_max) + ")");
    }
    if (bytes_expected == 0) {
        return MappedBlob{std::move(fd), {}};
    }
    void* at = ::mmap(nullptr, bytes_expected, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (at == MAP_FAILED) {
        return system_error(Code::kResourceExhausted, "control.blob", "mapping a blob failed");
    }
    return MappedBlob{std::move(fd), {static_cast<const std::byte*>(at), bytes_expected}};
}

MappedBlob::~MappedBlob() {
    if (!bytes_.empty()) {
        ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
    }
}

Result<void> MappedBlob::parse(google::protobuf::MessageLite* message) const {
    constexpr std::size_t kParsedBytesMax = (1ULL << 31) - 1;
    if (bytes_.size() > kParsedBytesMax ||
        !message->ParseFromArray(bytes_.data(), static_cast<int>(bytes_.size()))) {
        return Error{Code::kInvalidArgument, "worker.protocol",
                     "a damaged " + message->GetTypeName()};
    }
    return {};
}

Result<MappedBlob> take_blob(std::span<UniqueFd> descriptors, std::size_t index,
                             std::uint64_t bytes, std::uint64_t bytes_max) {
    if (index >= descriptors.size()) {
        return Error{Code::kInvalidArgument, "worker.protocol", "a blob is missing"};
    }
    return MappedBlob::map(std::move(descriptors[index]), bytes, bytes_max);
}

Result<void> parse_blob(std::span<UniqueFd> descriptors, std::size_t index, std::uint64_t bytes,
                        google::protobuf::MessageLite* message, std::uint64_t bytes_max) {
    GANTRY_ASSIGN(const MappedBlob blob, take_blob(descriptors, index, bytes, bytes_max));
    return blob.parse(message);
}

}  // namespace gantry::control
