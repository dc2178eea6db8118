// The region: memory shared between one guest and its host, through which every CUDA call passes.
//
// WHAT. A region (a memfd on one host, an ivshmem BAR in a VM, a mirrored buffer over TCP) holds a
// directory and equal channels. A guest CUDA process claims one channel; the host serves it with
// one worker. All numbers are little-endian; offsets are bytes from the start of the region.
//
// LAYOUT (page split: no page is written by both sides, but for the guest's touches, see below)
//     page 0   GuestDirectory   written by the guest: magic, version, channel count, claims
//     page 1   HostDirectory    written by the host: which claim is served, or why not
//     then channels, each:
//         GuestWords   1 page   guest-owned
//         HostWords    1 page   host-owned; every word monotonic, rewritten by a target at takeover
//         ReplyPage    1 page a lane, host-owned
//         ring         guest-owned command records (ring.h)
//         bulk         host-owned bytes of copies to the guest; the guest names the extent
//         outbox       the bulk area's last quarter, guest-owned: bytes of copies to the device
//         pinned pool  mapped by both sides at kPinnedBase; the application's page-locked memory
//
// ORDER. A side publishes with a release store of the last word it writes; the other side polls it
// with acquire loads. Waiting: spin, then futex where both sides share a kernel, else short sleeps.
//
// FAILURE. The host treats all guest-owned bytes as hostile: copy, then check, then use. A worker
// that dies leaves HostWords.worker_state behind (written by gantryd); the guest turns it into a
// CUDA error. A channel is reused under a new generation, whose positions start at
// generation << kGenerationShift, so stale records and replies can never match.
//
// MIGRATION. QEMU's dirty log does not see host writes. While HostWords.announce is odd, the guest
// consumes a reply only after a touch (a write to every page that the host wrote for it, and to all
// page-locked ones) and a round trip of kConfirm: its answer is fresh only if these pages were
// copied afterwards, or if the target published answers and the pinned bytes left over
// (pinned_writes.h). Post-copy pulls pages from the source while the guest runs on the target, the
// host's words among them where the first pass had not come to them: so the source's
// worker writes nothing there that is not true on the target, as kDisowned, until that one serves.
//
// EVENTS. Completed event records are shown in HostWords.event_done, so that a query needs no round
// trip. A word of it says what is true for ever: that a target's copy lacks some costs a look
// (kLookAtEvent), never a wrong answer. A mirrored region's come before the answers that were given
// after them, and behind the page-locked bytes that they vouch for. Nothing is shown while a
// migration is announced, nor used: who sees an event done may read what copies wrote, and that
// takes a confirmed answer then.
//
// BULK COPIES. Copies between the device and extents of the bulk area or the outbox have no answer:
// each names a word of HostWords.bulk_done, which shows its position once it has ended. The guest
// keeps the extent until then. Words are as true as those of events: one that lacks costs the guest
// a synchronisation, or a kLookAtBulk. Ends of copies to the guest are not shown while a migration
// is announced, and bytes of one that ended across an announcement are read anew by kReadDevice.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gantry::wire {

inline constexpr std::uint32_t kRegionMagic = 0x52544e47;  // "GNTR"
inline constexpr std::uint32_t kWireVersion = 12;          // Both sides must agree exactly.
inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::uint32_t kLaneCount = 64;  // A guest thread uses one; more share.
inline constexpr std::uint32_t kCallbackLane = kLaneCount - 1;  // The shim's callback thread.
inline constexpr std::uint32_t kMaxChannels = 64;
inline constexpr std::uint32_t kEventWords = 256;      // Events share a word by slot number.
inline constexpr std::uint32_t kBulkWords = 128;       // Bulk copies in flight that are shown.
inline constexpr std::uint32_t kGenerationShift = 44;  // 16 TiB of commands a generation.
inline constexpr std::uint64_t kMaxGeneration = (1ull << (64 - kGenerationShift)) - 1;

/// Arena of device memory and, above it, pinned host memory: the same addresses in guest and
/// worker. ThreadSanitizer keeps most addresses for itself: its builds, which serve tests only,
/// have a smaller arena below 512 GiB.
#if defined(__SANITIZE_THREAD__)
inline constexpr std::uint64_t kArenaBase = 0x20'0000'0000;
inline constexpr std::uint64_t kArenaBytes = 0x20'0000'0000;  // 128 GiB
inline constexpr std::uint64_t kPinnedBase = 0x40'0000'0000;
#else
inline constexpr std::uint64_t kArenaBase = 0x3000'0000'0000;
inline constexpr std::uint64_t kArenaBytes = 0x0800'0000'0000;  // 8 TiB
inline constexpr std::uint64_t kPinnedBase = 0x3800'0000'0000;
#endif

/// True for addresses that only the pinned pool can have, whether it is mapped yet or not.
inline constexpr bool is_pinned_address(std::uint64_t address) {
    return address >= kPinnedBase && address - kPinnedBase < kArenaBytes;
}

enum class ClaimState : std::uint32_t { kFree = 0, kClaiming = 1, kOpen = 2, kClosing = 3 };

