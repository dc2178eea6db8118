// Mirror: one region kept alike on two machines over a ResumableLink, for guests that share no
// memory with their host. Neither shim nor worker knows: each has a region of its own.
//
//   shim <-> region <-> GuestMirror (gantry-guest) == link == HostMirror (gantry-relay) <-> region
//                                                                                       <-> worker
//
// WHAT. The guest end acts as the region's host towards the shim, the host end as the guest towards
// the worker. Each forwards the words its side owns, in the order in which they were published:
// ring records guest to host; what is shown of events, replies with their bulk bytes, then the
// host's other words, host to guest.
// PINNED POOL. Both sides may write it. Each end compares it with a shadow and sends the bytes that
// changed, byte by byte, before the records or replies that may depend on them, and every
// millisecond while anything is in flight, so that even a flag polled by a running kernel arrives.
// TAKE-OVER. A host end elsewhere goes on with the guest's stream from a MirrorPosition (words.h);
// its own stream begins anew. It is silent until the guest's kResume for its epoch, which stands
// behind whatever the guest had sent: then it sends the whole pinned pool, the answers that the
// guest has not got, and all words. The guest's end forwards nothing meanwhile, and takes from the
// pool what differs from what both had: a byte that its own side has changed since stays.
// HOSTILE. The host end checks every frame against the layout; a bad one ends the link.
// COST. A comparison of the pool's used part (GuestWords.pinned_high_water) per exchange: this is
// the transport that works everywhere, not the fast one.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "proto/base/mutex.h"
#include "proto/wire/mirror/words.h"
#include "proto/wire/region.h"
#include "proto/wire/ring.h"

namespace gantry::wire {

enum class FrameKind : std::uint32_t {
    kInvalid = 0,
    kClaim = 1,         ///< Guest: the channel's claim; argument = generation.
    kGuestWords = 2,    ///< Guest: announce_seen and pinned_high_water.
    kRing = 3,          ///< Guest: raw ring bytes; argument = position of the first.
    kPinned = 4,        ///< Both: changed bytes; argument = offset in the pinned pool.
    kServe = 5,         ///< Host: served or refused, with the text.
    kBulk = 6,          ///< Host: bytes of the bulk area; argument = offset in it.
    kReply = 7,         ///< Host: a lane's reply page up to its payload; argument = lane.
    kHostWords = 8,     ///< Host: HostWords but for the guest's touches.
    kAttach = 9,        ///< Guest: AttachRequest; the first frame of a session (endpoint.h).
    kAttached = 10,     ///< Host: AttachReply; the first frame of every stream of its.
    kResume = 11,       ///< Guest: ResumeImage; argument = the epoch that it has heard of.
    kPinnedImage = 12,  ///< Host, taken over: bytes as they stand; argument = offset in the pool.
    kPinnedEnd = 13,    ///< Host, taken over: the image is complete; argument = epoch.
    kEvents = 14,       ///< Host: EventsImage, then an EventWord for each word that has changed.
};

struct FrameHeader {
    FrameKind kind = FrameKind::kInvalid;
    std::uint32_t bytes = 0;  ///< Payload that follows, at most kMaxFrameBytes.
    std::uint64_t argument = 0;
};

inline constexpr std::uint32_t kMaxFrameBytes = 256u << 10;

/// Where one channel of a mapped region lies in this process.
struct MappedChannel {
    std::byte* region = nullptr;
    std::uint64_t region_bytes = 0;
    ChannelLayout layout{};
    std::uint32_t index = 0;

