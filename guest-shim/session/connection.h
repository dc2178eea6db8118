// Inner state of the session: one channel of a region, its lanes, its bulk area, its pool. Only the
// files of this folder include it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "guest-shim/session/base/environment.h"
#include "guest-shim/session/base/futex_mutex.h"
#include "guest-shim/session/outbox.h"
#include "guest-shim/session/session.h"
#include "guest-shim/session/transport/transport.h"
#include "proto/wire/control_ops.h"
#include "proto/wire/region.h"
#include "proto/wire/ring.h"
#include "proto/wire/wait.h"

namespace gantry::session {

inline constexpr std::uint32_t kMaxDevices = 16;
inline constexpr std::uint32_t kMaxBulkPages = 4096;
inline constexpr std::uint64_t kSliceBytes = 1ull << 20;    // One answer of a copy to the guest.
inline constexpr std::uint64_t kPieceBytes = 256ull << 10;  // One record of bytes to the host.
inline constexpr unsigned kCpusToSpin = 4;                  // Fewer have better things to do.
inline constexpr std::uint64_t kWaitSliceNs = 50'000'000;   // Look for a dead worker this often.
inline constexpr std::uint32_t kSharedLanes = wire::kLaneCount - 1;

/// Extents of the bulk area, in pages; a bitmap, first fit.
class BulkArea {
public:
    /// Before other threads use it.
    void attach(std::byte* base, std::uint64_t bytes) noexcept;
    /// Waits for room when other threads hold it all; false only when `pages` can never fit or the
    /// session has closed.
    bool allocate(std::uint32_t pages, std::uint32_t* first) noexcept;
    bool try_allocate(std::uint32_t pages, std::uint32_t* first) noexcept;
    void free(std::uint32_t first, std::uint32_t pages) noexcept;
    [[nodiscard]] std::byte* at(std::uint64_t offset) const { return base_ + offset; }
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

private:
    std::byte* base_ = nullptr;
    std::uint64_t bytes_ = 0;
    FutexMutex mutex_;
    bool used_[kMaxBulkPages] GANTRY_GUARDED_BY(mutex_) = {};
};

struct Connection {
    Attachment attachment;
    Environment environment;
    wire::ChannelLayout layout;
    std::uint32_t channel = 0;
    std::uint64_t generation = 0;
    bool begins_anew = false;  ///< The channel's generations: the ring has positions of then.
    wire::GuestDirectory* guest_directory = nullptr;
    wire::HostDirectory* host_directory = nullptr;
    wire::GuestWords* guest = nullptr;
    wire::HostWords* host = nullptr;
    wire::ReplyPage* replies = nullptr;
    wire::RingProducer ring;
    BulkArea bulk;  ///< Without the outbox.
    Outbox outbox;
    FutexMutex lane_mutex[wire::kLaneCount];
    std::atomic<std::uint32_t> rung_for{0};     ///< The worker's sleep that was last ended.
    std::atomic<std::uint64_t> next_number{0};  ///< Of the next counted handle.
    std::atomic<std::uint64_t> next_image{1};
    std::uint32_t driver_version = 0;
    std::uint32_t devices = 0;
    unsigned cpus = 1;                   ///< That this process may run on.
    wire::DeviceFacts* facts = nullptr;  ///< devices entries.
    bool launches_block = false;         ///< CUDA_LAUNCH_BLOCKING.
};

extern Connection g_connection;

/// Claims a channel of the region and waits until the host serves it (channel.cc).
bool open_channel(Connection* connection, AttachProblem* problem);
void close_channel(Connection* connection);

/// Maps the pinned pool and reserves the device arena (address_space.cc).
bool reserve_addresses(Connection* connection, AttachProblem* problem);

/// Closes the gate after the worker's death (999) or a sticky error, and says what to return.
CUresult break_session(CUresult result) noexcept;

/// True when the worker can not answer any more; closes the gate then.
bool worker_is_gone() noexcept;

/// Fetches device printf and assert output on a locked lane and writes it to this process's own
/// descriptors.
void drain_output(std::uint32_t lane) noexcept;

/// One synchronous command on a lane that the caller has locked (calls.cc).
struct Exchange {
    std::uint16_t op = 0;
    std::uint32_t flags = 0;  ///< CommandFlag bits beside kCommandWantsReply.
    const void* args = nullptr;
    std::uint32_t args_bytes = 0;
    const void* trailing = nullptr;
    std::uint32_t trailing_bytes = 0;
    void* reply = nullptr;
    std::uint32_t reply_bytes = 0;
    void* reply_trailing = nullptr;
    std::uint32_t reply_trailing_capacity = 0;
    std::uint32_t reply_trailing_bytes = 0;
    std::uint64_t bulk_bytes = 0;   ///< As the reply told.
    std::uint32_t touch_first = 0;  ///< Bulk pages that the host writes for this command.
    std::uint32_t touch_pages = 0;
    std::uint64_t end = 0;  ///< Ring position behind the command, once it is in.
};
CUresult exchange(Exchange* exchange) noexcept;
CUresult exchange_on(std::uint32_t lane, std::uint64_t context, Exchange* exchange,
                     bool may_drain) noexcept;

/// The calling thread, if it may use CUDA now; else what the call must return.
CUresult usable_thread(Thread** out) noexcept;

/// Posts a control command in the name of a lane, also from another thread than the lane's own.
CUresult post_on(std::uint32_t lane, std::uint64_t context, wire::ControlOp op, const void* args,
                 std::uint32_t args_bytes, const void* trailing, std::uint32_t trailing_bytes,
                 std::uint64_t* position, std::uint64_t* end) noexcept;

/// Looks for at most `most_ns` whether `word` gets the value `expected`, if processors are many.
bool spin_for(const std::atomic<std::uint64_t>& word, std::uint64_t expected,
              std::uint64_t most_ns) noexcept;

/// Nothing has gone wrong that the host would tell with an answer, and what it shows counts
/// (events.cc).
bool is_quiet(Thread* self, const wire::HostWords& words) noexcept;

/// Writes to a page that the host owns without changing it, so that a hypervisor's dirty log sees
/// the page. Atomic, since a device may write the page at the same time.
inline void touch_page(void* page) noexcept {
    asm volatile("lock orb $0, (%0)" : : "r"(page) : "memory");
}

/// Touches the allocated pages of the pinned pool (pinned.cc).
void touch_pinned() noexcept;
void attach_pinned(std::byte* base, std::uint64_t bytes) noexcept;

/// From now on the host says there what to note of the process's operations; null: nothing
/// (profile.cc).
void follow_profile_word(const std::atomic<std::uint32_t>* word) noexcept;

/// The hash of the API table this shim was built from.
std::uint64_t table_hash() noexcept;

}  // namespace gantry::session
