#include "host-daemon/supervisor/registry/status.h"

#include <fmt/format.h>

#include <algorithm>

#include "host-daemon/supervisor/config/version.h"
#include "migration/transport/message_map.h"

namespace gantry::supervisor {
namespace {

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
    move->set_dirty_bytes_per_second(progress.dirty_bytes_per_second);
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
    move->set_migration_id(migration_text(id));
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

std::shared_ptr<Arrival> arrival_of(const std::string& id, const SessionTable::All& all) {
    const auto found = std::find_if(all.coming.begin(), all.coming.end(),
                                    [&](const auto& one) { return one.id == id; });
    return found == all.coming.end() ? nullptr : found->arrival;
}

bool is_here(const std::string& id, const SessionTable::All& all) {
    return std::any_of(all.here.begin(), all.here.end(),
                       [&](const auto& one) { return one.id == id; });
}

}  // namespace

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

control::SessionStatus HostStatus::describe(const SessionTable::Here& here,
                                            const SessionTable::All& all) {
    control::SessionStatus out;
    fill_info(here.session->info(), &out);
    out.set_session_id(here.id);
    out.set_device(here.session->device());
    // Not as its workers have it: what the programs see of the first one stays.
    if (const auto device = devices_.known(here.session->device())) {
        out.set_device_name(device->name());
    }
    const SourceStatus status = here.driver->status();
    out.set_epoch(status.epoch.value);
    const auto suspended = here.session->suspended();
    out.set_state(suspended ? "suspended" : state_word(status.state));
    out.set_suspended_into(suspended ? suspended->path : "");
    if (status.migration || status.awaits_attempt || status.ends) {
        out.set_peer(status.peer);
        fill_source_move(status, out.mutable_move());
        if (!status.ends) {
            tell_of_retry(out.mutable_move());
        }
    } else if (const auto arrival = arrival_of(here.id, all)) {
        fill_target_move(arrival->status(), out.mutable_move());  // not confirmed yet
    } else {
        const MutexLock lock(mutex_);
        if (const auto* ended = history_.find(here.id)) {
            out.set_peer(ended->peer());
            *out.mutable_move() = ended->move();
        }
    }
    for (const std::string& alert : here.alerts) {
        out.add_alerts(alert);
    }
    return out;
}

control::SessionStatus HostStatus::describe(const Arrival& arrival) {
    control::SessionStatus out;
    fill_info(arrival.request().info, &out);
    out.set_device(arrival.session()->device());
    if (const auto device = devices_.known(out.device())) {
        out.set_device_name(device->name());
    }
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

void HostStatus::note_ended(const SessionTable::Here& session, engine::Outcome outcome,
                            const Error& error) {
    if (!session) {
        return;
    }
    control::SessionStatus out;
    const SourceStatus status = session.driver->status();
    fill_info(session.session->info(), &out);
    out.set_epoch(status.epoch.value);
    out.set_state(state_word(status.state));
    out.set_peer(status.peer);
    fill_source_move(status, out.mutable_move());
    end_move(outcome, error, out.mutable_move());
    if (const auto device = devices_.known(session.session->device())) {
        out.set_device_name(device->name());
    }
    records_.note_ended(out);
    const MutexLock lock(mutex_);
    counters_.note(out);
    history_.note(std::move(out));
}

void HostStatus::note_ended(const Arrival& arrival, engine::Outcome outcome, const Error& error) {
    control::SessionStatus out;
    const TargetStatus status = arrival.status();
    fill_info(arrival.request().info, &out);
    out.set_epoch(status.epoch.value);
    out.set_state(outcome == engine::Outcome::kMoved ? "running" : "released");
    out.set_peer(arrival.request().source_address);
    fill_target_move(status, out.mutable_move());
    end_move(outcome, error, out.mutable_move());
    if (const auto device = devices_.known(arrival.session()->device())) {
        out.set_device_name(device->name());
    }
    records_.note_ended(out);
    const MutexLock lock(mutex_);
    counters_.note(out);
    history_.note(std::move(out));
}

std::uint64_t HostStatus::history_serial() const {
    const MutexLock lock(mutex_);
    return history_.serial();
}

bool HostStatus::has_ended(const std::string& name, std::uint64_t after) const {
    const MutexLock lock(mutex_);
    const auto ended = history_.since(after);
    return std::any_of(ended.begin(), ended.end(), [&](const control::SessionStatus& one) {
        return name.empty() || name == one.session_id() || name == one.vm_name();
    });
}

std::optional<control::SessionStatus> HostStatus::ended(const std::string& name) const {
    const MutexLock lock(mutex_);
    const auto all = history_.since(0);
    const auto found = std::find_if(all.rbegin(), all.rend(), [&](const auto& one) {
        return name == one.session_id() || name == one.vm_name();
    });
    return found == all.rend() ? std::nullopt : std::optional{*found};
}

MoveCounters HostStatus::counters() const {
    const MutexLock lock(mutex_);
    return counters_;
}

double HostStatus::link_bytes_per_second() const {
    const MutexLock lock(mutex_);
    double rate = 0.0;
    for (const control::SessionStatus& one : history_.since(0)) {
        rate = one.move().bytes_per_second() > 0.0 ? one.move().bytes_per_second() : rate;
    }
    return rate;
}

control::ListSessionsReply HostStatus::list(const std::string& name,
                                            std::optional<std::uint64_t> ended_after) {
    std::vector<std::vector<std::shared_ptr<Worker>>> workers;
    control::ListSessionsReply reply = list_without_workers(name, ended_after, &workers);
    for (std::size_t i = 0; i < workers.size(); ++i) {
        for (const auto& worker : workers[i]) {
            fill_worker(worker, reply.mutable_sessions(static_cast<int>(i))->add_workers());
        }
    }
    for (control::GpuStatus& gpu : *reply.mutable_gpus()) {
        for (const control::SessionStatus& session : reply.sessions()) {
            for (const control::WorkerInfo& worker : session.workers()) {
                gpu.set_memory_used_bytes(
                    gpu.memory_used_bytes() +
                    (worker.device() == gpu.device() ? worker.device_memory_bytes() : 0));
            }
        }
    }
    return reply;
}

/// All that are served, and the first of them in the fields of a host with one.
void HostStatus::fill_gpus(control::ListSessionsReply* reply) const {
    const std::vector<GpuOffer> offers = devices_.offers("");
    for (const DeviceNumber number : devices_.served()) {
        control::GpuStatus& out = *reply->add_gpus();
        out.set_device(number);
        out.set_memory_promised_bytes(devices_.promised(number));
        const auto offer = std::find_if(offers.begin(), offers.end(),
                                        [number](const auto& one) { return one.device == number; });
        if (offer == offers.end()) {
            out.set_error(devices_.error_of(number).to_string());
            continue;
        }
        out.set_name(offer->name);
        out.set_uuid(offer->uuid);
        out.set_compute_capability(fmt::format("{}.{}", offer->cc.major, offer->cc.minor));
        out.set_memory_bytes(offer->memory_bytes);
        out.set_sessions(static_cast<std::uint32_t>(offer->session_count));
    }
    const control::GpuStatus& first = reply->gpus(0);
    reply->set_device(first.name());
    reply->set_device_number(first.device());
    reply->set_device_error(first.error());
    reply->set_memory_bytes(first.memory_bytes());
    reply->set_memory_promised_bytes(first.memory_promised_bytes());
}

/// The history is read after the table: a move that ends meanwhile is in one of them at least.
control::ListSessionsReply HostStatus::list_without_workers(
    const std::string& name, std::optional<std::uint64_t> ended_after,
    std::vector<std::vector<std::shared_ptr<Worker>>>* workers) {
    control::ListSessionsReply reply;
    reply.set_host(host_);
    reply.set_gantry_version(kGantryVersion);
    reply.set_peer_protocol_version(transport::kPeerProtocolVersion);
    fill_gpus(&reply);
    const auto wanted = [&](const std::string& id, const SessionInfo& info) {
        return name.empty() || name == id || name == info.vm_name;
    };
    const SessionTable::All all = sessions_.all();
    for (const SessionTable::Here& here : all.here) {
        if (wanted(here.id, here.session->info())) {
            *reply.add_sessions() = describe(here, all);
            workers->push_back(here.session->workers().all());
        }
    }
    for (const SessionTable::Coming& coming : all.coming) {
        if (!is_here(coming.id, all) && wanted(coming.id, coming.arrival->request().info)) {
            *reply.add_sessions() = describe(*coming.arrival);
            workers->push_back(coming.arrival->session()->workers().all());
        }
    }
    if (ended_after) {
        const MutexLock lock(mutex_);
        for (control::SessionStatus& ended : history_.since(*ended_after)) {
            const std::string& id = ended.session_id();
            if (!is_here(id, all) && !arrival_of(id, all) &&
                (name.empty() || name == id || name == ended.vm_name())) {
                *reply.add_sessions() = std::move(ended);
            }
        }
    }
    return reply;
}

Error unknown_session(const std::string& name) {
    return {Code::kNotFound, "session.unknown",
            "no session or VM '" + name + "' on this host; `gantry status` lists them"};
}

Result<control::SessionStatus> HostStatus::of(const std::string& name) {
    const control::ListSessionsReply reply = list(name, std::nullopt);
    if (reply.sessions_size() == 0) {
        return unknown_session(name);
    }
    return reply.sessions(0);
}

}  // namespace gantry::supervisor
