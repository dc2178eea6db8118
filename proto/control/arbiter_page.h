// The two pages between gantryd's arbiter of a GPU and the workers on it.
//
// ArbiterPage: one for each GPU, written by gantryd alone. Its memfd is sealed when gantryd has
// mapped it (F_SEAL_FUTURE_WRITE), so that a worker can map it for reading only. A worker reads
// the verdict of its slot, one word, before it gives launches to the driver; it may wait on the
// word as on a futex.
//
// ClaimPage: one for each worker, written by that worker, read by gantryd. Its memfd can be made
// neither longer nor shorter. What stands there is believed in so far as it concerns that worker.
//
// WAKING. A worker stores its claim, then looks at `sleeps`; the arbiter sets `sleeps`, then looks
// at the claims: one of the two sees the other. While the arbiter is awake nobody wakes it.
#pragma once

#include <atomic>
#include <cstdint>

namespace gantry::control {

struct ArbiterPage {
    static constexpr std::uint32_t kSlots = 62;
    struct alignas(64) Slot {
        /// scheduling::Permit in the low kPermitBits, the serial number above.
        std::atomic<std::uint32_t> verdict;
        /// Of Permit::kFill, by CLOCK_MONOTONIC; written before that verdict.
        std::atomic<std::uint64_t> until_ns;
    };
    static constexpr unsigned kPermitBits = 4;

    alignas(64) std::atomic<std::uint32_t> sleeps;  ///< The arbiter has to be woken.
    std::atomic<std::uint64_t> window_ns;
    /// Who has waited for so long without another verdict goes on: nobody decides any more.
    std::atomic<std::uint64_t> patience_ns;
    Slot slots[kSlots];
};
static_assert(sizeof(ArbiterPage) <= 4096);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

struct ClaimPage {
    static constexpr std::uint32_t kWants = 1;
    static constexpr std::uint32_t kRuns = 2;
    std::atomic<std::uint32_t> state;
    std::atomic<std::uint64_t> next_ns;
    std::atomic<std::uint64_t> gap_ns;
};

inline constexpr std::uint64_t kArbiterPageBytes = 4096;

}  // namespace gantry::control
