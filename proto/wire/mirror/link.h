// ResumableLink: an ordered, exactly-once byte stream over TCP connections that may be cut.
//
// WHAT. Each end keeps what it has sent until the other has acknowledged it. When a connection
// breaks, the connecting end dials again; both ends tell each other how far they have received,
// and each sends again from there. Nothing is lost, nothing is delivered twice.
// PACKETS. PacketHeader, then `bytes` of stream data (kData) or nothing (kAck).
// THREADS. send() from any thread; it blocks while kMaxUnackedBytes are waiting. The receiver
// callback runs on the link's own thread.
// FAILURE. After `give_up_ms` without a connection the link closes and says so; so it does at once
// when the other end answers that it does not know the session.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace gantry::wire {

inline constexpr std::uint32_t kLinkMagic = 0x4b4e4c47;  // "GLNK"
inline constexpr std::uint32_t kLinkVersion = 1;
inline constexpr std::size_t kMaxUnackedBytes = 64ull << 20;
inline constexpr std::uint32_t kMaxPacketBytes = 1u << 20;

/// First bytes of every connection, from both ends. An all-zero session asks for a new one.
struct LinkHello {
    std::uint32_t magic = kLinkMagic;
    std::uint32_t version = kLinkVersion;
    std::uint64_t session[2] = {0, 0};
    std::uint64_t received = 0;       ///< Stream bytes this end has taken from the other.
    std::uint32_t refused = 0;        ///< 1: session unknown or version unfit; the link is over.
    std::uint32_t reserved = 0;
};

enum class PacketKind : std::uint32_t { kInvalid = 0, kData = 1, kAck = 2, kClose = 3 };

struct PacketHeader {
    PacketKind kind = PacketKind::kInvalid;
    std::uint32_t bytes = 0;
    std::uint64_t offset = 0;  ///< kData: stream offset of the first byte; kAck: bytes received.
};

class ResumableLink {
public:
    using Receiver = std::function<void(std::span<const std::byte>)>;
    /// Dials a new connection; -1 when it cannot now. Empty on the accepting end.
    using Dial = std::function<int()>;

    ResumableLink(Receiver receiver, std::function<void()> on_closed, std::uint64_t give_up_ms)
        : receiver_(std::move(receiver)),
          on_closed_(std::move(on_closed)),
          give_up_ms_(give_up_ms) {}
    ~ResumableLink();
    ResumableLink(const ResumableLink&) = delete;
    ResumableLink& operator=(const ResumableLink&) = delete;

    /// Connecting end: dials until it succeeds or gives up. Returns at once.
    void start_dialing(Dial dial);
    /// Accepting end: takes over a connection whose LinkHello has been read. Any older connection
    /// of this link is dropped. `mine` is the hello to answer with; `received` is filled in here.
    void adopt(int fd, const LinkHello& theirs, LinkHello mine);

    /// Appends one whole message to the stream. False once the link is closed.
    bool send(std::span<const std::byte> message);
    void close();
    [[nodiscard]] bool closed() const { return closed_.load(); }

private:
    void dial_loop();
    void serve_loop();
    bool handshake(int fd);
    bool run_connection(int fd);
    bool read_packets(int fd);
    void write_packets(int fd, const std::atomic<bool>& stop);
    void resume_from(std::uint64_t peer_received);
    bool wait_for_connection(int* fd);
    void finish();

    Receiver receiver_;
    std::function<void()> on_closed_;
    std::uint64_t give_up_ms_;
    Dial dial_;
    std::uint64_t session_[2] = {0, 0};

    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<std::byte> kept_;  ///< Stream bytes [base_, end_); a prefix may be acknowledged.
    std::uint64_t base_ = 0;       ///< Stream offset of the first byte kept.
    std::uint64_t acked_ = 0;      ///< The other end has everything before this offset.
    std::uint64_t end_ = 0;        ///< Stream offset after the last byte appended.
    std::uint64_t next_ = 0;       ///< Stream offset to send next on this connection.
    int pending_fd_ = -1;          ///< Adopted, not yet served.
    int active_fd_ = -1;           ///< Shut down by adopt(), close() and write errors.
    bool ack_wanted_ = false;
    std::uint64_t received_ = 0;   ///< Written by the reading thread under mutex_.
    std::atomic<bool> closed_{false};
    std::jthread thread_;
};

/// Reads or writes exactly that many bytes; false on end of file or error.
bool read_exactly(int fd, void* data, std::size_t bytes);
bool write_exactly(int fd, const void* data, std::size_t bytes);

}  // namespace gantry::wire
