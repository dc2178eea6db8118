// What the two state machines share: time, libvirt hints, durable records, settings. Their actions
// stand in actions.h, their events in source_events.h and target_events.h.
//
// Both machines are pure: step(event, now) returns actions in order; no clocks, sockets, threads or
// files. The driver (gantryd, or the simulator) carries actions out in order and feeds their
// outcomes back as events. It may do slow actions in the background; it must not reorder persisting
// against what follows it: the machine itself waits for the durable event before it goes on.
// One thread at a time per machine.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "migration/engine/messages.h"
#include "migration/engine/state.h"

namespace gantry::engine {

/// Time since an arbitrary start of the driver's steady clock. It never goes back within one life
/// of a machine.
using TimePoint = std::chrono::microseconds;
using Duration = std::chrono::microseconds;

/// What libvirt says about the domain on this host, asked for by action::QueryDomain.
enum class DomainState : std::uint32_t {
    kUnknown = 1,  ///< libvirt does not answer: decides nothing.
    kRunning = 2,
    kPaused = 3,
    kAbsent = 4,  ///< Not defined, or shut off: no QEMU process of it here.
};
enum class JobState : std::uint32_t {
    kUnknown = 1,
    kNone = 2,
    kOutgoing = 3,  ///< A migration away from this host is under way.
    kIncoming = 4,
};
/// Why a guest that is kPaused or kAbsent does not run here.
enum class StopCause : std::uint32_t {
    kUnknown = 1,    ///< libvirt does not say (any more): decides nothing.
    kMigration = 2,  ///< A migration away from this host paused it, or has taken it away.
    kOther = 3,      ///< An operator, an error, its own end.
};
struct DomainReport {
    DomainState domain = DomainState::kUnknown;
    JobState job = JobState::kUnknown;
    StopCause cause = StopCause::kUnknown;
};

/// Durable, one per session and host. The only fact that survives a host: written with write to a
/// temporary file, fsync, rename, fsync of the folder.
struct DurableRecord {
    Epoch epoch;                    ///< The newest epoch that this host owns or owned.
    bool granted = false;           ///< epoch + 1 was given away, once, for ever:
    MigrationId granted_migration;  ///< ... to this migration. If not granted: it gave that back.
    FreezeToken granted_token;
    std::string granted_peer = {};  ///< Name of the certificate that it was given to.
    friend bool operator==(const DurableRecord&, const DurableRecord&) = default;
};

enum class Phase : std::uint32_t {
    kIdle = 1,
    kPreflight = 2,
    kPrecopy = 3,
    kSwitchover = 4,
    kCommit = 5,
    kDone = 6,
    kFailed = 7,
};

/// For people and metrics. percent never runs backwards within one migration.
struct Progress {
    Phase phase = Phase::kIdle;
    double percent = 0.0;
    std::uint64_t round = 0;
    std::uint64_t bytes_total = 0;  ///< Resident bytes of the session.
    /// Content of the blocks sent so far, each time it was sent.
    std::uint64_t bytes_content = 0;
    std::uint64_t bytes_sent = 0;  ///< Put on the link for it, after elision and compression.
    /// At the target still to come: of the round under way, or, between two, what a scan would
    /// find by the estimate. All of it until the first round has ended.
    std::uint64_t bytes_remaining = 0;
    double link_bytes_per_second = 0.0;
    double dirty_bytes_per_second = 0.0;  ///< Found changed by the last scan; 0: not known yet.
    Duration downtime_estimate{};
    Duration downtime{};  ///< From freeze until thaw or grant, once known.
    Duration elapsed{};   ///< Since the migration began.
};

enum class AlertKind : std::uint32_t {
    kSplitBrain = 1,        ///< The guest runs at the source after the grant: it gets hard errors.
    kAwaitingPeer = 2,      ///< Frozen or complete, and the other side is silent.
    kAwaitingOperator = 3,  ///< Needs a person: fence and confirm, or discard.
    kStateLost = 4,         ///< A worker died and took state with it.
    kJobHangs = 5,          ///< libvirt's job goes on, but the target's gantryd is gone.
};

enum class Outcome : std::uint32_t {
    kNone = 0,
    kMoved = 1,       ///< The other side owns the session (source), or this one does (target).
    kRolledBack = 2,  ///< The source goes on as before.
    kRefused = 3,     ///< Preflight said no.
    kLost = 4,        ///< The workers died: nothing left to own here.
    kRetry = 5,       ///< Target: begin a new attempt with a new id (the guest is here already).
};

[[nodiscard]] const char* to_string(Phase phase);
[[nodiscard]] const char* to_string(Outcome outcome);

/// Limits and deadlines. Each is there so that no state lasts for ever.
struct Settings {
    Duration downtime_target{300'000};
    /// Source: a longer pause than this needs an operator's word; else the move is refused while
    /// the guest runs. Target: its hook waits for the source's verdict. 0: any.
    Duration downtime_max{10'000'000};
    std::uint32_t rounds_max = 30;
    Duration retry{250'000};        ///< First repeat of an unanswered message; doubles ...
    Duration retry_max{4'000'000};  ///< ... up to this.
    Duration heartbeat{2'000'000};
    Duration describe_deadline{10'000'000};
    Duration reservation_ttl{30'000'000};    ///< Target: silence of the source before the guest is
                                             ///< here.
    Duration hook_wait_max{25'000'000};      ///< Then a pause within downtime_max will do.
    Duration hook_hold_max{280'000'000};     ///< Then the move is refused for want of one.
    Duration arrival_deadline{600'000'000};  ///< Admitted, and no guest came.
    Duration round_deadline{120'000'000};    ///< One round without any acknowledgement.
    Duration idle_round_interval{500'000};   ///< Converged, waiting for the pause: scan again after
                                             ///< this.
    Duration job_poll{2'000'000};            ///< Source asks libvirt whether the job still runs.
    Duration job_absent_grace{6'000'000};    ///< No outgoing job for so long: roll back.
    Duration freeze_deadline{5'000'000};
    Duration peer_silence{30'000'000};         ///< Before an alert, and before kAbortJob.
    Duration switchover_deadline{60'000'000};  ///< Frozen and not granted: alert, ask libvirt.
    Duration operator_deadline{600'000'000};   ///< Then rest in kAwaitOperator.
    std::uint32_t round_failures_max = 8;
    std::uint32_t verify_failures_max = 3;
    bool may_abort_job = true;
    /// ivshmem: activation must wait until guest memory is complete (RESUMED_MIGRATED).
    bool activate_needs_guest_memory = true;
    /// Source: only a hypervisor's own migration may take the session, proven by its ticket and its
    /// job. False: the session is no VM's, and no hypervisor knows it.
    bool is_bound_to_hypervisor = true;
};

}  // namespace gantry::engine
