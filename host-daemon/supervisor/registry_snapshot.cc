// Registry: sessions into files and back, and into fresh workers.
#include <spdlog/spdlog.h>

#include "host-daemon/supervisor/registry.h"
#include "host-daemon/supervisor/replacement_job.h"
#include "host-daemon/supervisor/restore_job.h"
#include "host-daemon/supervisor/snapshot_job.h"

namespace gantry::supervisor {

Result<control::SnapshotReply> Registry::snapshot(const control::SnapshotRequest& request) {
    GANTRY_ASSIGN(const auto session, find(request.session()));
    auto saved = save_snapshot(session, request);
    if (saved && session->suspended()) {
        {
            const std::lock_guard lock(mutex_);
            promised_bytes_.erase(session->info().id);
        }
        spdlog::info("session {} is suspended into {}", session->info().id, request.path());
    }
    return saved;
}

Result<control::RestoreReply> Registry::restore(const control::RestoreRequest& request) {
    GANTRY_ASSIGN(const auto session, find(request.session()));
    const SessionInfo info = session->info();
    RestoreHooks hooks;
    hooks.admit = [this, info](const engine::SessionNeeds& needs) -> Result<void> {
        GANTRY_ASSIGN(const engine::TargetCapabilities here, capabilities());
        const auto findings = engine::preflight(needs, here);
        if (engine::refused(findings)) {
            return Error{Code::kFailedPrecondition, findings.front().reason,
                         engine::refusal_text(findings)};
        }
        return reserve_memory(info.id, info.quota_bytes);
    };
    hooks.launch = [this, info](engine::PartId part) {
        return Worker::launch(config_, info.id, part, info.quota_bytes, handlers_for(info.id));
    };
    auto restored = restore_snapshot(session, request, std::move(hooks));
    if (!restored && session->suspended()) {
        const std::lock_guard lock(mutex_);
        promised_bytes_.erase(info.id);
    }
    return restored;
}

Result<control::ReplaceWorkersReply> Registry::replace_workers(
    const control::ReplaceWorkersRequest& request) {
    GANTRY_ASSIGN(const auto session, find(request.session()));
    const SessionInfo info = session->info();
    ReplacementHooks hooks;
    hooks.launch = [this, info](engine::PartId part) {
        return Worker::launch(config_, info.id, part, info.quota_bytes, handlers_for(info.id));
    };
    hooks.lost = [this, session](engine::PartId part, const std::string& how) {
        housekeeping_.post([this, session, part, how] {
            if (session->workers().find(part)) {
                drop_worker(session, part, how);
            }
        });
    };
    return supervisor::replace_workers(session, std::move(hooks));
}

/// A suspended session has no worker that would tell when its program ends.
void Registry::drop_ended_guests() {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, entry] : sessions_) {
        if (entry.session->suspended() && !entry.session->guest_waits()) {
            spdlog::info("session {}: its program has ended while it was suspended", id);
            housekeeping_.post(
                [this, id = id] { close_session(id, wire::WorkerState::kNone); });
        }
    }
}

}  // namespace gantry::supervisor
