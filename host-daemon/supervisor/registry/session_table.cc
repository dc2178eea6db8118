#include "host-daemon/supervisor/registry/session_table.h"

#include <algorithm>
#include <utility>

namespace gantry::supervisor {

SessionTable::Here SessionTable::here(const std::string& id, const Entry& entry) {
    return {id, entry.session, entry.driver, entry.alerts};
}

SessionTable::Taken SessionTable::taken(Entry& entry) {
    return {std::move(entry.session), std::move(entry.driver), std::move(entry.watcher)};
}

SessionTable::Here SessionTable::find(const std::string& id) const {
    const MutexLock lock(mutex_);
    const auto found = sessions_.find(id);
    return found == sessions_.end() ? Here{} : here(id, found->second);
}

SessionTable::Here SessionTable::find_named(const std::string& name) const {
    const MutexLock lock(mutex_);
    for (const auto& [id, entry] : sessions_) {
        if (name == id || (!name.empty() && name == entry.session->info().vm_name)) {
            return here(id, entry);
        }
    }
    return {};
}

std::shared_ptr<Arrival> SessionTable::arrival(const std::string& id) const {
    const MutexLock lock(mutex_);
    const auto found = arrivals_.find(id);
    return found == arrivals_.end() ? nullptr : found->second;
}

std::shared_ptr<Arrival> SessionTable::arrival_named(const std::string& name) const {
    const MutexLock lock(mutex_);
    for (const auto& [id, arrival] : arrivals_) {
        if (name == id || (!name.empty() && name == arrival->request().info.vm_name)) {
            return arrival;
        }
    }
    return nullptr;
}

SessionTable::All SessionTable::all() const {
    const MutexLock lock(mutex_);
    All out;
    for (const auto& [id, entry] : sessions_) {
        out.here.push_back(here(id, entry));
    }
    for (const auto& [id, arrival] : arrivals_) {
        out.coming.push_back({id, arrival});
    }
    return out;
}

bool SessionTable::is_concerned(const std::string& id) const {
    const Here found = find(id);
    if (!found) {
        return false;
    }
    const SourceStatus status = found.driver->status();
    return status.serves || (status.migration && status.state != engine::SourceState::kGranted);
}

bool SessionTable::is_stopping() const {
    const MutexLock lock(mutex_);
    return stopping_;
}

void SessionTable::put(const std::shared_ptr<Session>& session,
                       std::shared_ptr<SourceRunner> driver) {
    const MutexLock lock(mutex_);
    Entry& entry = sessions_[session->info().id];
    entry.session = session;
    entry.driver = std::move(driver);
}

void SessionTable::watch(const std::shared_ptr<Session>& session,
                         std::unique_ptr<RegionWatcher> watcher) {
    const MutexLock lock(mutex_);
    const auto found = sessions_.find(session->info().id);
    if (found != sessions_.end() && found->second.session == session) {
        found->second.watcher.swap(watcher);
    }
}

std::optional<SessionTable::Taken> SessionTable::take(const std::string& id) {
    const MutexLock lock(mutex_);
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) {
        return std::nullopt;
    }
    Taken out = taken(found->second);
    sessions_.erase(found);
    return out;
}

std::optional<SessionTable::Taken> SessionTable::take(const std::shared_ptr<Session>& session) {
    const MutexLock lock(mutex_);
    const auto found = sessions_.find(session->info().id);
    if (found == sessions_.end() || found->second.session != session) {
        return std::nullopt;
    }
    Taken out = taken(found->second);
    sessions_.erase(found);
    return out;
}

Result<void> SessionTable::begin_arrival(const std::string& id, std::shared_ptr<Arrival> arrival) {
    const MutexLock lock(mutex_);
    if (stopping_) {
        return Error{Code::kUnavailable, "daemon.stopping", "gantryd is being stopped"};
    }
    if (arrivals_.contains(id)) {
        return Error{Code::kAlreadyExists, "migration.under_way",
                     "session " + id + " is already on its way here; wait, or `gantry abort`"};
    }
    if (const auto found = sessions_.find(id);
        found != sessions_.end() && found->second.driver->status().serves) {
        return Error{Code::kAlreadyExists, "session.here",
                     "session " + id + " is served by this gantryd already"};
    }
    arrivals_[id] = std::move(arrival);
    return {};
}

