// MoveRecords: what this host has seen of its moves, stamp by stamp, kept in files of its state
// folder (STATE/moves/MIGRATION.outgoing.json or .incoming.json) for `gantry timeline`.
//
// One record for each side of each attempt; the other host's record of it joins the file when the
// move has ended. Bounds: kEventsMax stamps, kSamplesMax samples (then every second one is dropped
// and the next ones come half as often), kRecordsKept files, the oldest are removed. A record that
// cannot be written is lost, with a warning, and nothing else.
//
// What stands in MoveEvent.what:
//   both       state DETAIL, alert, message-like stamps below
//   outgoing   asked, round_begun, round_sent, round_acked, round_failed, freeze, frozen, verified,
//              grant_asked, granted, thawed, served_there, released, abort_job
//   incoming   offered, reserved, round_applied, converged, admitted, refused, apply, complete,
//              grant_came, activate, activated, first_call (of the guest, begun here), retract
//   the VM's   vm_started, vm_paused, vm_resumed, vm_stopped, job_pass, job_status, job_done
//
// Threads: any. Cost of a stamp: a lock and a short copy; the file is written on a thread of its
// own, half a second later.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "host-daemon/supervisor/moves/move_log.h"
#include "migration/engine/machine.h"
#include "proto/base/mutex.h"
#include "proto/base/result.h"
#include "proto/base/serial_executor.h"
#include "proto/control/gantryd.pb.h"

namespace gantry::supervisor {

/// The name of a migration in statuses and records: 32 hexadecimal digits.
std::string migration_text(engine::MigrationId id);

class MoveRecords final : public MoveSink {
public:
    static constexpr int kEventsMax = 400;
    static constexpr int kSamplesMax = 240;
    static constexpr std::size_t kRecordsKept = 200;

    /// `state_directory` is there; the folder in it is made with the first record.
    MoveRecords(const std::string& state_directory, std::string host);
    ~MoveRecords() override;

    void note(const Whose& whose, MoveStamp stamp) override;
    /// Outgoing: by which certificate the target is known.
    void note_peer(const Whose& whose, const std::string& peer) override;
    void sample(const Whose& whose, const engine::Progress& progress) override;
    /// A message of the other host came at `at_us`.
    void note_heard(const Whose& whose, const engine::MessageTime& time,
                    std::uint64_t at_us) override;
    /// For a message that is sent now.
    [[nodiscard]] engine::MessageTime stamp_message(const Whose& whose) override;
    /// Of the session's newest record, unless that ended long ago.
    void note_session(const std::string& session_id, MoveStamp stamp);
    /// `status` has a move with its outcome.
    void note_ended(const control::SessionStatus& status);

    [[nodiscard]] bool has(MoveSide side, const std::string& migration_id,
                           const std::string& what) const;
    /// The newest of a session or VM, or the one of that migration.
    [[nodiscard]] Result<control::MoveRecordsReply> find(const std::string& name,
                                                         const std::string& migration_id) const;
    /// The own record of a migration; nothing: there is none.
    [[nodiscard]] std::optional<control::MoveRecord> own(MoveSide side,
                                                         const std::string& migration_id) const;
    /// What the other host has recorded; it is cut to the bounds. False: no such record here.
    bool join_peer(MoveSide side, control::MoveRecord record);
    /// At the source, when a target hands its record of a move over: the own one. Only the host to
    /// which that move went is told of it.
    Result<control::MoveRecord> exchange(const control::MoveRecord& record,
                                         const std::string& peer);

private:
    using Key = std::pair<std::string, MoveSide>;  ///< Migration id as text.
    struct Entry {
        control::MoveRecordsReply records;
        std::uint64_t sample_interval_us = 20'000;
        std::uint64_t ended_us = 0;
        std::optional<std::int64_t> own_least_us;
        std::optional<std::int64_t> peer_least_us;
        bool is_changed = false;
    };

    Entry& entry(const Whose& whose) GANTRY_REQUIRES(mutex_);
    Entry* known(const Key& key) GANTRY_REQUIRES(mutex_);
    void change(Entry& entry) GANTRY_REQUIRES(mutex_);
    void write_changed();
    void prune() const;
    [[nodiscard]] std::string path_of(const Key& key) const;
    [[nodiscard]] std::optional<control::MoveRecordsReply> read(const std::string& path) const;

    const std::string folder_;
    const std::string host_;
    mutable Mutex mutex_;
    std::map<Key, Entry> entries_ GANTRY_GUARDED_BY(mutex_);
    bool is_write_due_ GANTRY_GUARDED_BY(mutex_) = false;
    SerialExecutor writer_;
};

/// CLOCK_MONOTONIC.
std::uint64_t monotonic_us();

}  // namespace gantry::supervisor
