// Blocks of a snapshot file that their worker does not load itself: those that are not device
// memory as a whole (variables, arrays). They go through its staging area, and are held against
// their fingerprints here. Threads: one for each worker. Failure: the first error; the worker is of
// no use then.
#pragma once

#include <span>

#include "host-daemon/supervisor/parts/worker_state.h"
#include "proto/snapshot/container.h"

namespace gantry::supervisor {

/// `outside`: blocks of this memory, ascending. All others are in place: copies are made of them.
Result<void> load_outside(WorkersSink& sink, const snapshot::StoredMemory& memory,
                          std::span<const engine::BlockAddress> outside,
                          const snapshot::FingerprintKey& key);

}  // namespace gantry::supervisor
