// Replacing the workers of a session by fresh ones under their running programs.
#pragma once

#include <functional>
#include <memory>

#include "host-daemon/supervisor/sessions/session.h"
#include "proto/control/gantryd.pb.h"

namespace gantry::supervisor {

struct ReplacementHooks {
    /// Starts a fresh worker for the part, with the session's quota.
    std::function<Result<std::shared_ptr<Worker>>(engine::PartId)> launch;
    /// Neither worker has the guest any more; called after the session knows it.
    std::function<void(engine::PartId, const std::string& how)> lost;
};

/// Waits until it is done. `session.busy` while the session is being moved or is suspended;
/// otherwise reasons `handover.*`, `version.*` and what the workers answered.
Result<control::ReplaceWorkersReply> replace_workers(const std::shared_ptr<Session>& session,
                                                     ReplacementHooks hooks);

}  // namespace gantry::supervisor
