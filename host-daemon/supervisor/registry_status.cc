// Registry: what operators are told, and what they ask for by name.
#include <algorithm>

#include "host-daemon/supervisor/registry.h"
#include "host-daemon/supervisor/version.h"
#include "migration/transport/message_map.h"

namespace gantry::supervisor {
namespace {

std::string state_word(engine::SourceState state) {
    switch (state) {
        case engine::SourceState::kFreezing:
        case engine::SourceState::kFinalRound:
        case engine::SourceState::kFrozen:
        case engine::SourceState::kGranting:
        case engine::SourceState::kThawing:
        case engine::SourceState::kRecovering:
        case engine::SourceState::kHolding: return "frozen";
        case engine::SourceState::kGranted: return "granted";
        case engine::SourceState::kReleased: return "released";
        case engine::SourceState::kLost: return "lost";
        default: return "running";
    }
}

std::string phase_word(engine::Phase phase) {
    return phase == engine::Phase::kDone ? "completed" : engine::to_string(phase);
}

std::uint64_t count_us(engine::Duration duration) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(0, duration.count()));
}

void fill_move(const engine::Progress& progress, const std::string& direction,
               const std::string& machine_state, control::MoveProgress* move) {
    move->set_direction(direction);
    move->set_phase(phase_word(progress.phase));
    move->set_percent(progress.percent);
    move->set_round(progress.round);
    move->set_bytes_total(progress.bytes_total);
    move->set_bytes_processed(progress.bytes_sent);
    move->set_bytes_remaining(progress.bytes_remaining);
    move->set_bytes_per_second(progress.link_bytes_per_second);
    move->set_downtime_expected_us(count_us(progress.downtime_estimate));
    move->set_downtime_us(count_us(progress.downtime));
    move->set_machine_state(machine_state);
}

void fill_worker(const std::shared_ptr<Worker>& worker, control::WorkerInfo* out) {
    out->set_part_id(worker->part().value);
    out->set_pid(static_cast<std::uint32_t>(worker->pid()));
    out->set_guest_pid(worker->guest().guest_pid());
    const auto status = worker->status();
    if (!status) {
        out->set_state("gone");
        return;
    }
    static constexpr const char* kStates[] = {"", "started", "serving", "frozen", "restoring",
                                              "fenced", "failed"};
    const auto state = static_cast<std::size_t>(status->state());
    out->set_state(state < std::size(kStates) ? kStates[state] : "unknown");
    const control::Statistics& statistics = status->statistics();
    out->set_device_memory_bytes(statistics.device_memory_bytes());
    out->set_pinned_memory_bytes(statistics.pinned_memory_bytes());
    out->set_commands_executed(statistics.commands_executed());
    out->set_kernel_launches(statistics.kernel_launches());
    out->set_refused_commands(statistics.refused_commands());
}

void fill_info(const SessionInfo& info, control::SessionStatus* out) {
    out->set_session_id(info.id);
    out->set_vm_name(info.vm_name);
    if (info.kind == SessionKind::kVm) {
        out->set_vm_uuid(info.id);
    }
    out->set_quota_bytes(info.quota_bytes);
}

}  // namespace

control::SessionStatus Registry::describe(const std::string& id, const Entry& entry) {
    control::SessionStatus out;
    fill_info(entry.session->info(), &out);
    out.set_session_id(id);
    const SourceStatus status = entry.driver->status();
    out.set_epoch(status.epoch.value);
    out.set_state(state_word(status.state));
    for (const auto& worker : entry.session->workers().all()) {
        fill_worker(worker, out.add_workers());
    }
    const bool was_moved = !entry.last_outcome.empty();
    if (status.migration || was_moved) {
        control::MoveProgress& move = *out.mutable_move();
        fill_move(status.progress, "outgoing", engine::to_string(status.state), &move);
        if (!status.migration && was_moved) {
            move.set_outcome(entry.last_outcome);
            move.set_error_reason(entry.last_error.reason);
            move.set_error_text(entry.last_error.text);
            move.set_phase(entry.last_error.reason.empty() ? "completed" : "failed");
        }
    }
    for (const std::string& alert : entry.alerts) {
        out.add_alerts(alert);
    }
    return out;
}

control::SessionStatus Registry::describe(const Arrival& arrival) {
    control::SessionStatus out;
    fill_info(arrival.request().info, &out);
    const TargetStatus status = arrival.status();
    out.set_epoch(status.epoch.value);
    out.set_state("arriving");
    out.set_peer(arrival.request().source_address);
    for (const auto& worker : arrival.session()->workers().all()) {
        fill_worker(worker, out.add_workers());
    }
    fill_move(status.progress, "incoming", engine::to_string(status.state), out.mutable_move());
    for (const std::string& alert : arrival.alerts()) {
        out.add_alerts(alert);
    }
    return out;
}

