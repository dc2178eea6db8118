// Replacing the workers of a session by fresh ones under their running programs: on the device
// where the session is, or on another one of this host, where it is from then on.
#pragma once

#include <functional>
#include <memory>

#include "host-daemon/supervisor/sessions/session.h"
#include "proto/control/gantryd.pb.h"

namespace gantry::supervisor {

struct ReplacementHooks {
    /// Starts a fresh worker for the part, with the session's quota.
    std::function<Result<std::shared_ptr<Worker>>(engine::PartId, DeviceNumber, Addresses)> launch;
    /// Neither worker has the guest any more; called after the session knows it.
    std::function<void(engine::PartId, const std::string& how)> lost;
    /// Whether the device can take the session; then its quota is reserved there, too.
    std::function<Result<void>(const engine::SessionNeeds&, DeviceNumber)> admit;
    /// The session is on that device alone.
    std::function<void(DeviceNumber)> settled;
};

/// Waits until it is done. `session.busy` while the session is being moved or is suspended;
/// otherwise reasons `handover.*`, `version.*` and what the workers answered.
Result<control::ReplaceWorkersReply> replace_workers(const std::shared_ptr<Session>& session,
                                                     control::MemoryWay way,
                                                     ReplacementHooks hooks);

/// The same, and `reassign.*`, `gpu.*` and preflight's reasons before any program is held up.
Result<control::ReplaceWorkersReply> reassign(const std::shared_ptr<Session>& session,
                                              DeviceNumber device, control::MemoryWay way,
                                              ReplacementHooks hooks);

}  // namespace gantry::supervisor
