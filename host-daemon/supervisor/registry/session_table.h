// SessionTable: which sessions are here, and which are on their way here.
//
// One table for both: a session that has arrived is in both until its source knows, and whether an
// id is free is one question. Threads: any (attaching programs, operators, peers, libvirt's events,
// the executors of moves). The lock is a leaf but for two things: SourceRunner::status(), and the
// functions that only_if_gone() and their like are given, which may lock the books of devices, of
// shares and a session, and nothing that leads back here. Nobody waits, and no worker, peer or
// hypervisor is asked, while it is held.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host-daemon/supervisor/sessions/arrival.h"
#include "host-daemon/supervisor/sessions/region_watcher.h"
#include "host-daemon/supervisor/sessions/session.h"
#include "proto/base/mutex.h"
#include "proto/base/serial_executor.h"

namespace gantry::supervisor {

class SessionTable {
public:
    /// A session that is here; nothing of it: there is none.
    struct Here {
        std::string id;
        std::shared_ptr<Session> session;
        std::shared_ptr<SourceRunner> driver;
        std::vector<std::string> alerts;
        explicit operator bool() const { return session != nullptr; }
    };
    struct Coming {
        std::string id;
        std::shared_ptr<Arrival> arrival;
    };
    struct All {
        std::vector<Here> here;
        std::vector<Coming> coming;
    };
    /// What has left the table and is to be ended by whoever took it.
    struct Taken {
        std::shared_ptr<Session> session;
        std::shared_ptr<SourceRunner> driver;
        std::unique_ptr<RegionWatcher> watcher;
    };
    /// Whom a peer's message concerns.
    struct Addressee {
        bool is_stopping = false;  ///< Then nobody answers.
        std::shared_ptr<SourceRunner> driver;
    };

    [[nodiscard]] Here find(const std::string& id) const;
    /// By id or by the VM's name.
    [[nodiscard]] Here find_named(const std::string& name) const;
    [[nodiscard]] std::shared_ptr<Arrival> arrival(const std::string& id) const;
    [[nodiscard]] std::shared_ptr<Arrival> arrival_named(const std::string& name) const;
    [[nodiscard]] All all() const;
    /// True while the session is served here or is leaving: events of the VM are its own.
    [[nodiscard]] bool is_concerned(const std::string& id) const;
    [[nodiscard]] bool is_stopping() const;

    /// The session is here from now on.
    void put(const std::shared_ptr<Session>& session, std::shared_ptr<SourceRunner> driver);
    /// Replaces the session's watcher; nothing when another one has that id by now.
    void watch(const std::shared_ptr<Session>& session, std::unique_ptr<RegionWatcher> watcher);
    /// The session of that id, or exactly that session. Nothing: it is not here (any more).
    std::optional<Taken> take(const std::string& id);
    std::optional<Taken> take(const std::shared_ptr<Session>& session);

    /// kAlreadyExists while the session is here or on its way; kUnavailable while gantryd stops.
    Result<void> begin_arrival(const std::string& id, std::shared_ptr<Arrival> arrival);
    /// Of a restart: nothing else has that id.
    void put_arrival(const std::string& id, std::shared_ptr<Arrival> arrival);
    /// `if_not_here`: run while no other session can take that id.
    std::shared_ptr<Arrival> take_arrival(const std::string& id,
                                          const std::function<void()>& if_not_here);

    // Each runs `last` while no other session can take that id, if the condition holds.
    /// Neither here nor on its way.
    void if_unknown(const std::string& id, const std::function<void()>& last);
    void unless_arriving(const std::string& id, const std::function<void()>& last);
    /// After take(): it is neither here again nor on its way in another session. False otherwise.
    bool if_gone(const std::shared_ptr<Session>& session, const std::function<void()>& last);

    /// Keeps at most `most`, the newest.
    void add_alert(const std::string& id, std::string text, std::size_t most = SIZE_MAX);
    /// A target's message came; `gives_up`: its last of that migration.
    Addressee note_message(const std::string& id, engine::MigrationId migration, bool gives_up);
    /// A target was heard of within `silence_max` that has not given up.
    [[nodiscard]] bool is_pulled(const std::string& id,
                                 SerialExecutor::Clock::duration silence_max) const;
    /// An attempt of a move from here has ended. True: another one may come, and `error` is kept.
    bool end_attempt(const std::string& id, const Error& error);
    /// What end_attempt() has kept: no other attempt came.
    std::optional<Error> take_attempt_error(const std::string& id);

    /// Empties the table; from now on nothing arrives.
    std::pair<std::vector<Taken>, std::vector<std::shared_ptr<Arrival>>> stop();

private:
    struct Entry {
        std::shared_ptr<Session> session;
        std::shared_ptr<SourceRunner> driver;
        std::unique_ptr<RegionWatcher> watcher;
        std::vector<std::string> alerts;
        SerialExecutor::Clock::time_point peer_heard;   ///< A target's last message.
        std::optional<Error> attempt_error;             ///< While another attempt may come.
        std::optional<engine::MigrationId> pull_ended;  ///< What it says now counts no more.
    };

    static Here here(const std::string& id, const Entry& entry);
    static Taken taken(Entry& entry);

    mutable Mutex mutex_;
    std::map<std::string, Entry> sessions_ GANTRY_GUARDED_BY(mutex_);
    std::map<std::string, std::shared_ptr<Arrival>> arrivals_ GANTRY_GUARDED_BY(mutex_);
    bool stopping_ GANTRY_GUARDED_BY(mutex_) = false;
};

}  // namespace gantry::supervisor