    [[nodiscard]] GuestDirectory* guest_directory() const {
        return reinterpret_cast<GuestDirectory*>(region);
    }
    [[nodiscard]] HostDirectory* host_directory() const {
        return reinterpret_cast<HostDirectory*>(region + kPageBytes);
    }
    [[nodiscard]] GuestWords* guest_words() const {
        return reinterpret_cast<GuestWords*>(region + layout.guest_words);
    }
    [[nodiscard]] HostWords* host_words() const {
        return reinterpret_cast<HostWords*>(region + layout.host_words);
    }
    [[nodiscard]] ReplyPage* reply(std::uint32_t lane) const {
        return reinterpret_cast<ReplyPage*>(region + layout.replies) + lane;
    }
    [[nodiscard]] std::byte* ring() const { return region + layout.ring; }
    [[nodiscard]] std::byte* bulk() const { return region + layout.bulk; }
    [[nodiscard]] std::byte* pinned() const { return region + layout.pinned; }
};

/// HostWords as they travel.
struct HostWordsImage {
    std::uint64_t head;
    std::uint64_t epoch;
    std::uint32_t announce;
    std::uint32_t sticky_error;
    WorkerState worker_state;
    std::uint32_t profile;
    std::uint64_t confirm_seq[kLaneCount];
    std::uint64_t profile_worker;
    std::uint64_t held_ns;
    std::uint64_t launch_ns;
    std::uint64_t pause_ns;
};

/// What HostWords shows of events, as it travels: behind the pinned bytes that it vouches for, and
/// before the answers that were given after it.
struct EventsImage {
    std::uint64_t looked;
    std::uint32_t late_errors;
    std::uint32_t shows_events;
};
struct EventWord {
    std::uint64_t index;  ///< Of HostWords.event_done.
    std::uint64_t done;
};

/// The host's directory entry as it travels.
struct ServeImage {
    std::uint64_t generation;
    ServeState state;
    std::uint32_t refusal;
    char text[1024];
};

/// Which answers the guest has, by lane: ReplyPage.seq.
struct ResumeImage {
    std::uint64_t reply_seq[kLaneCount];
};

using FrameSink = std::function<bool(std::span<const std::byte>)>;

/// Bytes of the pinned pool that this side has changed since they were last alike. One thread
/// sends, one takes what arrives. The sink may wait for the other side, and so for the thread that
/// takes what arrives: it is called unlocked.
class PinnedShadow {
public:
    explicit PinnedShadow(const MappedChannel& channel) : channel_(channel) {}
    /// Sends what has changed below `used_bytes`; false when the sink refused.
    bool send_changes(std::uint64_t used_bytes, const FrameSink& sink);
    /// Notes bytes that arrived from the other side and writes them to the pool.
    bool apply(std::uint64_t offset, std::span<const std::byte> bytes);
    /// Sends all bytes below `used_bytes` as they stand.
    bool send_image(std::uint64_t used_bytes, const FrameSink& sink);
    /// Takes such bytes where they differ from what both sides had; a byte that this side has
    /// changed since stays, and is sent.
    bool merge(std::uint64_t offset, std::span<const std::byte> image);
    /// True when the last comparison is kCompareIntervalNs old: idle sides compare no more often.
    [[nodiscard]] bool due() const;
    static constexpr std::uint64_t kCompareIntervalNs = 1'000'000;

private:
    static bool send_runs(std::uint64_t offset, std::span<const std::byte> now,
                          const std::byte* old, const FrameSink& sink);
    [[nodiscard]] bool grow_to(std::uint64_t offset, std::size_t bytes) GANTRY_REQUIRES(mutex_);
    MappedChannel channel_;
    Mutex mutex_;
    std::vector<std::byte> shadow_ GANTRY_GUARDED_BY(mutex_);
    std::uint64_t compared_ns_ = 0;  ///< The sender's.
};

/// Cuts a byte stream into frames.
class FrameReader {
public:
    /// Calls `handle` for each whole frame; false when a frame is malformed or handle refused it.
    bool feed(std::span<const std::byte> bytes,
              const std::function<bool(const FrameHeader&, std::span<const std::byte>)>& handle);
    /// A new stream begins.
    void reset() { held_.clear(); }

private:
    std::vector<std::byte> held_;
};

class GuestMirror {
public:
    GuestMirror(const MappedChannel& channel, FrameSink sink);
    /// Forwards what the shim has published since the last call. True if there was anything.
    bool pump();
    /// Takes bytes that the host end sent; false when they make no sense.
    bool receive(std::span<const std::byte> bytes);
    /// Another host end has taken the session over: what arrives next is the start of its stream.
    /// On the thread that calls receive().
    void taken_over(std::uint64_t epoch);

private:
    bool handle(const FrameHeader& header, std::span<const std::byte> payload);
    bool send_resume(std::uint64_t epoch);
    bool handle_host_words(std::span<const std::byte> payload);
    bool handle_events(std::span<const std::byte> payload);
    bool handle_reply(std::uint64_t lane, std::span<const std::byte> payload);
    bool open_if_claimed();
    bool send_ring(std::uint64_t from, std::uint64_t to);

    MappedChannel channel_;
    FrameSink sink_;
    FrameReader reader_;
    PinnedShadow pinned_;
    RingConsumer consumer_;
    bool open_ = false;
    std::uint32_t announce_seen_ = 0;
    std::uint64_t high_water_ = 0;
    std::uint32_t late_errors_seen_ = 0;
    std::uint64_t ring_sent_ = 0;
    std::uint64_t resume_sent_ = 0;               ///< The epoch told by the last kResume.
    std::atomic<std::uint64_t> resume_epoch_{0};  ///< Of the newest host end.
    std::atomic<std::uint64_t> image_epoch_{0};   ///< Whose pool has come whole.
};

class HostMirror {
public:
    /// `received`: the guest's stream up to the first byte that receive() will get.
    HostMirror(const MappedChannel& channel, std::uint64_t received, FrameSink sink);
    /// Goes on where another host end stood at `position`, as `epoch`, which is not 0.
    HostMirror(const MappedChannel& channel, MirrorPosition position, std::uint64_t epoch,
               FrameSink sink);
    bool pump();
    bool receive(std::span<const std::byte> bytes);

private:
    void note_handled(std::uint64_t bytes);
    bool handle_resume(std::uint64_t epoch, std::span<const std::byte> payload);
    bool send_image();
    bool handle(const FrameHeader& header, std::span<const std::byte> payload);
    bool handle_claim(std::uint64_t generation);
    bool handle_ring(std::uint64_t position, std::span<const std::byte> payload);
    bool publish_records(std::uint64_t end);
    bool send_reply(std::uint32_t lane, std::uint64_t seq);
    bool send_host_words();
    [[nodiscard]] std::vector<std::byte> changed_events();

    MappedChannel channel_;
    FrameSink sink_;
    FrameReader reader_;
    PinnedShadow pinned_;
    std::vector<std::byte> staged_ring_;  ///< Records that have not arrived whole yet.
    std::uint64_t ring_position_ = 0;     ///< Position of staged_ring_'s first byte.
    std::uint64_t received_ = 0;          ///< Of the guest's stream: all whole frames so far.
    const std::uint64_t epoch_ = 0;
    enum class Resume { kWanted, kCame, kDone };
    std::atomic<Resume> resume_{Resume::kDone};
    bool open_ = false;
    bool serve_sent_ = false;
    std::uint64_t reply_seen_[kLaneCount] = {};
    HostWordsImage words_sent_{};
    EventsImage events_sent_{};
    std::array<std::uint64_t, kEventWords> event_done_sent_{};
};

}  // namespace gantry::wire
