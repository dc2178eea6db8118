// A part's memory between its worker and a snapshot's file, copied by the worker itself: what a
// real GPU holds cannot be mapped here (direct_memory.h), and its link is faster than messages.
//
// To a file: the worker says the fingerprints of all blocks (a GPU makes 4 TB/s of them), gantryd
// gives each its place, the worker copies. What gantryd then reads back is a sample; the worker's
// word is about its own guest's state only, and a restore holds all of it against the table.
// From a file: the worker copies; the digest that it then makes of its memory tells whether every
// byte was as the table says.
// Blocks that are not device memory as a whole (variables, arrays) go through the staging area.
//
// GANTRY_SNAPSHOTS in gantryd's environment: auto; registered and staged have the worker copy that
// way (host-daemon/state/file_blocks.h) on the soft GPU too.
// Threads: one. Failure: the first error; nothing of a frozen worker has changed.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "host-daemon/supervisor/digest_report.h"
#include "host-daemon/supervisor/worker_state.h"
#include "proto/snapshot/container.h"
#include "proto/snapshot/memory_writer.h"

namespace gantry::supervisor {

struct SnapshotSettings {
    control::FileWay way = control::FILE_WAY_AUTO;
    bool always_by_worker = false;
};
Result<SnapshotSettings> snapshot_settings();

/// How long a worker may take over so many bytes of a file.
std::chrono::milliseconds patience_for(std::uint64_t bytes);

/// `blocks`: all of the part, ascending, at least as many as a file has large pages for.
Result<std::string> store_by_worker(WorkersSource& source, Worker& worker, control::FileWay way,
                                    std::span<const engine::BlockAddress> blocks,
                                    const snapshot::FingerprintKey& key,
                                    snapshot::MemoryWriter& writer, engine::BlockSetDigest* digest,
                                    DigestReport* differences);

struct LoadedByWorker {
    std::vector<engine::BlockAddress> outside;  ///< Left alone; ascending.
    std::string how;
};
Result<LoadedByWorker> load_by_worker(Worker& worker, control::FileWay way,
                                      const snapshot::StoredMemory& memory);

/// Of all that the worker holds now.
Result<engine::BlockSetDigest> digest_now(Worker& worker);

struct ProvenBlocks {
    control::BlockRunList runs;     ///< Each block once.
    engine::BlockSetDigest digest;  ///< Over these.
};
/// The same, where the fingerprints of `proven` have been taken here from the worker's memory; it
/// reads all the others. A block that it does not have is not in the digest's count.
Result<engine::BlockSetDigest> digest_beyond(Worker& worker, const ProvenBlocks& proven);

}  // namespace gantry::supervisor
