// The inside of TargetMachine, shared by its two source files: events (target_impl.cc) and the
// source's messages with what follows from them (target_steps.cc).
#pragma once

#include "migration/engine/target_machine.h"
#include "migration/engine/timers.h"
#include "migration/engine/transfer.h"

namespace gantry::engine {

class TargetMachine::Impl {
public:
    Impl(std::string session_id, Settings settings);

    TargetActions step(const TargetEvent& event, TimePoint now);

    std::optional<TimePoint> next_deadline() const { return timers_.next(); }
    TargetState state() const { return state_; }
    std::optional<MigrationId> migration() const { return id_; }
    Epoch epoch() const { return epoch_; }
    bool guest_is_here() const { return arrival_.has_value(); }
    const Progress& progress() const { return progress_; }

private:
    enum class Timer { kState, kRetry, kHeartbeat, kPoll, kHook, kArrival };
    enum class Hook { kNone, kWaiting };

    // target_impl.cc
    void on(const target_event::Timer& event);
    void on(const target_event::AdmissionAsked& event);
    void on(const target_event::Reserved& event);
    void on(const target_event::ReserveFailed& event);
    void on(const target_event::RoundLost& event);
    void on(const target_event::OwnedDurable& event);
    void on(const target_event::Activated& event);
    void on(const target_event::ActivateFailed& event);
    void on(const target_event::WorkerLost& event);
    void on(const target_event::Domain& event);
    void on(const target_event::GuestStarting& event);
    void on(const target_event::GuestResumedMigrated& event);
    void on(const target_event::GuestResumedPostcopy& event);
    void on(const target_event::GuestArrivedPaused& event);
    void on(const target_event::GuestCalled& event);
    void on(const target_event::GuestStopped& event);
    void on(const target_event::OperatorAbort& event);
    void on(const target_event::OperatorFenced& event);
    void on(const target_event::Restarted& event);
    void on_domain(const DomainReport& report);
    void on_recovering_domain(const DomainReport& report);
    void on_arrival(ArrivalEvidence evidence);
    void on_guest_stopped();
    void on_retry();
    void on_state_deadline();
    void admit_or_hold();
    void check_silence();

    // target_steps.cc
    void on(const target_event::Received& event);
    void on_offer(const MsgOffer& offer);
    void on_round_end(const MsgRoundEnd& end);
    void on(const target_event::RoundApplied& event);
    void on_complete(const MsgComplete& complete);
    void apply_if_ready();
    void on(const target_event::Applied& event);
    void on(const target_event::ApplyFailed& event);
    void on_thawed(const MsgThawed& thawed);
    bool is_thawed(const FreezeToken& token) const;
    void request_grant();
    void on_grant(const MsgGrant& grant);
    void on_grant_refused(const MsgGrantRefused& refused);
    void on_abort(const MsgAbort& abort);
    void own(Epoch epoch);
    void activate_if_ready();
    void confirm_if_ready();
    void withdraw();
    void return_grant(Epoch epoch, Error why);
    void on(const target_event::Retracted& event);
    void returned(Outcome outcome);
    void end_if_returned();
    void over(std::string reason, std::string text);
    void give_up(Error why);
    void discard(Outcome outcome, Error why);
    void void_complete();

    // helpers
    void enter(TargetState state, std::optional<Duration> deadline);
    void emit(TargetAction action) { out_.push_back(std::move(action)); }
    void send(MessageBody body);
    void alert(AlertKind kind, std::string reason, std::string text);
    void admit();
    void report(Phase phase, double fraction);
    void arm_retry();
    bool granted() const;
    bool final_state() const {
        return state_ == TargetState::kDone || state_ == TargetState::kDiscarded;
    }

    std::string session_id_;
    Settings settings_;
    TargetState state_ = TargetState::kAsking;
    TimePoint now_{};
    TargetActions out_;
    TimerSet<Timer, 6> timers_;
    Backoff backoff_;

    std::optional<MigrationId> id_;
    TargetCapabilities capabilities_;
    Ticket ticket_;
    std::optional<SessionNeeds> needs_;
    Epoch epoch_;  ///< To be asked for; 0: not known.
    Hook hook_ = Hook::kNone;
    bool admitted_ = false;
    TimePoint peer_heard_{};

    bool round_seen_ = false;
    std::uint64_t round_applied_ = 0;
    std::optional<MsgComplete> complete_;  ///< Received, not verified yet.
    std::optional<FreezeToken> verified_;  ///< Complete and proven here.
    /// The last token ever verified here. If the source grants it, it never thawed since, and
    /// whatever it sent meanwhile repeats the same bytes.
    std::optional<FreezeToken> held_;
    std::optional<FreezeToken> thawed_;  ///< The newest that the source has said is void.
    bool asked_grant_ = false;           ///< Ever: from then on nothing is dropped one-sidedly.
    bool not_frozen_ = false;            ///< The source's last refusal.
    bool lost_ = false;

    bool guest_starting_ = false;
    int absent_reports_ = 0;
    bool domain_known_ = false;  ///< libvirt, or an event of it, has said whether it is here.
    std::optional<ArrivalEvidence> arrival_;
    bool guest_memory_complete_ = false;

    bool owned_durable_ = false;
    bool activate_issued_ = false;
    bool activated_ = false;
    std::uint32_t activate_failures_ = 0;
    /// Granted in this life, by the source: it can be given back while nothing was served.
    bool returnable_ = false;
    bool retracted_ = false;
    Error return_why_;
    std::optional<Outcome> returned_;  ///< The source's answer, as far as it decides the outcome.

    TimePoint begun_at_{};
    ProgressMeter meter_;
    Progress progress_;
};

}  // namespace gantry::engine
