// What the source machine is told: one small struct for each event, and their variant.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "migration/engine/machine.h"

namespace gantry::engine {

struct RoundStats {
    std::uint64_t bytes_resident = 0;
    std::uint64_t bytes_changed = 0;       ///< Found by the scan of this round.
    std::uint64_t bytes_content = 0;       ///< Content of the blocks sent so far in this round.
    std::uint64_t bytes_acknowledged = 0;  ///< Content of those that the target has confirmed.
    std::uint64_t bytes_sent = 0;   ///< Put on the link for it, after elision and compression.
    std::uint64_t batch_count = 0;  ///< RoundSent: batches of this round on all streams together.
    Duration scan{};                ///< Part of `elapsed`: graphs and scans, before any block is
                                    ///< read.
    Duration elapsed{};
};

namespace source_event {

/// A message of the target.
struct Received {
    Message message;
    Seed seed;              ///< 128 fresh random bits for a migration that may begin now.
    std::string peer = {};  ///< Name of the certificate of the host that sent it.
};
/// next_deadline() has come.
struct Timer {};

// outcomes of actions

struct Described {
    SessionNeeds needs;
};
struct DescribeFailed {
    Error error;
};
struct PrecopyBegun {};
/// All batches were handed to the link; the acknowledgement is a message.
struct RoundSent {
    std::uint64_t round = 0;
    RoundStats stats;
};
/// The figures so far.
struct RoundProgress {
    std::uint64_t round = 0;
    RoundStats stats;
};
/// Trouble with a stream or a worker. Of BeginPrecopy: no round.
struct RoundFailed {
    std::uint64_t round = 0;
    Error error;
};
struct Frozen {
    FreezeToken token;
};
/// StateSource has thawed.
struct FreezeFailed {
    Error error;
};
struct CompleteSent {
    FreezeToken token;
};
struct CompleteFailed {
    FreezeToken token;
    Error error;
};
struct GrantDurable {};
/// The driver has PROOF that the record is not on disk (the rename was not done, or was undone and
/// that was fsynced). When unsure it must end the process instead and read the disk at restart.
struct GrantWriteFailed {
    Error error;
};
struct Thawed {};
struct Released {};
/// The VM's metadata shows the new ticket, and a restart will know it.
struct TicketStands {
    Ticket ticket;
};
/// Not written; the old one, if any, stands.
struct TicketFailed {};

// the host

/// A worker of the session died: its program's state here is gone.
struct WorkerLost {};
struct Domain {
    DomainReport report;
};
/// SUSPENDED_MIGRATED, SUSPENDED_POSTCOPY.
struct GuestSuspended {};
/// QMP pre-switchover/device, GET_VRING_BASE, the lock plugin's release.
struct GuestPreSwitchover {};
/// Any RESUMED on this host.
struct GuestResumed {};
/// STOPPED_MIGRATED: moved away for good.
struct GuestGone {};
/// Shut down, destroyed or crashed here, not migrated.
struct GuestStopped {};
/// QMP failed or cancelled.
struct JobFailed {};

// operators and gantryd

struct OperatorAbort {};
/// The move under way, or the next one if there is none, may pause for longer than downtime_max.
struct OperatorForce {};
/// In kHolding or kGranted: the state may go.
struct OperatorDiscard {};
/// First event of a session that has just been opened here, or has arrived.
struct Opened {};
/// First event after a restart of gantryd.
struct Restarted {
    DurableRecord record;
    Ticket ticket;                      ///< The last that stood.
    std::optional<FreezeToken> frozen;  ///< What StateSource::frozen_token says.
    bool workers_alive = true;          ///< Every worker of the session lives.
    bool announced = false;             ///< What StateSource::announce said still holds.
};

}  // namespace source_event

using SourceEvent =
    std::variant<source_event::Received, source_event::Timer, source_event::Described,
                 source_event::DescribeFailed, source_event::PrecopyBegun, source_event::RoundSent,
                 source_event::RoundProgress, source_event::RoundFailed, source_event::Frozen,
                 source_event::FreezeFailed, source_event::CompleteSent,
                 source_event::CompleteFailed, source_event::GrantDurable,
                 source_event::GrantWriteFailed, source_event::Thawed, source_event::Released,
                 source_event::TicketStands, source_event::TicketFailed, source_event::WorkerLost,
                 source_event::Domain, source_event::GuestSuspended,
                 source_event::GuestPreSwitchover, source_event::GuestResumed,
                 source_event::GuestGone, source_event::GuestStopped, source_event::JobFailed,
                 source_event::OperatorAbort, source_event::OperatorForce,
                 source_event::OperatorDiscard, source_event::Opened, source_event::Restarted>;

/// For logs.
[[nodiscard]] const char* event_name(const SourceEvent& event);

}  // namespace gantry::engine
