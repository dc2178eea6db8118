// BulkBoard: shows the guest which of its copies from and to the bulk area have ended.
//
// Such a copy is queued and not waited for; an event behind it tells of its end, or a word that the
// device writes (wait_words.h) where the guest looks for it. That is shown in the word of
// HostWords.bulk_done that the guest named (proto/wire/region.h, BULK COPIES). The loop looks now
// and then, and before each answer that tells of completed work.
//
// Invariant: what is shown has ended; the end of a copy to the guest is not shown while a migration
// is announced. A copy from the guest that failed is shown as well: its extent is free.
// Threads: all calls lock. Failure: a driver's error is look()'s result; that copy is forgotten.
// Cost: an event record or a word a copy; with none in flight a look is one load, else a query a
// stream that events are looked at in.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "host-daemon/execution/device/device.h"
#include "host-daemon/execution/device/event_pool.h"
#include "host-daemon/execution/device/wait_words.h"
#include "proto/base/mutex.h"
#include "proto/wire/region.h"

namespace gantry::worker {

class BulkBoard {
public:
    enum class Way { kFromGuest, kToGuest };

    BulkBoard(Device& device, WaitWords& wait_words, EventPool& events)
        : device_(device), wait_words_(wait_words), events_(events) {}
    ~BulkBoard();
    BulkBoard(const BulkBoard&) = delete;
    BulkBoard& operator=(const BulkBoard&) = delete;

    /// Null: shows nothing any more. Forgets what is in flight.
    void attach(wire::HostWords* words);
    void announce(bool migrating);
    /// The bulk area is page-locked, or not any more.
    void locked(bool is_locked);
    /// A stream captures, or does so no more: the driver is not asked meanwhile.
    void capturing(bool begins);

    enum class Sign { kEvent, kWord };  ///< What tells of a copy's end; no word left: an event.
    /// The command at `position` has queued a copy in this stream; `word` < wire::kBulkWords.
    void started(std::uint32_t word, std::uint64_t position, Way way, CUstream stream,
                 Sign sign = Sign::kEvent);
    /// ... has read its extent already, or never will.
    void ended(std::uint32_t word, std::uint64_t position);
    /// The stream is about to be destroyed: what is in flight in it is asked about by events.
    void leave(CUstream stream);
    /// `before_arrivals` is called with a stream before the ends of copies to the guest, which tell
    /// it that all work before them has ended, are shown.
    CUresult look(const std::function<void(CUstream)>& before_arrivals);
    /// The guest asks about a copy from its memory that it had queued before.
    void look_at(std::uint32_t word, std::uint64_t position);
    /// Copies to the guest are in flight, whose ends it looks for.
    [[nodiscard]] bool has_arrivals() const {
        return arrivals_.load(std::memory_order_acquire) != 0;
    }
    /// A copy was queued a moment ago and has not ended: worth looking soon.
    [[nodiscard]] bool is_pending(std::chrono::steady_clock::time_point now,
                                  std::chrono::microseconds patience) const;

private:
    struct Copy {
        std::uint32_t word = 0;
        Way way = Way::kFromGuest;
        std::uint64_t position = 0;
        CUstream stream = nullptr;
        EventPool::Event event;  ///< None: it has a ticket.
        std::optional<WaitWords::Ticket> ticket;
        std::chrono::steady_clock::time_point ask_at;  ///< No word lands behind an error.
    };
    bool add_sign(Copy* copy, Sign sign);
    CUresult ask_locked(Copy* copy, std::chrono::steady_clock::time_point now)
        GANTRY_REQUIRES(mutex_);
    void show_locked(std::uint32_t word, std::uint64_t position) GANTRY_REQUIRES(mutex_);
    void tell_guest_locked() GANTRY_REQUIRES(mutex_);
    void note_count_locked() GANTRY_REQUIRES(mutex_);

    Device& device_;
    WaitWords& wait_words_;
    EventPool& events_;
    std::atomic<std::size_t> count_{0};
    std::atomic<std::size_t> arrivals_{0};  ///< Of these, copies to the guest.
    std::atomic<std::chrono::steady_clock::rep> last_start_{0};
    Mutex mutex_;
    wire::HostWords* words_ GANTRY_GUARDED_BY(mutex_) = nullptr;
    bool announced_ GANTRY_GUARDED_BY(mutex_) = false;
    bool is_locked_ GANTRY_GUARDED_BY(mutex_) = false;
    std::uint32_t captures_ GANTRY_GUARDED_BY(mutex_) = 0;
    std::vector<Copy> copies_ GANTRY_GUARDED_BY(mutex_);  ///< Oldest first, one a word.
};

}  // namespace gantry::worker
