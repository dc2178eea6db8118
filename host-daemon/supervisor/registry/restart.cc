// Registry after a restart of gantryd: workers that are still running, sessions that were granted.
#include <dirent.h>
#include <spdlog/spdlog.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "host-daemon/supervisor/registry/registry.h"

namespace gantry::supervisor {
namespace {

struct SessionRecord {
    SessionInfo info;
    std::optional<DeviceNumber> device;
    std::vector<WorkerRecord> workers;
    std::optional<ArrivalNote> arrival;  ///< Set while the session had not arrived yet.
    std::optional<Suspension> suspended;
    Ticket ticket;
};

Result<SessionRecord> parse_record(const nlohmann::json& json) {
    SessionRecord record;
    GANTRY_ASSIGN(record.info, session_info_from_json(json.at("session")));
    if (json.contains("device")) {
        record.device = json["device"].get<DeviceNumber>();
    }
    for (const nlohmann::json& worker : json.at("workers")) {
        GANTRY_ASSIGN(WorkerRecord one, worker_record_from_json(worker));
        if (!is_part(one.part)) {
            return Error{Code::kDataLoss, "record.corrupt", "a worker's record names no part"};
        }
        record.workers.push_back(std::move(one));
    }
    if (json.contains("arrival")) {
        const nlohmann::json& note = json["arrival"];
        record.arrival.emplace();
        ArrivalRequest& request = record.arrival->request;
        request.info = record.info;
        request.source_address = note.value("source", "");
        request.ticket = Ticket::parse(note.value("ticket", "")).value_or(Ticket{});
        request.handover_path = note.value("handover", "");
        request.arrives_when_converged = note.value("arrives_when_converged", false);
        const auto migration = note.value("migration", std::vector<std::uint64_t>{0, 0});
        if (migration.size() == 2) {
            record.arrival->migration = {migration[0], migration[1]};
        }
        record.arrival->epoch.value = note.value("epoch", std::uint64_t{0});
    }
    record.ticket = Ticket::parse(json.value("ticket", "")).value_or(Ticket{});
    if (json.contains("suspended")) {
        const nlohmann::json& into = json["suspended"];
        record.suspended.emplace();
        record.suspended->seed = {into.value("seed_low", std::uint64_t{0}),
                                  into.value("seed_high", std::uint64_t{0})};
        record.suspended->path = into.value("path", "");
    }
    return record;
}

Result<SessionRecord> read_record(const std::string& path) {
    std::ifstream file(path);
    std::string why;
    try {
        auto record = parse_record(nlohmann::json::parse(file));
        if (record) {
            return record;
        }
        why = record.error().text;
    } catch (const nlohmann::json::exception& error) {
        why = error.what();
    }
    return Error{Code::kDataLoss, "record.corrupt", path + " is damaged: " + why};
}

/// It arrived, and something else has begun since.
bool is_past_arrival(const SessionRecord& record, const EpochStore& store) {
    const Epoch arrived = record.arrival->epoch;
    const auto known = store.load(record.info.id);
    const bool has_newer =
        known && *known && arrived.value != 0 &&
        ((*known)->epoch > arrived || ((*known)->epoch == arrived && (*known)->granted));
    return record.suspended || has_newer;
}

std::vector<std::string> json_files(const std::string& folder) {
    std::vector<std::string> out;
    if (DIR* open = ::opendir(folder.c_str())) {
        while (const dirent* entry = ::readdir(open)) {
            const std::string name = entry->d_name;
            if (name.ends_with(".json")) {
                out.push_back(folder + "/" + name);
            }
        }
        ::closedir(open);
    }
    return out;
}

}  // namespace

Result<void> Registry::adopt_all() {
    for (const std::string& path : json_files(config_.daemon.run_directory + "/sessions")) {
        auto record = read_record(path);
        if (!record) {
            spdlog::error("{}; its workers, if any, are not found again",
                          record.error().to_string());
            continue;
        }
        if (record->arrival && !is_past_arrival(*record, store_)) {
            adopt_arrival(*record->arrival, record->device, record->workers);
        } else {
            adopt_session(record->info, record->device, record->workers, record->suspended,
                          record->ticket);
        }
    }
    GANTRY_ASSIGN(const auto known, store_.sessions());
    for (const std::string& id : known) {
        if (!sessions_.find(id) && !sessions_.arrival(id)) {
            restore_granted(id);
        }
    }
    return {};
}

void Registry::adopt_session(const SessionInfo& info, std::optional<DeviceNumber> device,
                             const std::vector<WorkerRecord>& workers,
                             const std::optional<Suspension>& suspended, const Ticket& ticket) {
    auto loaded = store_.load(info.id);
    if (!loaded || !*loaded) {
        spdlog::error("session {}: {}", info.id,
                      loaded ? "no record of who owns it" : loaded.error().to_string());
        return;
    }
    const engine::DurableRecord record = **loaded;
    const auto session = open_session(info, record.epoch, false, device.value_or(usual_device()));
    session->set_ticket(ticket);
    (void)devices_.probe(session->device(), DeviceBook::Probe::kUnlessKnown);
    const std::size_t adopted = session->adopt_workers(workers, handlers_for(info.id), true);
    spdlog::info("session {}: {} of {} workers are still running", info.id, adopted,
                 workers.size());
    if (info.kind == SessionKind::kLocal && adopted == 0) {
        housekeeping_.post([this, session] { close_session(session, wire::WorkerState::kDead); });
        return;
    }
    if (suspended) {  // a VM's: a local program's region went with the gantryd that held it
        session->set_suspended(*suspended);
        (void)session->write_record();
    } else {
        // Twice when it was on its way from one to the other.
        devices_.promise(info.id, session->device(), info.quota_bytes);
        for (const auto& worker : session->workers().all()) {
            devices_.promise(info.id, worker->device_number(), info.quota_bytes);
        }
    }
    engine::source_event::Restarted event;
    event.record = record;
    event.workers_alive = adopted == workers.size();
    event.ticket = ticket;
    if (auto token = session->source().frozen_token()) {
        event.frozen = *token;
        if (!*token && event.workers_alive && !record.granted && !suspended) {
            // Some may be frozen, for a freeze or a thaw that the last gantryd did not end.
            (void)session->source().thaw();
        }
    }
    event.announced = session->source().is_announced();
    session->driver()->feed(std::move(event));
    watch_region(session);
    saves_.renew_mark(session);
}

/// Workers that hold the complete state may be all that is left of the session: the machine asks
/// the source. Anything less goes back to it, in case that it was granted in the last moments; but
/// not what this host's disk says it owns, which may have been served: the source is told again,
/// or it would keep what it has for ever.
void Registry::adopt_arrival(const ArrivalNote& note, std::optional<DeviceNumber> device,
                             const std::vector<WorkerRecord>& workers) {
    const ArrivalRequest& request = note.request;
    const std::string id = request.info.id;
    ArrivalHooks hooks = arrival_hooks(request);
    auto arrival =
        std::make_shared<Arrival>(request, config_, stock_, settings(), store_, std::move(hooks));
    const auto session = arrival->session();
    session->begin_on(device.value_or(usual_device()));
    (void)devices_.probe(session->device(), DeviceBook::Probe::kUnlessKnown);
    const auto loaded = store_.load(id);
    std::optional<engine::DurableRecord> owned;
    if (loaded && *loaded && !(*loaded)->granted && (*loaded)->epoch == note.epoch) {
        owned = **loaded;
    }
    session->set_arrival_note(to_json(note).dump());
    const std::size_t adopted =
        session->adopt_workers(workers, handlers_for(id), owned.has_value());
    const bool is_known = note.migration != engine::MigrationId{};
    if (!tls_ || !loaded || !is_known) {
        spdlog::warn("session {}: its arrival was cut short by the restart{}", id,
                     loaded ? "" : ": " + loaded.error().to_string());
        session->end(std::nullopt);
        session->remove_record();
        arrival->stop();
        return;
    }
    std::optional<engine::FreezeToken> complete;
    if (adopted == workers.size() && adopted != 0) {
        if (auto token = arrival->complete_token()) {
            complete = *token;
        }
    }
    if (!complete && !owned) {
        spdlog::warn("session {}: its arrival was cut short by the restart", id);
    }
    sessions_.put_arrival(id, arrival);
    devices_.promise(id, session->device(), request.info.quota_bytes);
    transport::PeerClient client(request.source_address, *tls_, identity());
    arrival->resume(
        [&](transport::TargetLinkHandlers handlers) {
            return client.pull(id, std::move(handlers));
        },
        owned, complete ? complete->migration : note.migration, complete);
    if (request.arrives_when_converged) {  // no hypervisor will say so again
        arrival->feed(engine::target_event::GuestResumedMigrated{});
    }
}

/// A session given away whose target has not confirmed yet may still ask for its grant.
void Registry::restore_granted(const std::string& id) {
    const auto loaded = store_.load(id);
    if (!loaded) {
        spdlog::error("{}", loaded.error().to_string());
        return;
    }
    if (!*loaded) {
        return;
    }
    if (!(*loaded)->granted) {
        // Owned, and no worker is left: the state went with the workers (a reboot, most likely).
        (void)store_.remove(id);
        return;
    }
    SessionInfo info;
    info.id = id;
    info.kind = SessionKind::kVm;
    const auto session = open_session(info, (*loaded)->epoch, false, usual_device());
    engine::source_event::Restarted event;
    event.record = **loaded;
    event.workers_alive = false;
    session->driver()->feed(std::move(event));
}

}  // namespace gantry::supervisor
