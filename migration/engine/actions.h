// What the two machines ask of the code that drives them: one small struct for each action, with
// only the fields that it uses, and one variant for each machine.
//
// The answers that a comment names are events of the machine that asked (source_events.h,
// target_events.h).
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "migration/engine/machine.h"

namespace gantry::engine {

namespace action {

// both machines

struct Send {
    Message message;
};
/// Answer: Domain.
struct QueryDomain {};
struct Alert {
    AlertKind kind = AlertKind::kAwaitingPeer;
    Error error;
};
struct ReportProgress {
    Progress progress;
};
/// The migration is over on this side.
struct Finished {
    Outcome outcome = Outcome::kNone;
    Error error = {};  ///< Of outcomes other than kMoved.
};

// source

/// StateSource::announce, describe. Answer: Described or DescribeFailed.
struct Describe {};
/// Answer: PrecopyBegun or RoundFailed.
struct BeginPrecopy {
    Seed seed;
};
/// Send graphs, scan, send what changed. Answer: RoundSent or RoundFailed.
struct SendRound {
    std::uint64_t round = 0;
};
/// As SendRound, but first mark what was not acknowledged as unsent.
struct ResendRound {
    std::uint64_t round = 0;
};
/// Answer: Frozen or FreezeFailed.
struct Freeze {
    FreezeToken token;
    Duration deadline{};
};
/// The final parts as MsgComplete. Answer: CompleteSent or CompleteFailed.
struct SendComplete {
    FreezeToken token;
    std::uint64_t round = 0;
};
/// A grant, or the epoch after one that came back unused. Answer: GrantDurable, or GrantWriteFailed
/// (see there).
struct PersistGrant {
    DurableRecord record;
};
/// StateSource::fence.
struct Fence {
    bool guest_is_here = false;
};
/// StateSource::unfence.
struct Unfence {
    Epoch epoch;
};
/// StateSource::thaw. Answer: Thawed.
struct Thaw {};
struct EndPrecopy {};
/// StateSource::end_announcement.
struct EndAnnouncement {};
/// Answer: Released.
struct Release {};
/// virDomainAbortJob, if the settings allow it.
struct AbortJob {};
/// Draw a ticket, write it into the VM's metadata and where a restart finds it. Answer:
/// TicketStands or TicketFailed.
struct RenewTicket {};

// target

/// Answer: Reserved or ReserveFailed.
struct Reserve {
    SessionNeeds needs;
    Seed seed;
};
/// Let the hook end with success.
struct Admit {};
/// Let the hook end with 1, and error.text on stderr.
struct RefuseAdmission {
    Error error;
};
/// Answer RoundApplied once all batches of the round were applied.
struct AwaitRound {
    std::uint64_t round = 0;
    std::uint64_t batch_count = 0;
};
/// apply_final, digests, mark_complete. Answer: Applied or ApplyFailed.
struct ApplyComplete {
    FreezeToken token;
    std::vector<FinalPart> parts;
};
/// StateSink::mark_complete of the empty token: the source thawed.
struct UnmarkComplete {};
/// Answer: OwnedDurable.
struct PersistOwned {
    DurableRecord record;
};
/// Answer: Activated or ActivateFailed.
struct Activate {
    Epoch epoch;
};
/// StateSink::retract, after any Activate. Answer: Retracted.
struct Retract {};
/// StateSink::discard.
struct Discard {};

}  // namespace action

using SourceAction =
    std::variant<action::Send, action::QueryDomain, action::Alert, action::ReportProgress,
                 action::Finished, action::Describe, action::BeginPrecopy, action::SendRound,
                 action::ResendRound, action::Freeze, action::SendComplete, action::PersistGrant,
                 action::Fence, action::Unfence, action::Thaw, action::EndPrecopy,
                 action::EndAnnouncement, action::Release, action::AbortJob, action::RenewTicket>;
using TargetAction =
    std::variant<action::Send, action::QueryDomain, action::Alert, action::ReportProgress,
                 action::Finished, action::Reserve, action::Admit, action::RefuseAdmission,
                 action::AwaitRound, action::ApplyComplete, action::UnmarkComplete,
                 action::PersistOwned, action::Activate, action::Retract, action::Discard>;

/// In the order in which they are to be carried out.
using SourceActions = std::vector<SourceAction>;
using TargetActions = std::vector<TargetAction>;

}  // namespace gantry::engine
