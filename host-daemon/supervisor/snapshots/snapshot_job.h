// Saving a session to a file while it serves: prepare, freeze, write, then thaw, or suspend it
// (then its GPU is free, and restore_job.h goes on from the file).
//
// The file (proto/snapshot/FORMAT.md) appears under its name whole or not at all; a failure (disk
// full, a worker that dies) leaves the session running. Its pages are made before the freeze
// (snapshot_pages.h), so that the pause lasts as long as copying does.
// Preparing is the calling thread's: the session's executor of worker calls is free meanwhile, for
// a move that begins (the snapshot is refused then, at once), for programs that start and end, for
// workers that are replaced. From the freeze on all is done on the executor, so nothing of a move
// comes between. Of several calls for one session the others wait for the first.
// Thread-safe.
#pragma once

#include <functional>
#include <memory>

#include "host-daemon/supervisor/sessions/session.h"
#include "proto/control/gantryd.pb.h"

namespace gantry::supervisor {

/// Called when every worker is frozen and nothing is written yet; an error ends the snapshot.
using WhenFrozen = std::function<Result<void>(const engine::Seed&)>;

/// `is_cancelled`: nobody waits for it any more; asked until the freeze.
Result<control::SnapshotReply> save_snapshot(const std::shared_ptr<Session>& session,
                                             const control::SnapshotRequest& request,
                                             const std::function<bool()>& is_cancelled,
                                             const WhenFrozen& when_frozen = {});

}  // namespace gantry::supervisor
