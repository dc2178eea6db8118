// ResumableLink: an ordered, exactly-once byte stream over TCP connections that may be cut.
//
// WHAT. Each end keeps what it has sent until the other has acknowledged it. When a connection
// breaks, the connecting end dials again; both ends tell each other how far they have received,
// and each sends again from there. Nothing is lost, nothing is delivered twice.
// PACKETS. PacketHeader, then `bytes` of stream data (kData) or nothing (kAck). A dialling end that
// has been silent for kProbeMs sends a kAck: an answer of a host that knows no such connection (the
// guest has been moved there) ends the wait for bytes that would never come.
// TAKE-OVER. An accepting end elsewhere may go on with the dialler's stream where another one left
// it, kTakenOver: it names the stream offset up to which it has it, and its own stream is a new one
// that begins at 0, under a new epoch. Whoever dials keeps all that no kAck has covered, so an end
// that may be taken over acknowledges only what the other would have (`ackable`).
// THREADS. send() from any thread; it blocks while kMaxUnackedBytes are waiting. The receiver
// callback runs on the link's own thread.
// FAILURE. After `give_up_ms` without a connection the link closes and says so; so it does at once
// when the other end answers that it does not know the session. kNotNow is as no answer.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "proto/base/mutex.h"

namespace gantry::wire {

inline constexpr std::uint32_t kLinkMagic = 0x4b4e4c47;  // "GLNK"
inline constexpr std::uint32_t kLinkVersion = 2;
inline constexpr std::size_t kMaxUnackedBytes = 64ull << 20;
inline constexpr std::uint32_t kMaxPacketBytes = 1u << 20;

inline constexpr std::uint64_t kProbeMs = 100;
inline constexpr std::uint64_t kGoodbyeMs = 500;  ///< close() waits so long to be heard.

enum class LinkVerdict : std::uint32_t {
    kAccepted = 0,
    kUnknown = 1,    ///< No such session, or the version is unfit: the link is over.
    kNotNow = 2,     ///< On its way to this host, or from it: dial again.
    kTakenOver = 3,  ///< `received` is of the dialler's stream; the acceptor's begins anew.
};

/// First bytes of every connection, from both ends. An all-zero session asks for a new one.
struct LinkHello {
    std::uint32_t magic = kLinkMagic;
    std::uint32_t version = kLinkVersion;
    std::uint64_t session[2] = {0, 0};
    std::uint64_t received = 0;  ///< Stream bytes this end has taken from the other.
    LinkVerdict verdict = LinkVerdict::kAccepted;  ///< Of the accepting end.
    std::uint32_t reserved = 0;
    std::uint64_t epoch = 0;  ///< Of the acceptor's stream; `received` is of that one.
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
    /// Before the first byte of a new stream: what came of the old one in part is to be forgotten.
    using TakenOver = std::function<void(std::uint64_t epoch)>;
    /// The offset up to which the dialler may forget its stream; nullopt: nothing more now.
    using Ackable = std::function<std::optional<std::uint64_t>()>;

    ResumableLink(Receiver receiver, std::function<void()> on_closed, std::uint64_t give_up_ms)
        : receiver_(std::move(receiver)),
          on_closed_(std::move(on_closed)),
          give_up_ms_(give_up_ms) {}
    ~ResumableLink();
    ResumableLink(const ResumableLink&) = delete;
    ResumableLink& operator=(const ResumableLink&) = delete;

    /// Connecting end: dials until it succeeds or gives up. Returns at once.
    void start_dialing(Dial dial, TakenOver taken_over = {});
    /// Accepting end, before the first connection: goes on with the dialler's stream from
    /// `received` on, as `epoch`.
    void take_over(std::uint64_t received, std::uint64_t epoch);
    /// Accepting end, before the first connection. Called under the link's lock.
    void set_ackable(Ackable ackable) { ackable_ = std::move(ackable); }
    /// What `ackable` answers may have grown.
    void look_at_acks();
    /// Accepting end: takes over a connection whose LinkHello has been read. Any older connection
    /// of this link is dropped. `mine` is the hello to answer with; verdict, epoch and `received`
    /// are filled in here.
    void adopt(int fd, const LinkHello& theirs, LinkHello mine);
    /// Connecting end: waits until the host has drawn the link's name; false once it is closed.
    bool wait_for_name(std::uint64_t (*session)[2]);
    /// Breaks the connection that there is, if any. The dialler will dial again.
    void cut();

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
    void note_acked(std::uint64_t offset) GANTRY_REQUIRES(mutex_);
    bool wait_for_connection(int* fd);
    void finish();

    Receiver receiver_;
    std::function<void()> on_closed_;
    std::uint64_t give_up_ms_;
    Dial dial_;
    TakenOver taken_over_;
    Ackable ackable_;

    Mutex mutex_;
    CondVar changed_;
    std::uint64_t session_[2] GANTRY_GUARDED_BY(mutex_) = {0, 0};
    std::uint64_t epoch_ GANTRY_GUARDED_BY(mutex_) = 0;
    /// Stream bytes [base_, end_); a prefix may be acknowledged.
    std::vector<std::byte> kept_ GANTRY_GUARDED_BY(mutex_);
    /// Stream offset of the first byte kept.
    std::uint64_t base_ GANTRY_GUARDED_BY(mutex_) = 0;
    /// The other end has everything before this offset.
    std::uint64_t acked_ GANTRY_GUARDED_BY(mutex_) = 0;
    /// Stream offset after the last byte appended.
    std::uint64_t end_ GANTRY_GUARDED_BY(mutex_) = 0;
    /// Stream offset to send next on this connection.
    std::uint64_t next_ GANTRY_GUARDED_BY(mutex_) = 0;
    int pending_fd_ GANTRY_GUARDED_BY(mutex_) = -1;  ///< Adopted, not yet served.
    /// Shut down by adopt(), close() and write errors.
    int active_fd_ GANTRY_GUARDED_BY(mutex_) = -1;
    bool ack_wanted_ GANTRY_GUARDED_BY(mutex_) = false;
    /// Written by the reading thread under mutex_.
    std::uint64_t received_ GANTRY_GUARDED_BY(mutex_) = 0;
    std::atomic<bool> closed_{false};
    std::jthread thread_;
};

/// Reads or writes exactly that many bytes; false on end of file or error.
bool read_exactly(int fd, void* data, std::size_t bytes);
bool write_exactly(int fd, const void* data, std::size_t bytes);

}  // namespace gantry::wire
