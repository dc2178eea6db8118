// Registry: what operators are told, and what they ask for by name.
#include <fmt/format.h>

#include <algorithm>

#include "host-daemon/supervisor/config/version.h"
#include "host-daemon/supervisor/registry/registry.h"
#include "migration/transport/message_map.h"

namespace gantry::supervisor {
namespace {

std::string state_word(engine::SourceState state) {
    switch (state) {
        case engine::SourceState::kFreezing:
        case engine::SourceState::kFinalRound:
        case engine::SourceState::kFrozen:
        case engine::SourceState::kGranting:
        case engine::SourceState::kTakingBack:
        case engine::SourceState::kThawing:
        case engine::SourceState::kRecovering:
        case engine::SourceState::kHolding: return "frozen";
        case engine::SourceState::kGranted: return "granted";
        case engine::SourceState::kReleased: return "released";
        case engine::SourceState::kLost: return "lost";
        default: return "running";
    }
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
    move->set_bytes_processed(progress.bytes_content);
    move->set_bytes_on_wire(progress.bytes_sent);
    move->set_elapsed_us(count_us(progress.elapsed));
    move->set_bytes_remaining(progress.bytes_remaining);
    move->set_bytes_per_second(progress.link_bytes_per_second);
    move->set_downtime_expected_us(count_us(progress.downtime_estimate));
    move->set_downtime_us(count_us(progress.downtime));
    move->set_machine_state(machine_state);
}

void fill_digest(const engine::BlockSetDigest& digest, control::MoveProgress* move) {
    if (digest.block_count != 0) {
        move->set_memory_digest(fmt::format("{:016x}{:016x}", digest.sum.high, digest.sum.low));
        move->set_memory_digest_bytes(digest.block_count * engine::kBlockBytes);
    }
}

void fill_migration(const engine::MigrationId& id, control::MoveProgress* move) {
    move->set_migration_id(fmt::format("{:016x}{:016x}", id.high, id.low));
}

void fill_source_move(const SourceStatus& status, control::MoveProgress* move) {
    fill_move(status.progress, "outgoing", engine::to_string(status.state), move);
    fill_digest(status.digest, move);
    fill_migration(status.last_migration, move);
}

void fill_target_move(const TargetStatus& status, control::MoveProgress* move) {
    fill_move(status.progress, "incoming", engine::to_string(status.state), move);
    fill_digest(status.digest, move);
    if (status.migration) {
        fill_migration(*status.migration, move);
    }
}

/// An attempt has failed, and the move goes on: it is no "failed" one yet.
void tell_of_retry(control::MoveProgress* move) {
    if (move->phase() == phase_word(engine::Phase::kFailed)) {
        move->set_phase("retry");
    }
}

void fill_worker(const std::shared_ptr<Worker>& worker, control::WorkerInfo* out) {
    out->set_part_id(worker->part().value);
    out->set_pid(static_cast<std::uint32_t>(worker->pid()));
    out->set_guest_pid(worker->guest().guest_pid());
    out->set_device(worker->device_number());
    out->set_replacements(worker->replacements());
    out->set_replacement_pause_us(worker->replacement_pause_us());
    const auto status = worker->status();
    if (!status) {
        out->set_state("gone");
        return;
    }
    static constexpr const char* kStates[] = {"",          "started", "serving", "frozen",
                                              "restoring", "fenced",  "failed"};
    const auto state = static_cast<std::size_t>(status->state());
    out->set_state(state < std::size(kStates) ? kStates[state] : "unknown");
    out->set_process_name(status->process_name());
    if (status->guest_pid() != 0) {
        out->set_guest_pid(status->guest_pid());
    }
    const control::Statistics& statistics = status->statistics();
    out->set_device_memory_bytes(statistics.device_memory_bytes());
    out->set_pinned_memory_bytes(statistics.pinned_memory_bytes());
    out->set_commands_executed(statistics.commands_executed());
    out->set_kernel_launches(statistics.kernel_launches());
    out->set_batched_launches(statistics.batched_launches());
    out->set_prepared_launches(statistics.prepared_launches());
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
    out.set_device(entry.session->device());
    // Not as its workers have it: what the programs see of the first one stays.
    if (const auto device = book_.known(entry.session->device())) {
        out.set_device_name(device->name());
    }
    const SourceStatus status = entry.driver->status();
    out.set_epoch(status.epoch.value);
    const auto suspended = entry.session->suspended();
    out.set_state(suspended ? "suspended" : state_word(status.state));
    out.set_suspended_into(suspended ? suspended->path : "");
    if (status.migration || status.awaits_attempt || status.ends) {
        fill_source_move(status, out.mutable_move());
        if (!status.ends) {
            tell_of_retry(out.mutable_move());
        }
    } else if (const auto arrival = arrivals_.find(id); arrival != arrivals_.end()) {
        fill_target_move(arrival->second->status(), out.mutable_move());  // not confirmed yet
    } else if (const auto* ended = history_.find(id)) {
        *out.mutable_move() = ended->move();
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
    out.set_source_fenced(arrival.source_fenced());
    fill_target_move(status, out.mutable_move());
    tell_of_retry(out.mutable_move());
    for (const std::string& alert : arrival.alerts()) {
        out.add_alerts(alert);
    }
    return out;
}

/// The session may leave the books right afterwards: what is known of it is kept here.
void Registry::note_source_ended(const std::string& id, engine::Outcome outcome,
                                 const Error& error) {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) {
        return;
    }
    control::SessionStatus out;
    const SourceStatus status = found->second.driver->status();
    fill_info(found->second.session->info(), &out);
    out.set_epoch(status.epoch.value);
    out.set_state(state_word(status.state));
    fill_source_move(status, out.mutable_move());
    end_move(outcome, error, out.mutable_move());
    history_.note(std::move(out));
}

void Registry::note_target_ended(const std::string& id, engine::Outcome outcome,
                                 const Error& error) {
    const std::lock_guard lock(mutex_);
    const auto found = arrivals_.find(id);
    if (found == arrivals_.end()) {
        return;
    }
    const Arrival& arrival = *found->second;
    control::SessionStatus out;
    const TargetStatus status = arrival.status();
    fill_info(arrival.request().info, &out);
    out.set_epoch(status.epoch.value);
    out.set_state(outcome == engine::Outcome::kMoved ? "running" : "released");
    out.set_peer(arrival.request().source_address);
    fill_target_move(status, out.mutable_move());
    end_move(outcome, error, out.mutable_move());
    history_.note(std::move(out));
}

std::uint64_t Registry::history_serial() const {
    const std::lock_guard lock(mutex_);
    return history_.serial();
}

bool Registry::has_ended(const std::string& name, std::uint64_t after) const {
    const std::lock_guard lock(mutex_);
    const auto ended = history_.since(after);
    return std::any_of(ended.begin(), ended.end(), [&](const control::SessionStatus& one) {
        return name.empty() || name == one.session_id() || name == one.vm_name();
    });
}

/// The workers are asked when all else has been said, without the lock: one that does not answer
/// holds up whoever asks, and no other session.
control::ListSessionsReply Registry::list(const std::string& name,
                                          std::optional<std::uint64_t> ended_after) {
    drop_ended_guests();
    std::vector<std::vector<std::shared_ptr<Worker>>> workers;
    control::ListSessionsReply reply = list_without_workers(name, ended_after, &workers);
    for (std::size_t i = 0; i < workers.size(); ++i) {
        for (const auto& worker : workers[i]) {
            fill_worker(worker, reply.mutable_sessions(static_cast<int>(i))->add_workers());
        }
    }
    return reply;
}

control::ListSessionsReply Registry::list_without_workers(
    const std::string& name, std::optional<std::uint64_t> ended_after,
    std::vector<std::vector<std::shared_ptr<Worker>>>* workers) {
    control::ListSessionsReply reply;
    reply.set_host(identity().host);
    reply.set_gantry_version(kGantryVersion);
    reply.set_peer_protocol_version(transport::kPeerProtocolVersion);
    const std::lock_guard lock(mutex_);
    const auto device = book_.known(usual_device());
    reply.set_device(device ? device->name() : "");
    reply.set_device_number(usual_device());
    reply.set_device_error(device ? "" : book_.error_of(usual_device()).to_string());
    reply.set_memory_bytes(device ? device->memory_bytes() : 0);
    reply.set_memory_promised_bytes(book_.promised(usual_device()));
    const auto wanted = [&](const std::string& id, const SessionInfo& info) {
        return name.empty() || name == id || name == info.vm_name;
    };
    for (const auto& [id, entry] : sessions_) {
        if (wanted(id, entry.session->info())) {
            *reply.add_sessions() = describe(id, entry);
            workers->push_back(entry.session->workers().all());
        }
    }
    for (const auto& [id, arrival] : arrivals_) {
        if (!sessions_.contains(id) && wanted(id, arrival->request().info)) {
            *reply.add_sessions() = describe(*arrival);
            workers->push_back(arrival->session()->workers().all());
        }
    }
    if (ended_after) {
        for (control::SessionStatus& ended : history_.since(*ended_after)) {
            const std::string& id = ended.session_id();
            if (!sessions_.contains(id) && !arrivals_.contains(id) &&
                (name.empty() || name == id || name == ended.vm_name())) {
                *reply.add_sessions() = std::move(ended);
            }
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
        target = capabilities_of(session->device());
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
    if (const auto device = book_.known(session->device())) {
        reply.set_source_device(device->name());
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
    std::shared_ptr<SourceRunner> driver;
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
        const SourceStatus status = driver->status();
        if (status.state == engine::SourceState::kGranting ||
            status.state == engine::SourceState::kGranted) {
            return Error{Code::kFailedPrecondition, "migration.committed",
                         "the move of " + name + " cannot be aborted any more: the other host " +
                             "owns the session since epoch " +
                             std::to_string(status.epoch.value + 1)};
        }
        driver->feed(engine::source_event::OperatorAbort{});
        return std::string("aborting the move of " + name + "; it goes on here");
    }
    if (arrival) {
        arrival->feed(engine::target_event::OperatorAbort{});
        return std::string("aborting the arrival of " + name);
    }
    return Error{Code::kNotFound, "migration.none", "no move of '" + name + "' is under way here"};
}

Result<void> Registry::fenced(const std::string& name) {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, arrival] : arrivals_) {
        if (name == id || name == arrival->request().info.vm_name) {
            const engine::TargetState state = arrival->status().state;
            const bool waits = state == engine::TargetState::kRequesting ||
                               state == engine::TargetState::kWithdrawing ||
                               state == engine::TargetState::kReturning ||
                               arrival->has_waited_in_vain();
            if (!waits) {
                return Error{Code::kFailedPrecondition, "migration.not_waiting",
                             "session '" + name + "' does not wait for its source host (" +
                                 engine::to_string(state) +
                                 "): only complete state can be taken over without it"};
            }
            arrival->confirm_source_fenced();
            return {};
        }
    }
    return Error{Code::kNotFound, "migration.none",
                 "no session '" + name + "' waits here for its source host"};
}

Result<void> Registry::discard(const std::string& name) {
    GANTRY_ASSIGN(const auto session, find(name));
    const engine::SourceState state = session->driver()->status().state;
    if (state != engine::SourceState::kGranted && state != engine::SourceState::kHolding) {
        return Error{Code::kFailedPrecondition, "session.not_kept",
                     "session " + session->info().id + " is " + state_word(state) +
                         " here; there is no state of it that is kept for another host"};
    }
    session->driver()->feed(engine::source_event::OperatorDiscard{});
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