struct ChannelClaim {
    std::atomic<ClaimState> state;
    std::uint32_t guest_pid;
    std::uint64_t generation;  ///< Counts claims of this channel; 1 follows kMaxGeneration.
};

/// Of a channel's next claim.
constexpr std::uint64_t next_generation(std::uint64_t generation) {
    return generation < kMaxGeneration ? generation + 1 : 1;
}

/// What tells a claim's process from others of its number. Guests read it only; 0: it could not be
/// asked.
struct ClaimantId {
    std::atomic<std::uint32_t> pid_namespace;   ///< As /proc/PID/ns/pid numbers it.
    std::atomic<std::uint32_t> time_namespace;  ///< In which start_time is told.
    std::atomic<std::uint64_t> start_time;      ///< As in /proc/PID/stat.
};

struct alignas(kPageBytes) GuestDirectory {
    std::atomic<std::uint32_t> magic;  ///< Published last by the initialising side.
    std::uint32_t wire_version;
    std::uint64_t region_bytes;
    std::uint32_t channel_count;
    std::uint32_t reserved;
    ChannelClaim claims[kMaxChannels];
    ClaimantId claimants[kMaxChannels];  ///< Written after the claim is taken, before it is open.
};

enum class ServeState : std::uint32_t { kNone = 0, kServing = 1, kRefused = 2, kClosed = 3 };

struct HostChannel {
    std::atomic<std::uint64_t> generation;  ///< Claim generation this entry speaks about.
    std::atomic<ServeState> state;
    std::uint32_t refusal;  ///< CUresult for the application when refused.
};

struct alignas(kPageBytes) HostDirectory {
    HostChannel channels[kMaxChannels];
    char refusal_text[1024];  ///< Reason of the newest refusal, NUL-terminated.
};

struct alignas(kPageBytes) GuestWords {
    /// Set by a guest thread about to sleep for its lane's reply (futex transports).
    std::atomic<std::uint32_t> lane_waiting[kLaneCount];
    std::atomic<std::uint32_t> doorbell;       ///< Counted up to wake a sleeping worker.
    std::atomic<std::uint32_t> ring_waiting;   ///< A producer sleeps for ring space.
    std::atomic<std::uint32_t> announce_seen;  ///< Last HostWords.announce the guest acted on.
    std::uint32_t reserved;
    /// End of the pinned pool's part that was ever handed out: nothing above it is in use.
    std::atomic<std::uint64_t> pinned_high_water;
};

enum class WorkerState : std::uint32_t {
    kNone = 0,
    kRunning = 1,
    kDead = 2,      ///< The worker ended; calls get CUDA_ERROR_UNKNOWN or the sticky error.
    kDisowned = 3,  ///< The session was granted to another host; this guest must not run on.
};

struct alignas(kPageBytes) HostWords {
    /// Ring bytes before it may be reused. Alone on its cache line: it changes with every command,
    /// and the words below are read with every command.
    std::atomic<std::uint64_t> head;
    /// Owner's epoch, grows at every grant.
    alignas(64) std::atomic<std::uint64_t> epoch;
    std::atomic<std::uint32_t> announce;  ///< Odd while a migration is announced.
    /// Not 0: the worker wants the doorbell rung, once for each number.
    std::atomic<std::uint32_t> consumer_sleeps;
    std::atomic<std::uint32_t> sticky_error;  ///< CUresult that poisons the context, 0 if none.
    std::atomic<WorkerState> worker_state;
    /// What the guest is to note of its operations (profile.h); 0: nothing.
    std::atomic<std::uint32_t> profile;
    /// Position of the last kConfirm answered plus 1, by lane.
    alignas(64) std::atomic<std::uint64_t> confirm_seq[kLaneCount];
    /// Counts errors of commands without an answer. Each is told by its lane's next answer: a guest
    /// that sees a new count asks instead of answering itself.
    alignas(64) std::atomic<std::uint32_t> late_errors;
    /// 1 when looked and event_done are kept.
    std::atomic<std::uint32_t> shows_events;
    /// Position of the last kLookAtEvent executed plus 1.
    std::atomic<std::uint64_t> looked;
    /// Position plus 1 of the newest completed cuEventRecord, by slot number of the event's handle
    /// modulo kEventWords.
    alignas(64) std::atomic<std::uint64_t> event_done[kEventWords];
    /// Position plus 1 of the newest copy that has ended, by the word that the guest named in it.
    alignas(64) std::atomic<std::uint64_t> bulk_done[kBulkWords];
    /// 1 while the bulk area is page-locked and nothing is captured: a copy to it runs beside the
    /// ring, and its end is looked for.
    std::atomic<std::uint32_t> bulk_locked;
    /// 1 when the guest's bulk area is the worker's and bulk_done is kept; 0 in a mirrored region.
    std::atomic<std::uint32_t> shares_bulk;
    /// Device memory that the program has, as the worker last looked; 0 in a mirrored region.
    std::atomic<std::uint64_t> device_bytes;
    /// For profiles, since this worker serves the channel; `profile_worker` is another number then.
    std::atomic<std::uint32_t> profile_worker;
    std::uint32_t reserved;
    std::atomic<std::uint64_t> held_ns;    ///< Launches were held by the GPU's arbiter.
    std::atomic<std::uint64_t> launch_ns;  ///< GPU time of the launches, from samples.
    std::atomic<std::uint64_t> pause_ns;   ///< Moves and replacements; the guest's clock went on.
    std::atomic<std::uint64_t> stop_ns;    ///< The same; the guest's clock stood still.
};

