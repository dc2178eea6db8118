// BulkBoard: shows the guest which of its copies from and to the bulk area have ended.
//
// Such a copy is queued and not waited for; an event behind it tells of its end, which is shown in
// the word of HostWords.bulk_done that the guest named (proto/wire/region.h, BULK COPIES). The loop
// looks now and then, and before each answer that tells of completed work.
//
// Invariant: what is shown has ended; the end of a copy to the guest is not shown while a migration
// is announced. A copy from the guest that failed is shown as well: its extent is free.
// Threads: all calls lock. Failure: a driver's error is look()'s result; that copy is forgotten.
// Cost: an event record a copy; with none in flight a look is one load, else a query a stream.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "host-daemon/worker/device.h"
#include "proto/wire/region.h"

namespace gantry::worker {

class BulkBoard {
public:
    enum class Way { kFromGuest, kToGuest };

    explicit BulkBoard(Device& device) : device_(device) {}
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

    /// The command at `position` has queued a copy in this stream; `word` < wire::kBulkWords.
    void started(std::uint32_t word, std::uint64_t position, Way way, CUstream stream);
    /// ... has read its extent already, or never will.
    void ended(std::uint32_t word, std::uint64_t position);
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
        CUevent event = nullptr;
        CUstream stream = nullptr;
    };
    void show_locked(std::uint32_t word, std::uint64_t position);
    void tell_guest_locked();
    CUevent take_event_locked();
    void note_count_locked();

    Device& device_;
    std::atomic<std::size_t> count_{0};
    std::atomic<std::size_t> arrivals_{0};  ///< Of these, copies to the guest.
    std::atomic<std::chrono::steady_clock::rep> last_start_{0};
    std::mutex mutex_;
    wire::HostWords* words_ = nullptr;
    bool announced_ = false;
    bool is_locked_ = false;
    std::uint32_t captures_ = 0;
    std::vector<Copy> copies_;  ///< Oldest first, one a word.
    std::vector<CUevent> events_;
};

}  // namespace gantry::worker
