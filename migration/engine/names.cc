// Names of enum values and messages for logs, and nothing else.
#include "migration/engine/source_machine.h"
#include "migration/engine/target_machine.h"

namespace gantry::engine {

#define GANTRY_NAME(type, name) \
    case type::k##name: return #name

const char* to_string(SourceState state) {
    switch (state) {
        GANTRY_NAME(SourceState, Serving);
        GANTRY_NAME(SourceState, Describing);
        GANTRY_NAME(SourceState, Offered);
        GANTRY_NAME(SourceState, Precopy);
        GANTRY_NAME(SourceState, Freezing);
        GANTRY_NAME(SourceState, FinalRound);
        GANTRY_NAME(SourceState, Frozen);
        GANTRY_NAME(SourceState, Granting);
        GANTRY_NAME(SourceState, Granted);
        GANTRY_NAME(SourceState, Thawing);
        GANTRY_NAME(SourceState, Recovering);
        GANTRY_NAME(SourceState, Holding);
        GANTRY_NAME(SourceState, Released);
        GANTRY_NAME(SourceState, Lost);
        GANTRY_NAME(SourceState, TakingBack);
    }
    return "?";
}

const char* to_string(SourceEventKind kind) {
    switch (kind) {
        GANTRY_NAME(SourceEventKind, Message);
        GANTRY_NAME(SourceEventKind, Timer);
        GANTRY_NAME(SourceEventKind, Described);
        GANTRY_NAME(SourceEventKind, DescribeFailed);
        GANTRY_NAME(SourceEventKind, PrecopyBegun);
        GANTRY_NAME(SourceEventKind, RoundSent);
        GANTRY_NAME(SourceEventKind, RoundProgress);
        GANTRY_NAME(SourceEventKind, RoundFailed);
        GANTRY_NAME(SourceEventKind, Frozen);
        GANTRY_NAME(SourceEventKind, FreezeFailed);
        GANTRY_NAME(SourceEventKind, CompleteSent);
        GANTRY_NAME(SourceEventKind, CompleteFailed);
        GANTRY_NAME(SourceEventKind, GrantDurable);
        GANTRY_NAME(SourceEventKind, GrantWriteFailed);
        GANTRY_NAME(SourceEventKind, Thawed);
        GANTRY_NAME(SourceEventKind, Released);
        GANTRY_NAME(SourceEventKind, WorkerLost);
        GANTRY_NAME(SourceEventKind, Domain);
        GANTRY_NAME(SourceEventKind, GuestSuspended);
        GANTRY_NAME(SourceEventKind, GuestPreSwitchover);
        GANTRY_NAME(SourceEventKind, GuestResumed);
        GANTRY_NAME(SourceEventKind, GuestGone);
        GANTRY_NAME(SourceEventKind, GuestStopped);
        GANTRY_NAME(SourceEventKind, JobFailed);
        GANTRY_NAME(SourceEventKind, OperatorAbort);
        GANTRY_NAME(SourceEventKind, OperatorDiscard);
        GANTRY_NAME(SourceEventKind, Restarted);
    }
    return "?";
}

const char* to_string(TargetState state) {
    switch (state) {
        GANTRY_NAME(TargetState, Asking);
        GANTRY_NAME(TargetState, Reserving);
        GANTRY_NAME(TargetState, Receiving);
        GANTRY_NAME(TargetState, Applying);
        GANTRY_NAME(TargetState, Complete);
        GANTRY_NAME(TargetState, Requesting);
        GANTRY_NAME(TargetState, Withdrawing);
        GANTRY_NAME(TargetState, Activating);
        GANTRY_NAME(TargetState, Serving);
        GANTRY_NAME(TargetState, Done);
        GANTRY_NAME(TargetState, Discarded);
        GANTRY_NAME(TargetState, Recovering);
        GANTRY_NAME(TargetState, Returning);
    }
    return "?";
}

const char* to_string(TargetEventKind kind) {
    switch (kind) {
        GANTRY_NAME(TargetEventKind, Message);
        GANTRY_NAME(TargetEventKind, Timer);
        GANTRY_NAME(TargetEventKind, AdmissionAsked);
        GANTRY_NAME(TargetEventKind, Reserved);
        GANTRY_NAME(TargetEventKind, ReserveFailed);
        GANTRY_NAME(TargetEventKind, RoundApplied);
        GANTRY_NAME(TargetEventKind, RoundLost);
        GANTRY_NAME(TargetEventKind, Applied);
        GANTRY_NAME(TargetEventKind, ApplyFailed);
        GANTRY_NAME(TargetEventKind, OwnedDurable);
        GANTRY_NAME(TargetEventKind, Activated);
        GANTRY_NAME(TargetEventKind, ActivateFailed);
        GANTRY_NAME(TargetEventKind, WorkerLost);
        GANTRY_NAME(TargetEventKind, Domain);
        GANTRY_NAME(TargetEventKind, GuestStarting);
        GANTRY_NAME(TargetEventKind, GuestResumedMigrated);
        GANTRY_NAME(TargetEventKind, GuestResumedPostcopy);
        GANTRY_NAME(TargetEventKind, GuestArrivedPaused);
        GANTRY_NAME(TargetEventKind, GuestCalled);
        GANTRY_NAME(TargetEventKind, GuestStopped);
        GANTRY_NAME(TargetEventKind, OperatorAbort);
        GANTRY_NAME(TargetEventKind, OperatorFenced);
        GANTRY_NAME(TargetEventKind, Restarted);
        GANTRY_NAME(TargetEventKind, Retracted);
    }
    return "?";
}

const char* to_string(ActionKind kind) {
    switch (kind) {
        GANTRY_NAME(ActionKind, Send);
        GANTRY_NAME(ActionKind, QueryDomain);
        GANTRY_NAME(ActionKind, Alert);
        GANTRY_NAME(ActionKind, ReportProgress);
        GANTRY_NAME(ActionKind, Finished);
        GANTRY_NAME(ActionKind, Describe);
        GANTRY_NAME(ActionKind, BeginPrecopy);
        GANTRY_NAME(ActionKind, SendRound);
        GANTRY_NAME(ActionKind, ResendRound);
        GANTRY_NAME(ActionKind, Freeze);
        GANTRY_NAME(ActionKind, SendComplete);
        GANTRY_NAME(ActionKind, PersistGrant);
        GANTRY_NAME(ActionKind, Fence);
        GANTRY_NAME(ActionKind, Thaw);
        GANTRY_NAME(ActionKind, EndPrecopy);
        GANTRY_NAME(ActionKind, EndAnnouncement);
        GANTRY_NAME(ActionKind, Release);
        GANTRY_NAME(ActionKind, AbortJob);
        GANTRY_NAME(ActionKind, Unfence);
        GANTRY_NAME(ActionKind, Reserve);
        GANTRY_NAME(ActionKind, Admit);
        GANTRY_NAME(ActionKind, RefuseAdmission);
        GANTRY_NAME(ActionKind, ApplyComplete);
        GANTRY_NAME(ActionKind, PersistOwned);
        GANTRY_NAME(ActionKind, Activate);
        GANTRY_NAME(ActionKind, Discard);
        GANTRY_NAME(ActionKind, UnmarkComplete);
        GANTRY_NAME(ActionKind, AwaitRound);
        GANTRY_NAME(ActionKind, Retract);
    }
    return "?";
}

const char* to_string(Phase phase) {
    switch (phase) {
        GANTRY_NAME(Phase, Idle);
        GANTRY_NAME(Phase, Preflight);
        GANTRY_NAME(Phase, Precopy);
        GANTRY_NAME(Phase, Switchover);
        GANTRY_NAME(Phase, Commit);
        GANTRY_NAME(Phase, Done);
        GANTRY_NAME(Phase, Failed);
    }
    return "?";
}

const char* to_string(Outcome outcome) {
    switch (outcome) {
        GANTRY_NAME(Outcome, None);
        GANTRY_NAME(Outcome, Moved);
        GANTRY_NAME(Outcome, RolledBack);
        GANTRY_NAME(Outcome, Refused);
        GANTRY_NAME(Outcome, Lost);
        GANTRY_NAME(Outcome, Retry);
    }
    return "?";
}

const char* message_name(const Message& message) {
    static constexpr const char* kNames[] = {
        "Prepare",  "Ready",        "RoundAck",     "RoundLost", "FreezeRequest",
        "Verified", "VerifyFailed", "GrantRequest", "Activated", "GrantReturned",
        "Offer",    "Refused",      "RoundEnd",     "Converged", "Complete",
        "Thawed",   "Grant",        "GrantRefused", "Released",  "Abort",
        "Alive"};
    static_assert(std::size(kNames) == std::variant_size_v<MessageBody>);
    return kNames[message.body.index()];
}

}  // namespace gantry::engine
