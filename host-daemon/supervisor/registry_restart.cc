// Registry after a restart of gantryd: workers that are still running, sessions that were granted.
#include <dirent.h>
#include <spdlog/spdlog.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "host-daemon/supervisor/registry.h"

namespace gantry::supervisor {
namespace {

struct SessionRecord {
    SessionInfo info;
    std::vector<WorkerRecord> workers;
};

Result<SessionRecord> read_record(const std::string& path) {
    std::ifstream file(path);
    const nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
    if (json.is_discarded() || !json.contains("session") || !json.contains("workers")) {
        return Error{Code::kDataLoss, "record.corrupt", path + " is damaged"};
    }
    SessionRecord record;
    GANTRY_ASSIGN(record.info, session_info_from_json(json["session"]));
    for (const nlohmann::json& worker : json["workers"]) {
        GANTRY_ASSIGN(WorkerRecord one, worker_record_from_json(worker));
        if (!is_part(one.part)) {
            return Error{Code::kDataLoss, "record.corrupt", path + " names no part"};
        }
        record.workers.push_back(std::move(one));
    }
    return record;
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
        adopt_session(record->info, record->workers);
    }
    GANTRY_ASSIGN(const auto known, store_.sessions());
    for (const std::string& id : known) {
        const std::lock_guard lock(mutex_);
        if (!sessions_.contains(id)) {
            restore_granted(id);
        }
    }
    return {};
}

void Registry::adopt_session(const SessionInfo& info, const std::vector<WorkerRecord>& workers) {
    auto loaded = store_.load(info.id);
    if (!loaded || !*loaded) {
        spdlog::error("session {}: {}", info.id,
                      loaded ? "no record of who owns it" : loaded.error().to_string());
        return;
    }
    const engine::DurableRecord record = **loaded;
    const auto session = open_session(info, record.epoch, false);
    const std::size_t adopted = session->adopt_workers(workers, handlers_for(info.id));
    spdlog::info("session {}: {} of {} workers are still running", info.id, adopted,
                 workers.size());
    if (info.kind == SessionKind::kLocal && adopted == 0) {
        housekeeping_.post([this, id = info.id] { close_session(id, wire::WorkerState::kDead); });
        return;
    }
    {
        const std::lock_guard lock(mutex_);
        promised_bytes_[info.id] = info.quota_bytes;
    }
    engine::SourceEvent event;
    event.kind = engine::SourceEventKind::kRestarted;
    event.record = record;
    event.workers_alive = adopted == workers.size();
    if (auto token = session->source().frozen_token()) {
        event.frozen = *token;
    }
    session->driver()->feed(std::move(event));
    watch_region(info.id);
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
    const auto session = open_session(info, (*loaded)->epoch, false);
    engine::SourceEvent event;
    event.kind = engine::SourceEventKind::kRestarted;
    event.record = **loaded;
    event.workers_alive = false;
    session->driver()->feed(std::move(event));
}

}  // namespace gantry::supervisor
