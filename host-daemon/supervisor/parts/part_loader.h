// Loading the memory of one part from a snapshot file into a fresh worker, by several threads.
//
// Each thread takes the next batch: it reads the contents from the file to where they belong, which
// is the worker's memory itself (direct_memory.h) or a slot of its staging area, holds them against
// their fingerprints there while they are in the cache, and in the second case has the worker place
// them. Zero blocks are not touched where the memory is fresh; copies come last, when their origins
// are there. Memory that cannot be mapped here the worker fills itself (part_files.h).
//
// What was verified in the worker's memory needs no second look by the worker, but for a sample.
// Failure: the first error; the worker is of no use then.
#pragma once

#include <memory>
#include <string>

#include "host-daemon/supervisor/parts/part_files.h"
#include "host-daemon/supervisor/workers/worker.h"
#include "host-daemon/supervisor/workers/worker_set.h"
#include "proto/snapshot/container.h"

namespace gantry::supervisor {

struct LoadedMemory {
    bool by_worker = false;
    ProvenBlocks proven;  ///< Else: all others are proven by the worker's digest only.
    std::string how;      ///< For a log.
};

/// The first blocks of a part, which its worker has taken before the file's table was read to its
/// end.
struct LoadedAhead {
    std::size_t blocks = 0;  ///< None where memory is mapped here, as the soft GPU's is.
    LoadedByWorker by_worker;
};
/// The worker has been prepared with the part's graph, and nothing more, here and below.
Result<LoadedAhead> load_ahead(Worker& worker, const FileLoad& first);

/// `rest`: what `ahead` leaves; not looked at where that is all. What is not device memory as a
/// whole comes last.
Result<LoadedMemory> load_memory(WorkerSet& workers, const std::shared_ptr<Worker>& worker,
                                 const snapshot::StoredMemory& memory, LoadedAhead ahead,
                                 FileLoad rest, const snapshot::FingerprintKey& key);

}  // namespace gantry::supervisor
