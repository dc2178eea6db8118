// PinnedWrites: what copies wrote into the pinned pool and no hypervisor may have seen.
//
// QEMU's dirty log does not see host writes (proto/wire/region.h, MIGRATION). What a copy writes
// into the pool reaches another host only if the guest touches the pages after the copy has ended.
// So while a migration is announced every copy into the pool is kept here until a kConfirm arrives
// whose answer was published after the copy had ended; what is left at the freeze travels with the
// channel's state. A guest may not write a buffer before it has seen its copy end, and it sees that
// only after such a confirm: so what is carried does not lie over newer bytes of the guest.
//
// Exact for linear, 2D and 3D copies. Not seen: what kernels, memsets and the copy nodes of graphs
// write into the pool. Copies from before the announcement are kept while they are in flight.
//
// Owner: GuestProcess. Threads: any, but for the driver's callback threads (it asks the driver).
// Cost: one event a copy into the pool, only in regions whose guest has a kernel of its own.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "host-daemon/worker/device.h"
#include "proto/base/result.h"
#include "proto/wire/region.h"

namespace gantry::worker {

/// Bytes of the pinned pool as they stood at the freeze.
struct PinnedBytes {
    std::uint64_t offset = 0;  ///< In the pool.
    std::vector<std::byte> bytes;
};

class PinnedWrites {
public:
    static constexpr std::uint64_t kCarriedBytesMax = 512ull << 20;
    static constexpr std::size_t kCarriedRangesMax = 1u << 20;

    /// Rows of bytes at an address of the pool; one row and one slice for a linear copy.
    struct Box {
        std::uint64_t address = 0;
        std::uint64_t width = 0;
        std::uint64_t pitch = 0;
        std::uint64_t rows = 1;
        std::uint64_t slice_pitch = 0;
        std::uint64_t slices = 1;
    };
    struct Range {
        std::uint64_t address = 0;
        std::uint64_t bytes = 0;
    };

    explicit PinnedWrites(Device& device) : device_(device) {}
    ~PinnedWrites();
    PinnedWrites(const PinnedWrites&) = delete;
    PinnedWrites& operator=(const PinnedWrites&) = delete;

    /// Off until a region is served whose memory a hypervisor moves.
    void enable(bool enabled) { enabled_ = enabled; }
    [[nodiscard]] bool enabled() const { return enabled_; }

    /// A copy that was just queued to `stream`, which is not being captured.
    void add(const Box& box, CUstream stream);
    /// A migration is about to be announced (before the guest can see it), or no longer is.
    void announce(bool migrating);
    /// A lane is about to get an answer: what has completed by now, its next confirm covers.
    void before_answer(std::uint32_t lane);
    /// A confirm of this lane: the guest has touched the pool since the lane's last answer.
    void confirmed(std::uint32_t lane);

    /// What is left, sorted and merged; empty when no migration is announced. Only while frozen.
    [[nodiscard]] Result<std::vector<Range>> left() const;

private:
    struct Write {
        Box box;
        CUstream stream = nullptr;
        CUevent event = nullptr;          ///< Null once it has completed.
        std::uint64_t completed_at = 0;   ///< 0: not known to have completed.
    };
    void find_completed_locked();
    void drop_completed_locked(std::uint64_t until);

    Device& device_;
    bool enabled_ = false;
    mutable std::mutex mutex_;
    bool announced_ = false;
    bool overflowed_ = false;
    std::uint64_t tick_ = 1;  ///< Grows with every look at the events; orders them and the answers.
    std::size_t prune_at_ = 0;
    std::deque<Write> writes_;
    std::vector<CUevent> free_events_;
    std::array<std::uint64_t, wire::kLaneCount> answered_at_{};
};

}  // namespace gantry::worker