control::ListSessionsReply Registry::list(const std::string& name) {
    control::ListSessionsReply reply;
    reply.set_host(identity().host);
    reply.set_gantry_version(kGantryVersion);
    reply.set_peer_protocol_version(transport::kPeerProtocolVersion);
    const std::lock_guard lock(mutex_);
    reply.set_device(device_ ? device_->name() : "");
    reply.set_memory_bytes(device_ ? device_->memory_bytes() : 0);
    std::uint64_t promised = 0;
    for (const auto& [id, bytes] : promised_bytes_) {
        promised += bytes;
    }
    reply.set_memory_promised_bytes(promised);
    const auto wanted = [&](const std::string& id, const SessionInfo& info) {
        return name.empty() || name == id || name == info.vm_name;
    };
    for (const auto& [id, entry] : sessions_) {
        if (wanted(id, entry.session->info())) {
            *reply.add_sessions() = describe(id, entry);
        }
    }
    for (const auto& [id, arrival] : arrivals_) {
        if (!sessions_.contains(id) && wanted(id, arrival->request().info)) {
            *reply.add_sessions() = describe(*arrival);
        }
    }
    return reply;
}

Result<control::SessionStatus> Registry::status(const std::string& name) {
    const control::ListSessionsReply reply = list(name);
    if (reply.sessions_size() == 0) {
        return Error{Code::kNotFound, "session.unknown",
                     "no session or VM '" + name + "' on this host; `gantry status` lists them"};
    }
    return reply.sessions(0);
}

Result<std::shared_ptr<Session>> Registry::find(const std::string& name) {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, entry] : sessions_) {
        if (name == id || (!name.empty() && name == entry.session->info().vm_name)) {
            return entry.session;
        }
    }
    return Error{Code::kNotFound, "session.unknown",
                 "no session or VM '" + name + "' on this host; `gantry status` lists them"};
}

Result<control::PreflightReply> Registry::preflight(const control::PreflightRequest& request) {
    GANTRY_ASSIGN(const auto session, find(request.session()));
    GANTRY_ASSIGN(const engine::SessionNeeds needs, session->source().describe());
    engine::TargetCapabilities target;
    std::optional<Error> unreachable;
    if (request.target().empty()) {
        GANTRY_ASSIGN(target, capabilities());
    } else if (!tls_) {
        return Error{Code::kFailedPrecondition, "peer.off",
                     "this host takes part in no migration: peer.listen is empty in gantryd.toml"};
    } else {
        transport::PeerClient client(request.target(), *tls_, identity());
        auto asked = client.capabilities();
        if (asked) {
            target = std::move(*asked);
        } else {
            unreachable = asked.error();
        }
    }
    control::PreflightReply reply;
    reply.set_resident_bytes(needs.resident_bytes());
    {
        const std::lock_guard lock(mutex_);
        reply.set_source_device(device_ ? device_->name() : "");
    }
    if (unreachable) {  // nothing else can be judged
        control::Finding& finding = *reply.add_findings();
        finding.set_refusal(true);
        finding.set_reason(unreachable->reason);
        finding.set_text(unreachable->text);
        return reply;
    }
    reply.set_target_device(target.gpu_name);
    reply.set_target_host(target.host);
    const auto findings = engine::preflight(needs, target);
    for (const engine::Finding& finding : findings) {
        *reply.add_findings() = transport::to_proto(finding);
    }
    reply.set_can_move(!engine::refused(findings));
    return reply;
}

Result<std::string> Registry::abort(const std::string& name) {
    std::shared_ptr<SourceDriver> driver;
    std::shared_ptr<Arrival> arrival;
    {
        const std::lock_guard lock(mutex_);
        for (const auto& [id, entry] : sessions_) {
            if ((name == id || name == entry.session->info().vm_name) &&
                entry.driver->status().migration) {
                driver = entry.driver;
            }
        }
        for (const auto& [id, one] : arrivals_) {
            if (name == id || name == one->request().info.vm_name) {
                arrival = one;
            }
        }
    }
    if (driver) {
        engine::SourceEvent event;
        event.kind = engine::SourceEventKind::kOperatorAbort;
        driver->feed(std::move(event));
        return std::string("aborting the move of " + name + "; it goes on here");
    }
    if (arrival) {
        engine::TargetEvent event;
        event.kind = engine::TargetEventKind::kOperatorAbort;
        arrival->feed(std::move(event));
        return std::string("aborting the arrival of " + name);
    }
    return Error{Code::kNotFound, "migration.none", "no move of '" + name + "' is under way here"};
}

Result<void> Registry::fenced(const std::string& name) {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, arrival] : arrivals_) {
        if (name == id || name == arrival->request().info.vm_name) {
            engine::TargetEvent event;
            event.kind = engine::TargetEventKind::kOperatorFenced;
            arrival->feed(std::move(event));
            return {};
        }
    }
    return Error{Code::kNotFound, "migration.none",
                 "no session '" + name + "' waits here for its source host"};
}

Result<void> Registry::discard(const std::string& name) {
    GANTRY_ASSIGN(const auto session, find(name));
    engine::SourceEvent event;
    event.kind = engine::SourceEventKind::kOperatorDiscard;
    session->driver()->feed(std::move(event));
    return {};
}

Result<control::InspectReply> Registry::inspect(const std::string& name) {
    GANTRY_ASSIGN(const auto session, find(name));
    control::InspectReply reply;
    GANTRY_ASSIGN(*reply.mutable_status(), status(name));
    for (const engine::PartId part : session->source().parts()) {
        control::PartGraph& out = *reply.add_parts();
        out.set_part_id(part.value);
        GANTRY_ASSIGN(*out.mutable_graph(), session->source().graph(part));
    }
    return reply;
}

}  // namespace gantry::supervisor
