// What the target machine is told: one small struct for each event, and their variant.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "migration/engine/machine.h"

namespace gantry::engine {

namespace target_event {

/// A message of the source.
struct Received {
    Message message;
};
/// next_deadline() has come.
struct Timer {};
/// First event; the hook waits.
struct AdmissionAsked {
    MigrationId migration;
    TargetCapabilities capabilities;
    Ticket ticket = {};  ///< Out of the XML that libvirt's migration brought.
};

// outcomes of actions

struct Reserved {};
struct ReserveFailed {
    Error error;
};
/// All batches of the round were applied.
struct RoundApplied {
    std::uint64_t round = 0;
};
/// A stream broke.
struct RoundLost {
    std::uint64_t round = 0;
    Error error;
};
/// The final state was applied, the digests are equal, it is marked complete.
struct Applied {
    FreezeToken token;
};
/// The digests differ, or an object could not be built.
struct ApplyFailed {
    FreezeToken token;
    Error error;
};
struct OwnedDurable {};
struct Activated {};
struct ActivateFailed {
    Error error;
};
struct Retracted {
    bool may_have_served = false;  ///< Then nothing was retracted.
};

// the host

struct WorkerLost {};
struct Domain {
    DomainReport report;
};
/// STARTED_MIGRATED: an incoming QEMU is up.
struct GuestStarting {};
/// It runs, and its memory is complete (also RESUMED_UNPAUSED).
struct GuestResumedMigrated {};
/// It runs, and its memory is incomplete.
struct GuestResumedPostcopy {};
/// SUSPENDED_PAUSED after completion.
struct GuestArrivedPaused {};
/// The first request of the guest on this host.
struct GuestCalled {};
/// STOPPED_*, or the hook's release end: the guest is not here (any more).
struct GuestStopped {};

// operators and gantryd

struct OperatorAbort {};
/// A person vouches that the source host is down and stays down.
struct OperatorFenced {
    Epoch known;  ///< The newest epoch that this host knows of; 0: of none.
};
/// First event after a restart of gantryd.
struct Restarted {
    MigrationId migration;
    DurableRecord record;                 ///< Epoch 0: nothing is owned.
    std::optional<FreezeToken> complete;  ///< What StateSink::complete_token says.
    bool active = false;                  ///< The workers serve record.epoch already.
    Ticket ticket;                        ///< As AdmissionAsked had it.
};

}  // namespace target_event

using TargetEvent =
    std::variant<target_event::Received, target_event::Timer, target_event::AdmissionAsked,
                 target_event::Reserved, target_event::ReserveFailed, target_event::RoundApplied,
                 target_event::RoundLost, target_event::Applied, target_event::ApplyFailed,
                 target_event::OwnedDurable, target_event::Activated, target_event::ActivateFailed,
                 target_event::Retracted, target_event::WorkerLost, target_event::Domain,
                 target_event::GuestStarting, target_event::GuestResumedMigrated,
                 target_event::GuestResumedPostcopy, target_event::GuestArrivedPaused,
                 target_event::GuestCalled, target_event::GuestStopped, target_event::OperatorAbort,
                 target_event::OperatorFenced, target_event::Restarted>;

/// For logs.
[[nodiscard]] const char* event_name(const TargetEvent& event);

}  // namespace gantry::engine
