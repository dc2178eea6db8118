// Saving the memory of one frozen part: fingerprints, places and contents by several threads.
//
// Each thread takes the next batch of blocks: it reads them where they lie (direct_memory.h) or has
// the worker copy them to a slot of the staging area, takes their fingerprints, waits its turn to
// get their places in the file, in order, and puts them there. A byte is hashed and copied once,
// the second time from the cache; what is zero or there already is hashed only. Memory that cannot
// be mapped here its worker fingerprints and copies itself (part_files.h).
// Failure: the first error; nothing of the worker has changed.
#pragma once

#include <memory>
#include <vector>

#include "host-daemon/supervisor/parts/digest_report.h"
#include "host-daemon/supervisor/parts/direct_memory.h"
#include "host-daemon/supervisor/parts/part_fingerprints.h"
#include "host-daemon/supervisor/parts/worker_state.h"
#include "proto/snapshot/container.h"

namespace gantry::supervisor {

/// Fewer are not worth a list and a second look; a file has room for them from here on.
inline constexpr std::size_t kWorkersBlocksMin = 64;

/// What a frozen part holds.
struct HeldMemory {
    DirectMemory direct;
    std::vector<engine::BlockAddress>
        blocks;               ///< All, ascending; none where there are fingerprints.
    FirstFingerprints first;  ///< Where there are any, the worker copies all itself.
    [[nodiscard]] bool by_worker() const { return !first.blocks.empty(); }
};
Result<HeldMemory> look_at_memory(WorkersSource& source, const std::shared_ptr<Worker>& worker);

struct SavedMemory {
    /// Of the blocks that the worker itself read and fingerprinted, as they came: for comparison
    /// with what it says of them.
    engine::BlockSetDigest digest;
    DigestReport differences;
    bool by_worker = false;       ///< All of it, not through messages: the digest is of all blocks.
    engine::BlockSetDigest held;  ///< by_worker: of what it held afterwards.
    std::string how;              ///< For a log.
};

Result<SavedMemory> save_memory(WorkersSource& source, const std::shared_ptr<Worker>& worker,
                                HeldMemory held, const snapshot::FingerprintKey& key,
                                snapshot::SnapshotWriter* writer);

}  // namespace gantry::supervisor
