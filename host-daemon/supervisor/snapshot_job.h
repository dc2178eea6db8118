// Saving a session to a file while it serves: freeze, write, then thaw, or suspend it (then its GPU
// is free, and restore_job.h goes on from the file).
//
// The file (proto/snapshot/FORMAT.md) appears under its name whole or not at all; a failure (disk
// full, a worker that dies) leaves the session running. The pause lasts as long as writing does.
// Runs on the session's strand of worker calls, so nothing of a migration comes between.
// Thread-safe.
#pragma once

#include <memory>

#include "host-daemon/supervisor/session.h"
#include "proto/control/gantryd.pb.h"

namespace gantry::supervisor {

Result<control::SnapshotReply> save_snapshot(const std::shared_ptr<Session>& session,
                                             const control::SnapshotRequest& request);

}  // namespace gantry::supervisor
