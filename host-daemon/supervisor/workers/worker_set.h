// WorkerSet: the workers of one session, by part, and the staging areas to each.
//
// Thread-safe; only the calls of staging areas wait for a worker. Workers are shared: one that has
// been removed lives on until its last user lets go.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "host-daemon/supervisor/workers/staging.h"
#include "host-daemon/supervisor/workers/worker.h"
#include "proto/base/mutex.h"
#include "proto/wire/region.h"

namespace gantry::supervisor {

/// Which channel of the region a part is served through. One-to-one, so that a target can tell from
/// the part alone where its guest process waits.
struct PartChannel {
    std::uint32_t channel = 0;
    std::uint64_t generation = 0;
};
constexpr engine::PartId part_of(PartChannel at) {
    return {(at.generation << 8) | (at.channel + 1)};
}
constexpr PartChannel channel_of(engine::PartId part) {
    return {static_cast<std::uint32_t>(part.value & 0xFF) - 1, part.value >> 8};
}
/// Parts come from peers and disks too.
constexpr bool is_part(engine::PartId part) {
    return (part.value & 0xFF) != 0 && (part.value & 0xFF) <= wire::kMaxChannels &&
           (part.value >> 8) != 0;
}

class WorkerSet {
public:
    void add(std::shared_ptr<Worker> worker);
    std::shared_ptr<Worker> remove(engine::PartId part);
    [[nodiscard]] std::shared_ptr<Worker> find(engine::PartId part) const;
    [[nodiscard]] std::vector<std::shared_ptr<Worker>> all() const;
    [[nodiscard]] bool empty() const;

    /// The part's worker, or kNotFound (`worker.gone`).
    Result<std::shared_ptr<Worker>> need(engine::PartId part) const;
    /// The staging area to this worker; made and attached at first use.
    Result<std::shared_ptr<Staging>> staging(const std::shared_ptr<Worker>& worker);
    /// Detaches and forgets all staging areas.
    void drop_staging();

private:
    Mutex attaching_
        GANTRY_ACQUIRED_BEFORE(mutex_);  ///< Held across calls to workers, never with mutex_ held.
    mutable Mutex mutex_;
    std::map<engine::PartId, std::shared_ptr<Worker>> workers_ GANTRY_GUARDED_BY(mutex_);
    std::map<engine::PartId, std::shared_ptr<Staging>> staging_ GANTRY_GUARDED_BY(mutex_);
};

/// Blocks of one exchange, and slots to each worker: 2 MiB keep messages small and the pipe full.
inline constexpr std::size_t kBatchBlocks = 32;
inline constexpr std::uint32_t kStagingSlots = 8;
inline constexpr std::uint32_t kStagingArena = 1;

}  // namespace gantry::supervisor
