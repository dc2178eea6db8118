// HostStatus: what operators and metrics are told of this host, its sessions and their moves.
//
// Threads: any. Its lock holds the history of moves only. Workers are asked without any lock, and
// after all else has been said: one that does not answer holds up whoever asks, and no session.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "host-daemon/supervisor/moves/move_counters.h"
#include "host-daemon/supervisor/moves/move_history.h"
#include "host-daemon/supervisor/moves/move_records.h"
#include "host-daemon/supervisor/registry/device_book.h"
#include "host-daemon/supervisor/registry/session_table.h"
#include "proto/base/mutex.h"
#include "proto/control/gantryd.pb.h"

namespace gantry::supervisor {

class HostStatus {
public:
    HostStatus(std::string host, const SessionTable& sessions, const DeviceBook& devices,
               MoveRecords& records)
        : host_(std::move(host)), sessions_(sessions), devices_(devices), records_(records) {}

    /// Empty name: all. `ended_after`: also sessions that have left this host by a move that ended
    /// after this serial number of the history.
    control::ListSessionsReply list(const std::string& name,
                                    std::optional<std::uint64_t> ended_after);
    /// The session while it arrives, serves or has been given away.
    Result<control::SessionStatus> of(const std::string& name);

    [[nodiscard]] std::uint64_t history_serial() const;
    /// True when a move of that session (empty: of any) ended after this serial number.
    [[nodiscard]] bool has_ended(const std::string& name, std::uint64_t after) const;
    /// How the last move of a session ended that has been here, by its id or its VM's name.
    [[nodiscard]] std::optional<control::SessionStatus> ended(const std::string& name) const;
    /// Content a second in the last move that sent any; 0: there was none.
    [[nodiscard]] double link_bytes_per_second() const;
    [[nodiscard]] MoveCounters counters() const;
    /// A move from here is over; the session may leave the table right afterwards. Nothing: it has.
    void note_ended(const SessionTable::Here& session, engine::Outcome outcome, const Error& error);
    /// A move to here is over.
    void note_ended(const Arrival& arrival, engine::Outcome outcome, const Error& error);

private:
    /// Both without the workers.
    control::SessionStatus describe(const SessionTable::Here& here, const SessionTable::All& all);
    control::SessionStatus describe(const Arrival& arrival);
    void fill_gpus(control::ListSessionsReply* reply) const;
    /// `workers`: of the first sessions of the reply, in its order; those that follow have none.
    control::ListSessionsReply list_without_workers(
        const std::string& name, std::optional<std::uint64_t> ended_after,
        std::vector<std::vector<std::shared_ptr<Worker>>>* workers);

    const std::string host_;
    const SessionTable& sessions_;
    const DeviceBook& devices_;
    MoveRecords& records_;
    mutable Mutex mutex_;
    MoveHistory history_ GANTRY_GUARDED_BY(mutex_);
    MoveCounters counters_ GANTRY_GUARDED_BY(mutex_);
};

/// "running", "frozen", "granted", "released" or "lost".
std::string state_word(engine::SourceState state);

/// No session of that name: kNotFound with those that there are.
Error unknown_session(const std::string& name);

}  // namespace gantry::supervisor