/// memcpy for the few bytes of arguments and answers. Where a compiler knows a bound of the size it
/// puts `rep movs` in place of the call, whose start alone costs about 100 ns on some processors.
inline void copy_few(void* to, const void* from, std::size_t bytes) {
    auto* out = static_cast<std::byte*>(to);
    const auto* in = static_cast<const std::byte*>(from);
    if (bytes >= 8 && bytes <= 16) {  // Most: two words, which may overlap.
        std::uint64_t first = 0;
        std::uint64_t last = 0;
        std::memcpy(&first, in, 8);
        std::memcpy(&last, in + bytes - 8, 8);
        std::memcpy(out, &first, 8);
        std::memcpy(out + bytes - 8, &last, 8);
        return;
    }
    asm("" : "+r"(bytes));  // The bound is forgotten.
    std::memcpy(to, from, bytes);
}

inline constexpr std::size_t kReplyInlineBytes = kPageBytes - 40;

/// Answer to a lane's synchronous command. Host writes `seq` last (release). The first 24 bytes of
/// the payload share `seq`'s cache line, so that most answers cross in one.
struct alignas(kPageBytes) ReplyPage {
    std::atomic<std::uint64_t> seq;  ///< Position of the command answered, plus 1.
    std::uint32_t status;            ///< CUresult.
    std::uint32_t flags;             ///< ReplyFlag bits.
    std::uint32_t payload_bytes;     ///< Bytes used of payload.
    float device_wait_ns;            ///< The command waited for the device; while profiled.
    std::uint64_t bulk_offset;       ///< Extent in the channel's bulk area that was written.
    std::uint64_t bulk_bytes;
    std::byte payload[kReplyInlineBytes];
};

enum ReplyFlag : std::uint32_t {
    kReplyOutputPending = 1u << 0,  ///< Device printf/assert text waits: fetch with kDrainOutput.
};

static_assert(sizeof(GuestDirectory) == kPageBytes);
static_assert(sizeof(HostDirectory) == kPageBytes);
static_assert(sizeof(GuestWords) == kPageBytes);
static_assert(sizeof(HostWords) == kPageBytes);
static_assert(sizeof(ReplyPage) == kPageBytes);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// Where the parts of a channel lie. Computed by both sides from the same two numbers.
struct ChannelLayout {
    std::uint64_t channel_offset;
    std::uint64_t guest_words;
    std::uint64_t host_words;
    std::uint64_t replies;
    std::uint64_t ring;
    std::uint64_t ring_bytes;  ///< Power of two.
    std::uint64_t bulk;
    std::uint64_t bulk_bytes;  ///< Power of two; the outbox included.
    std::uint64_t pinned;      ///< 2 MiB-aligned when the region allows it.
    std::uint64_t pinned_bytes;
    std::uint64_t end;
};

constexpr std::uint64_t outbox_bytes(const ChannelLayout& layout) { return layout.bulk_bytes / 4; }

inline constexpr std::uint64_t kMinChannelBytes = 4ull << 20;

/// Computes channel `index` of a region. Returns false when the numbers do not fit (hostile or
/// misconfigured: region too small, too many channels, index out of range).
constexpr bool compute_layout(std::uint64_t region_bytes, std::uint32_t channel_count,
                              std::uint32_t index, ChannelLayout* out) {
    if (channel_count == 0 || channel_count > kMaxChannels || index >= channel_count) {
        return false;
    }
    if (region_bytes <= 2 * kPageBytes) {
        return false;
    }
    const std::uint64_t slice =
        (region_bytes - 2 * kPageBytes) / channel_count / kPageBytes * kPageBytes;
    if (slice < kMinChannelBytes) {
        return false;
    }
    std::uint64_t part = 1ull << 20;  // Ring and bulk: an eighth of the slice each, 1 to 16 MiB.
    while (part * 2 <= slice / 8 && part < (16ull << 20)) {
        part *= 2;
    }
    ChannelLayout layout{};
    layout.channel_offset = 2 * kPageBytes + slice * index;
    layout.guest_words = layout.channel_offset;
    layout.host_words = layout.guest_words + kPageBytes;
    layout.replies = layout.host_words + kPageBytes;
    layout.ring = layout.replies + kLaneCount * kPageBytes;
    layout.ring_bytes = part;
    layout.bulk = layout.ring + part;
    layout.bulk_bytes = part;
    layout.pinned = layout.bulk + part;
    layout.end = layout.channel_offset + slice;
    layout.pinned_bytes = layout.end - layout.pinned;
    *out = layout;
    return true;
}

}  // namespace gantry::wire
