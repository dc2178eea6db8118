// The outbox: bytes of copies to the device, which reads them from here by itself (region.h).
//
// Invariant: a run of cells that a posted copy reads from is taken again only after the host has
// shown that copy's end. Threads: any. Failure: no room now; the bytes then travel in the ring.
// Cost: a futex mutex, and a load for each copy that was still in flight when last looked.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "guest-shim/session/base/futex_mutex.h"
#include "proto/wire/region.h"

namespace gantry::session {

class Outbox {
public:
    static constexpr std::uint32_t kCells = 64;
    static_assert(kCells <= wire::kBulkWords);

    /// Before other threads use it.
    void attach(std::byte* base, std::uint64_t bulk_offset, std::uint64_t bytes,
                wire::HostWords* host) noexcept;
    [[nodiscard]] std::uint64_t cell_bytes() const { return cell_bytes_; }
    /// A run of cells for so many bytes, without waiting. A run's first cell is the number of the
    /// word in HostWords.bulk_done that shows when it is free again.
    bool take(std::uint64_t bytes, std::uint32_t* first) noexcept;
    /// The copy at `position` reads from the run.
    void lend(std::uint32_t first, std::uint64_t position) noexcept;
    /// No copy does.
    void put_back(std::uint32_t first) noexcept;
    [[nodiscard]] std::byte* at(std::uint32_t cell) const { return base_ + cell * cell_bytes_; }
    [[nodiscard]] std::uint64_t bulk_offset(std::uint32_t cell) const {
        return bulk_offset_ + cell * cell_bytes_;
    }
    /// Counts runs that came back.
    [[nodiscard]] std::uint64_t returned() const {
        return returned_.load(std::memory_order_relaxed);
    }
    /// A lent run whose copy may have ended unseen, on another host: its end was shown to memory
    /// that a move has left behind. Names each once; false when there is none.
    bool next_unsure(std::uint32_t* first, std::uint64_t* position) noexcept;

private:
    void collect_locked() noexcept GANTRY_REQUIRES(mutex_);
    [[nodiscard]] std::uint64_t mask_of(std::uint32_t first) const GANTRY_REQUIRES(mutex_);

    std::byte* base_ = nullptr;
    std::uint64_t bulk_offset_ = 0;
    std::uint64_t cell_bytes_ = 0;
    wire::HostWords* host_ = nullptr;
    FutexMutex mutex_;
    std::atomic<std::uint64_t> returned_{0};
    std::uint64_t used_ GANTRY_GUARDED_BY(mutex_) = 0;  ///< A bit a cell.
    std::uint64_t lent_ GANTRY_GUARDED_BY(mutex_) = 0;  ///< A bit a run, at its first cell.
    std::uint32_t cells_[kCells] GANTRY_GUARDED_BY(mutex_) = {};
    std::uint64_t positions_[kCells] GANTRY_GUARDED_BY(mutex_) = {};
    /// Owner's epoch that the word counts under.
    std::uint64_t epochs_[kCells] GANTRY_GUARDED_BY(mutex_) = {};
};

}  // namespace gantry::session