void SessionTable::put_arrival(const std::string& id, std::shared_ptr<Arrival> arrival) {
    const MutexLock lock(mutex_);
    arrivals_[id] = std::move(arrival);
}

std::shared_ptr<Arrival> SessionTable::take_arrival(const std::string& id,
                                                    const std::function<void()>& if_not_here) {
    const MutexLock lock(mutex_);
    const auto found = arrivals_.find(id);
    if (found == arrivals_.end()) {
        return nullptr;
    }
    std::shared_ptr<Arrival> out = std::move(found->second);
    arrivals_.erase(found);
    if (!sessions_.contains(id)) {
        if_not_here();
    }
    return out;
}

void SessionTable::if_unknown(const std::string& id, const std::function<void()>& last) {
    const MutexLock lock(mutex_);
    if (!sessions_.contains(id) && !arrivals_.contains(id)) {
        last();
    }
}

void SessionTable::unless_arriving(const std::string& id, const std::function<void()>& last) {
    const MutexLock lock(mutex_);
    if (!arrivals_.contains(id)) {
        last();
    }
}

bool SessionTable::if_gone(const std::shared_ptr<Session>& session,
                           const std::function<void()>& last) {
    const MutexLock lock(mutex_);
    const std::string& id = session->info().id;
    const auto arrival = arrivals_.find(id);  // Its own, perhaps, not confirmed yet.
    const bool is_back = sessions_.contains(id) ||
                         (arrival != arrivals_.end() && arrival->second->session() != session);
    if (!is_back) {
        last();
    }
    return !is_back;
}

void SessionTable::add_alert(const std::string& id, std::string text, std::size_t most) {
    const MutexLock lock(mutex_);
    if (const auto found = sessions_.find(id); found != sessions_.end()) {
        std::vector<std::string>& alerts = found->second.alerts;
        if (alerts.size() >= most) {
            alerts.erase(alerts.begin());
        }
        alerts.push_back(std::move(text));
    }
}

SessionTable::Addressee SessionTable::note_message(const std::string& id,
                                                   engine::MigrationId migration, bool gives_up) {
    const MutexLock lock(mutex_);
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) {
        return {stopping_, nullptr};
    }
    Entry& entry = found->second;
    if (gives_up) {
        entry.pull_ended = migration;
        entry.peer_heard = {};
    } else if (entry.pull_ended != migration) {
        entry.peer_heard = SerialExecutor::Clock::now();
    }
    return {stopping_, entry.driver};
}

bool SessionTable::is_pulled(const std::string& id,
                             SerialExecutor::Clock::duration silence_max) const {
    const MutexLock lock(mutex_);
    const auto found = sessions_.find(id);
    return found != sessions_.end() &&
           SerialExecutor::Clock::now() - found->second.peer_heard < silence_max;
}

bool SessionTable::end_attempt(const std::string& id, const Error& error) {
    const MutexLock lock(mutex_);
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) {
        return false;
    }
    Entry& entry = found->second;
    const SourceStatus status = entry.driver->status();
    entry.peer_heard = {};
    entry.pull_ended = status.last_migration;
    entry.attempt_error.reset();
    if (status.awaits_attempt) {
        entry.attempt_error = error;
    }
    return status.awaits_attempt;
}

std::optional<Error> SessionTable::take_attempt_error(const std::string& id) {
    const MutexLock lock(mutex_);
    const auto found = sessions_.find(id);
    return found == sessions_.end() ? std::nullopt
                                    : std::exchange(found->second.attempt_error, std::nullopt);
}

std::pair<std::vector<SessionTable::Taken>, std::vector<std::shared_ptr<Arrival>>>
SessionTable::stop() {
    const MutexLock lock(mutex_);
    stopping_ = true;
    std::pair<std::vector<Taken>, std::vector<std::shared_ptr<Arrival>>> out;
    for (auto& [id, entry] : std::exchange(sessions_, {})) {
        out.first.push_back(taken(entry));
    }
    for (auto& [id, arrival] : std::exchange(arrivals_, {})) {
        out.second.push_back(std::move(arrival));
    }
    return out;
}

}  // namespace gantry::supervisor
