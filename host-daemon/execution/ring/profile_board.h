// ProfileBoard: what the guest is told for its profile, and what it has told of it
// (proto/wire/profile.h, proto/decisions/0039-profile-of-operations.md).
//
// Told: the level, and in nanoseconds what this worker knows of the guest's waits. Kept: the newest
// totals of each operation and the newest ranges, checked. Threads: any; the loop's thread alone
// tells of holds. Failure: what cannot be is refused and counted; the guest's calls do not notice.
// Memory: 512 rows and 4,096 ranges, from the first record on. Cost: off, a load.
#pragma once

#include <array>
#include <atomic>
#include <bitset>
#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "proto/base/mutex.h"
#include "proto/wire/profile.h"
#include "proto/wire/region.h"

namespace gantry::worker {

class ProfileBoard {
public:
    ProfileBoard();

    // ---- to the guest
    /// Null: no channel is served.
    void attach(wire::HostWords* words);
    /// Begins anew with this level; what the guest has told is kept.
    void set_level(std::uint32_t level);
    /// As another worker had it (word()): the guest goes on.
    void load(std::uint32_t word);
    [[nodiscard]] std::uint32_t word() const { return word_.load(std::memory_order_relaxed); }
    [[nodiscard]] bool is_on() const { return wire::profile_level(word()) != 0; }
    /// The arbiter holds the loop now, or does not (any more).
    void held(bool is_held);
    void launched(std::uint64_t launch_ns);
    /// The guest was held by a move or a replacement; `clock_stood`: its clock did not see it.
    void paused(std::chrono::nanoseconds pause, bool clock_stood);

    // ---- from the guest
    void take(std::span<const std::byte> call, std::span<const std::byte> trailing);
    struct Kept {
        std::vector<wire::ProfileRow> rows;  ///< Parents first; names are printable and end.
        std::vector<wire::ProfileRange> ranges;
        wire::ProfileCall newest{};     ///< Its counts and costs.
        std::uint64_t refused = 0;      ///< Rows and ranges that cannot be.
        std::uint64_t ranges_lost = 0;  ///< Older ones.
    };
    [[nodiscard]] Kept kept() const;

private:
    void tell() GANTRY_REQUIRES(mutex_);
    bool take_row(wire::ProfileRow row) GANTRY_REQUIRES(mutex_);
    void take_ranges(std::uint64_t first, std::span<const wire::ProfileRange> ranges)
        GANTRY_REQUIRES(mutex_);

    std::atomic<std::uint32_t> word_{0};
    const std::uint32_t worker_;
    std::chrono::steady_clock::time_point held_since_{};
    std::uint64_t held_before_ns_ = 0;
    bool is_held_ = false;
    mutable Mutex mutex_;
    wire::HostWords* words_ GANTRY_GUARDED_BY(mutex_) = nullptr;
    std::vector<wire::ProfileRow> rows_ GANTRY_GUARDED_BY(mutex_);
    std::bitset<wire::kProfileRows> has_row_ GANTRY_GUARDED_BY(mutex_);
    std::vector<wire::ProfileRange> ranges_ GANTRY_GUARDED_BY(mutex_);
    std::uint64_t range_count_ GANTRY_GUARDED_BY(mutex_) = 0;  ///< Number of the next one.
    std::uint64_t first_range_ GANTRY_GUARDED_BY(mutex_) = 0;  ///< Behind the newest gap.
    wire::ProfileCall newest_ GANTRY_GUARDED_BY(mutex_){};
    std::uint64_t refused_ GANTRY_GUARDED_BY(mutex_) = 0;
};

}  // namespace gantry::worker
