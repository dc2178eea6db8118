// PinnedWrites: what the GPU's side wrote into the pinned pool and no hypervisor may have seen.
//
// QEMU's dirty log does not see host writes (proto/wire/region.h, MIGRATION). What a copy writes
// into the pool reaches another host only if the guest touches the pages after the copy has ended.
// So what was written is kept here until a kConfirm arrives whose answer was published after the
// writing had ended; what is left at the freeze travels with the channel's state, and the target
// writes it before any answer. A guest may not write a buffer before it has seen its GPU work end,
// and it sees that only after such a confirm: so what is carried lies over no newer byte of it.
//
// COPIES are known by their extent: exact to the byte. Those from before the announcement are kept
// while they are in flight.
// EVERYTHING ELSE (kernels, memsets, nodes of graphs) may write anywhere. While a migration is
// announced the page-locked ranges are sampled before an answer; the confirm that covers the answer
// makes the sample the base, and at the freeze each 4-byte word that differs from the base is
// carried. That is more than the GPU wrote by what the guest itself wrote since (the hypervisor
// carried the same bytes), and less by words that the GPU changed and changed back since.
// A word that the guest's CPU wrote since the base, and writes again between its resumption on the
// target and the takeover without any answer of the GPU in between, would be set back: the one case
// that content alone cannot tell from a lost write of a kernel.
//
// Owner: GuestProcess. Threads: any, but for the driver's callback threads (it asks the driver).
// Cost: one event a copy into the pool, and a copy of the page-locked ranges for the answers that
// follow GPU work, only while announced and only in regions whose guest has a kernel of its own.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "host-daemon/execution/device/event_pool.h"
#include "host-daemon/execution/memory/device_memory.h"
#include "proto/base/mutex.h"
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

    PinnedWrites(EventPool& events, const DeviceMemory& memory)
        : events_(events), memory_(memory) {}
    PinnedWrites(const PinnedWrites&) = delete;
    PinnedWrites& operator=(const PinnedWrites&) = delete;

    /// Off until a region is served whose memory a hypervisor moves. `pool`: the pool as it is
    /// mapped at wire::kPinnedBase.
    void enable(bool enabled, std::span<const std::byte> pool) {
        enabled_ = enabled;
        pool_ = pool;
    }
    /// A command that may have begun GPU work. One relaxed load unless a migration is announced.
    void note_work() {
        if (announced_.load(std::memory_order_relaxed)) {
            worked_.store(true, std::memory_order_relaxed);
        }
    }
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
        EventPool::Event event;          ///< None once it has completed.
        std::uint64_t completed_at = 0;  ///< 0: not known to have completed.
    };
    /// The bytes of one page-locked range at some moment.
    struct Sample {
        std::uint64_t address = 0;
        std::vector<std::byte> bytes;
    };
    struct Samples {
        std::uint64_t tick = 0;
        std::vector<Sample> ranges;
    };
    [[nodiscard]] std::span<const std::byte> in_pool(const PinnedRange& range) const;
    [[nodiscard]] Samples take_samples_locked() const GANTRY_REQUIRES(mutex_);
    [[nodiscard]] bool add_changed_words(std::uint64_t unit, std::vector<Range>* out) const
        GANTRY_REQUIRES(mutex_);
    void find_completed_locked() GANTRY_REQUIRES(mutex_);
    void drop_completed_locked(std::uint64_t until) GANTRY_REQUIRES(mutex_);

    EventPool& events_;
    const DeviceMemory& memory_;
    std::span<const std::byte> pool_;
    bool enabled_ = false;
    std::atomic<bool> announced_{false};
    std::atomic<bool> worked_{false};  ///< Since the last samples: else new ones would say no more.
    mutable Mutex mutex_;              // all below
    /// What the hypervisor carries at least.
    Samples base_ GANTRY_GUARDED_BY(mutex_);
    /// Base as soon as an answer after them is confirmed.
    std::optional<Samples> pending_ GANTRY_GUARDED_BY(mutex_);
    bool overflowed_ GANTRY_GUARDED_BY(mutex_) = false;
    /// Grows with every look at the events; orders them and the answers.
    std::uint64_t tick_ GANTRY_GUARDED_BY(mutex_) = 1;
    std::size_t prune_at_ GANTRY_GUARDED_BY(mutex_) = 0;
    std::deque<Write> writes_ GANTRY_GUARDED_BY(mutex_);
    std::array<std::uint64_t, wire::kLaneCount> answered_at_ GANTRY_GUARDED_BY(mutex_){};
};

}  // namespace gantry::worker
