// Registry: sessions into files and back, and into fresh workers.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>

#include "host-daemon/supervisor/config/file_modes.h"
#include "host-daemon/supervisor/registry/registry.h"
#include "host-daemon/supervisor/snapshots/replacement_job.h"
#include "host-daemon/supervisor/snapshots/restore_job.h"
#include "host-daemon/supervisor/snapshots/snapshot_job.h"

namespace gantry::supervisor {

Result<control::SnapshotReply> Registry::snapshot(const control::SnapshotRequest& request,
                                                  const std::function<bool()>& is_cancelled) {
    GANTRY_ASSIGN(const auto session, find(request.session()));
    GANTRY_TRY(check_snapshot_path(config_.operator_, request.path()));
    GANTRY_TRY(spare_suspended(request.path()));
    auto saved = save_snapshot(session, request, is_cancelled);
    if (saved && session->suspended()) {
        devices_.forget(session->info().id);
        spdlog::info("session {} is suspended into {}", session->info().id, request.path());
        stock_.look();
    }
    return saved;
}

/// A file that a suspended session waits for is all that there is of it.
Result<void> Registry::spare_suspended(const std::string& path) {
    for (const SessionTable::Here& here : sessions_.all().here) {
        const auto suspended = here.session->suspended();
        std::error_code ignored;
        if (suspended && std::filesystem::equivalent(path, suspended->path, ignored)) {
            return Error{Code::kFailedPrecondition, "snapshot.in_use",
                         path + " holds session " + here.id +
                             ", which is suspended and has nothing else; name another file"};
        }
    }
    return {};
}

/// By GPU that is served.
WorkerStock::Awaited Registry::suspended_counts() {
    WorkerStock::Awaited out;
    for (const DeviceNumber device : devices_.served()) {
        out[device] = 0;
    }
    for (const SessionTable::Here& here : sessions_.all().here) {
        const auto place = out.find(here.session->device());
        if (place != out.end() && here.session->suspended()) {
            ++place->second;
        }
    }
    return out;
}

/// Preflight and reservation for a session that is to go on here. What it has reserved counts as
/// free for it.
Result<void> Registry::admit(const SessionInfo& info, const engine::SessionNeeds& needs,
                             DeviceNumber device) {
    const engine::TargetCapabilities here = capabilities_of(device, info.id);
    const auto findings = engine::preflight(needs, here);
    if (engine::refused(findings)) {
        return Error{Code::kFailedPrecondition, findings.front().reason,
                     engine::refusal_text(findings)};
    }
    return devices_.reserve(info.id, device, info.quota_bytes);
}

Result<control::RestoreReply> Registry::restore(const control::RestoreRequest& request) {
    GANTRY_ASSIGN(const auto session, find(request.session()));
    GANTRY_TRY(check_snapshot_path(config_.operator_, request.path()));
    return restore_session(session, request.path());
}

Result<control::RestoreReply> Registry::restore_session(const std::shared_ptr<Session>& session,
                                                        const std::string& path) {
    control::RestoreRequest request;
    request.set_session(session->info().id);
    request.set_path(path);
    ending_.await(ending_.soon_free(
        [this](const std::string& id) { return waits_itself(id); }));  // As in open_local().
    const SessionInfo info = session->info();
    const DeviceNumber device = session->device();
    const auto needs = std::make_shared<engine::SessionNeeds>();
    RestoreHooks hooks;
    hooks.admit = [this, info, device, needs](const engine::SessionNeeds& wanted) -> Result<void> {
        *needs = wanted;
        if (auto admitted = admit(info, wanted, device)) {
            return admitted;
        }
        // It may be another card than when it was last looked at,
        (void)devices_.probe(device, DeviceBook::Probe::kAnew);
        return admit(info, wanted, device);
    };
    hooks.launch = [this, info, device,
                    needs](engine::PartId part) -> Result<std::shared_ptr<Worker>> {
        GANTRY_ASSIGN(auto worker, stock_.launch(info.id, part, device, info.quota_bytes,
                                                 handlers_for(info.id)));
        devices_.note(device, worker->device());  // ... or a smaller one, which is seen only now.
        if (auto admitted = admit(info, *needs, device); !admitted) {
            worker->end();
            return admitted.error();
        }
        return worker;
    };
    auto restored = restore_snapshot(session, request, std::move(hooks));
    stock_.note_attempt(info.id, restored ? nullptr : &restored.error());
    if (!restored && session->suspended()) {
        devices_.forget(info.id);
    }
    return restored;
}

ReplacementHooks Registry::replacement_hooks(const std::shared_ptr<Session>& session) {
    const SessionInfo info = session->info();
    ReplacementHooks hooks;
    hooks.launch = [this, info](engine::PartId part, DeviceNumber device, Addresses addresses) {
        return stock_.launch(info.id, part, device, info.quota_bytes, handlers_for(info.id),
                             addresses);
    };
    hooks.lost = [this, session](engine::PartId part, const std::string& how) {
        housekeeping_.post([this, session, part, how] {
            if (session->workers().find(part)) {
                drop_worker(session, part, how);
            }
        });
    };
    hooks.admit = [this, info](const engine::SessionNeeds& needs, DeviceNumber device) {
        const auto there = devices_.probe(device, DeviceBook::Probe::kUnlessKnown);
        if (!there) {
            return Result<void>(Error{Code::kFailedPrecondition, "reassign.device",
                                      fmt::format("device {} of this host cannot be used: {}",
                                                  device, there.error().to_string())});
        }
        return admit(info, needs, device);
    };
    hooks.settled = [this, info](DeviceNumber device) { devices_.keep_only(info.id, device); };
    return hooks;
}

Result<control::ReplaceWorkersReply> Registry::replace_workers(
    const control::ReplaceWorkersRequest& request) {
    GANTRY_ASSIGN(const auto session, find(request.session()));
    return supervisor::replace_workers(session, request.way(), replacement_hooks(session));
}

Result<control::ReplaceWorkersReply> Registry::reassign(const control::ReassignRequest& request) {
    GANTRY_ASSIGN(const auto session, find(request.session()));
    if (request.device() < kDevicesMax && !devices_.is_served(request.device())) {
        return Error{Code::kFailedPrecondition, "reassign.device",
                     fmt::format("device {} is none of the GPUs that this host serves: {}",
                                 request.device(), fmt::join(devices_.served(), ", "))};
    }
    return supervisor::reassign(session, request.device(), request.way(),
                                replacement_hooks(session));
}

/// On housekeeping_ only.
void Registry::look_after_guests() {
    bool is_awaited = false;
    std::vector<std::shared_ptr<Session>> ended;
    for (const SessionTable::Here& here : sessions_.all().here) {
        is_awaited = here.session->awaits_relay() || is_awaited;
        if (here.session->info().kind == SessionKind::kLocal && here.session->has_program_ended()) {
            const bool serves = here.driver->status().serves;  // taken back, or never frozen
            is_awaited = !serves || is_awaited;
            if (serves) {
                ended.push_back(here.session);
            }
        }
    }
    for (const std::shared_ptr<Session>& session : ended) {
        close_session(session, wire::WorkerState::kNone);
    }
    if (is_awaited) {
        constexpr std::chrono::seconds kAgain{5};
        housekeeping_.set_timer_by(SerialExecutor::Clock::now() + kAgain);
    }
}

/// A suspended session has no worker that would tell when its program ends.
void Registry::drop_ended_guests() {
    for (const SessionTable::Here& here : sessions_.all().here) {
        if (here.session->suspended() && !here.session->guest_waits()) {
            spdlog::info("session {}: its program has ended while it was suspended", here.id);
            housekeeping_.post([this, session = here.session] {
                close_session(session, wire::WorkerState::kNone);
            });
        }
    }
}

}  // namespace gantry::supervisor
