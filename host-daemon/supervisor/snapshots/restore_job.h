// Going on with a suspended session from the file that it was suspended into.
//
// The file is read once, front to back, into fresh workers; they take the guests only when all of
// it was intact and every part's memory has the digest that the file names. Until then nothing of
// the session changes: whatever is refused (a damaged, cut, newer or wrong file, a GPU that cannot
// take the session) leaves it suspended, and the fresh workers are ended. Runs on the session's
// executor of worker calls. Thread-safe.
#pragma once

#include <functional>
#include <memory>

#include "host-daemon/supervisor/sessions/session.h"
#include "proto/control/gantryd.pb.h"

namespace gantry::supervisor {

struct RestoreHooks {
    /// Preflight and reservation by what the file says it needs; before any worker is started.
    std::function<Result<void>(const engine::SessionNeeds&)> admit;
    std::function<Result<std::shared_ptr<Worker>>(engine::PartId)> launch;
};

Result<control::RestoreReply> restore_snapshot(const std::shared_ptr<Session>& session,
                                               const control::RestoreRequest& request,
                                               RestoreHooks hooks);

}  // namespace gantry::supervisor
