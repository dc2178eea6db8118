// Packets with file descriptors over a SOCK_SEQPACKET unix socket: the transport of worker.proto.
//
// Used by gantryd and by gantry-worker alike. Invariant: a packet is delivered whole with exactly
// its descriptors, or not at all; every received descriptor is close-on-exec and owned by the
// Packet. Both sides treat the other as hostile: a truncated packet, too many descriptors or an
// undecodable message is an error of that packet and the caller must drop the connection.
// Threads: one sender and one receiver at a time may use a PacketSocket; senders do not lock.
// Failure: Code::kUnavailable when the other side is gone, kDeadlineExceeded on a timeout,
// kInvalidArgument for a malformed packet. Cost: one system call per packet.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/result.h"
#include "proto/control/unique_fd.h"

namespace google::protobuf {
class MessageLite;
}

namespace gantry::control {

/// Raised when an older side would misread a message; compared in Start.
inline constexpr std::uint32_t kWorkerProtocolVersion = 10;
/// Fits a unix socket's default send buffer (208 KiB) with room for the kernel's own accounting.
inline constexpr std::size_t kMaxPacketBytes = 128 * 1024;
/// The pieces of memory of one ExportMemory; other messages carry a few.
inline constexpr std::size_t kMaxPacketDescriptors = 64;
/// Bound on a graph or image blob that a side accepts unless it says otherwise.
inline constexpr std::uint64_t kMaxBlobBytes = 4ULL << 30;

struct Packet {
    std::vector<std::byte> bytes;
    std::vector<UniqueFd> descriptors;
};

/// No deadline: wait as long as it takes.
inline constexpr std::chrono::milliseconds kForever{-1};

class PacketSocket {
public:
    PacketSocket() = default;
    explicit PacketSocket(UniqueFd fd) : fd_(std::move(fd)) {}

    /// A connected pair, close-on-exec.
    static Result<std::pair<PacketSocket, PacketSocket>> pair();
    /// Connects to the listening socket at `path`; kUnavailable when nobody listens there.
    static Result<PacketSocket> connect(const std::string& path);

    [[nodiscard]] bool valid() const { return fd_.valid(); }
    [[nodiscard]] int fd() const { return fd_.get(); }
    void close() { fd_.reset(); }
    /// Wakes a receiver blocked in another thread, which then sees the end of the connection.
    void shut_down();

    Result<void> send(std::span<const std::byte> bytes, std::span<const int> descriptors);
    Result<Packet> receive(std::chrono::milliseconds timeout = kForever);

    /// Serialises and sends; refuses a message over kMaxPacketBytes.
    Result<void> send_message(const google::protobuf::MessageLite& message,
                              std::span<const int> descriptors = {});
    /// Receives into `message`; the packet's descriptors are returned.
    Result<std::vector<UniqueFd>> receive_message(google::protobuf::MessageLite& message,
                                                  std::chrono::milliseconds timeout = kForever);

private:
    UniqueFd fd_;
};

/// Listening side. gantryd creates it in its run directory and lets the worker inherit it
/// (--control-fd), so that a restarted gantryd can connect again by path.
class PacketListener {
public:
    PacketListener() = default;
    /// Adopts an inherited listening socket; refuses anything that is not one.
    static Result<PacketListener> adopt(UniqueFd fd);
    /// Binds `path` with mode 0600 (replacing a stale socket file) and listens.
    static Result<PacketListener> bind(const std::string& path);

    [[nodiscard]] int fd() const { return fd_.get(); }
    [[nodiscard]] int release() { return fd_.release(); }
    Result<PacketSocket> accept(std::chrono::milliseconds timeout = kForever);

private:
    explicit PacketListener(UniqueFd fd) : fd_(std::move(fd)) {}
    UniqueFd fd_;
};

/// A sealed memfd that is written piece by piece.
class BlobWriter {
public:
    Result<void> add(std::span<const std::byte> bytes);
    Result<void> add(std::string_view bytes) { return add(std::as_bytes(std::span(bytes))); }
    [[nodiscard]] std::uint64_t size() const { return size_; }
    Result<UniqueFd> seal() &&;

private:
    Result<void> open();
    UniqueFd fd_;
    std::uint64_t size_ = 0;
};

/// A sealed memfd holding `bytes` (no one can change or shrink it any more).
Result<UniqueFd> make_blob(std::span<const std::byte> bytes);
inline Result<UniqueFd> make_blob(std::string_view bytes) {
    return make_blob(std::as_bytes(std::span(bytes)));
}

/// A received blob mapped read-only; refused unless it is sealed and exactly `bytes_expected` long.
class MappedBlob {
public:
    static Result<MappedBlob> map(UniqueFd fd, std::uint64_t bytes_expected,
                                  std::uint64_t bytes_max = kMaxBlobBytes);
    MappedBlob(MappedBlob&& other) noexcept
        : fd_(std::move(other.fd_)), bytes_(std::exchange(other.bytes_, {})) {}
    MappedBlob& operator=(MappedBlob&&) = delete;
    ~MappedBlob();

    [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
    [[nodiscard]] std::string_view text() const {
        return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
    }
    /// Failure: `worker.protocol` when it is no such message.
    Result<void> parse(google::protobuf::MessageLite* message) const;
    [[nodiscard]] int fd() const { return fd_.get(); }

private:
    MappedBlob(UniqueFd fd, std::span<const std::byte> bytes) : fd_(std::move(fd)), bytes_(bytes) {}
    UniqueFd fd_;
    std::span<const std::byte> bytes_;
};

/// The blob that came as a message's descriptor `index`. Failure: `worker.protocol` when it is
/// missing, or as MappedBlob::map.
Result<MappedBlob> take_blob(std::span<UniqueFd> descriptors, std::size_t index,
                             std::uint64_t bytes, std::uint64_t bytes_max = kMaxBlobBytes);
/// The same, parsed.
Result<void> parse_blob(std::span<UniqueFd> descriptors, std::size_t index, std::uint64_t bytes,
                        google::protobuf::MessageLite* message,
                        std::uint64_t bytes_max = kMaxBlobBytes);

}  // namespace gantry::control
