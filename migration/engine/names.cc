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

const char* event_name(const SourceEvent& event) {
    static constexpr const char* kNames[] = {"Received",        "Timer",
                                             "Described",       "DescribeFailed",
                                             "PrecopyBegun",    "RoundSent",
                                             "RoundProgress",   "RoundFailed",
                                             "Frozen",          "FreezeFailed",
                                             "CompleteSent",    "CompleteFailed",
                                             "GrantDurable",    "GrantWriteFailed",
                                             "Thawed",          "Released",
                                             "TicketStands",    "TicketFailed",
                                             "WorkerLost",      "Domain",
                                             "GuestSuspended",  "GuestPreSwitchover",
                                             "GuestResumed",    "GuestGone",
                                             "GuestStopped",    "JobFailed",
                                             "OperatorAbort",   "OperatorForce",
                                             "OperatorDiscard", "Opened",
                                             "Restarted"};
    static_assert(std::size(kNames) == std::variant_size_v<SourceEvent>);
    return kNames[event.index()];
}

const char* event_name(const TargetEvent& event) {
    static constexpr const char* kNames[] = {"Received",
                                             "Timer",
                                             "AdmissionAsked",
                                             "Reserved",
                                             "ReserveFailed",
                                             "RoundApplied",
                                             "RoundLost",
                                             "Applied",
                                             "ApplyFailed",
                                             "OwnedDurable",
                                             "Activated",
                                             "ActivateFailed",
                                             "Retracted",
                                             "WorkerLost",
                                             "Domain",
                                             "GuestStarting",
                                             "GuestResumedMigrated",
                                             "GuestResumedPostcopy",
                                             "GuestArrivedPaused",
                                             "GuestCalled",
                                             "GuestStopped",
                                             "OperatorAbort",
                                             "OperatorFenced",
                                             "Restarted"};
    static_assert(std::size(kNames) == std::variant_size_v<TargetEvent>);
    return kNames[event.index()];
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
