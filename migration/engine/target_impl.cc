#include "migration/engine/target_impl.h"

#include "migration/engine/target_machine.h"

namespace gantry::engine {

TargetMachine::Impl::Impl(std::string session_id, Settings settings)
    : session_id_(std::move(session_id)), settings_(settings) {}

TargetActions TargetMachine::Impl::step(const TargetEvent& event, TimePoint now) {
    now_ = std::max(now_, now);
    out_.clear();
    if (!final_state()) {
        std::visit([this](const auto& one) { on(one); }, event);
    }
    return std::move(out_);
}

bool TargetMachine::Impl::granted() const {
    return state_ == TargetState::kActivating || state_ == TargetState::kServing ||
           state_ == TargetState::kReturning || state_ == TargetState::kDone;
}

void TargetMachine::Impl::on(const target_event::Reserved& /*event*/) {
    if (state_ == TargetState::kReserving) {
        enter(TargetState::kReceiving, std::nullopt);
        send(MsgReady{});
        arm_retry();
        report(Phase::kPrecopy, 0.0);
    }
}

void TargetMachine::Impl::on(const target_event::ReserveFailed& event) {
    if (state_ == TargetState::kReserving && (guest_starting_ || arrival_)) {
        discard(Outcome::kRetry, event.error);
    } else if (state_ == TargetState::kReserving) {
        give_up(event.error);
    }
}

void TargetMachine::Impl::on(const target_event::RoundLost& event) {
    if (state_ == TargetState::kReceiving && event.error.code == Code::kFailedPrecondition) {
        give_up(event.error);  // Sent again it would fail again.
    } else if (state_ == TargetState::kReceiving) {
        send(MsgRoundLost{event.round, event.error.text});
    }
}

void TargetMachine::Impl::on(const target_event::OwnedDurable& /*event*/) {
    owned_durable_ = true;
    activate_if_ready();
    confirm_if_ready();
}

void TargetMachine::Impl::on(const target_event::Activated& /*event*/) {
    activated_ = true;
    confirm_if_ready();
}

void TargetMachine::Impl::on(const target_event::Domain& event) { on_domain(event.report); }

void TargetMachine::Impl::on(const target_event::GuestStarting& /*event*/) {
    guest_starting_ = true;
    absent_reports_ = 0;
}

void TargetMachine::Impl::on(const target_event::GuestResumedMigrated& /*event*/) {
    guest_memory_complete_ = true;
    on_arrival(ArrivalEvidence::kGuestResumed);
}

void TargetMachine::Impl::on(const target_event::GuestResumedPostcopy& /*event*/) {
    on_arrival(ArrivalEvidence::kGuestResumed);
}

void TargetMachine::Impl::on(const target_event::GuestArrivedPaused& /*event*/) {
    guest_memory_complete_ = true;
    on_arrival(ArrivalEvidence::kPausedArrival);
}

void TargetMachine::Impl::on(const target_event::GuestCalled& /*event*/) {
    on_arrival(ArrivalEvidence::kGuestCalled);
}

void TargetMachine::Impl::on(const target_event::GuestStopped& /*event*/) { on_guest_stopped(); }

void TargetMachine::Impl::on(const target_event::OperatorAbort& /*event*/) {
    if (!granted()) {
        give_up({Code::kCancelled, "migration.aborted_by_operator",
                 "The operator aborted the migration."});
    }
}

void TargetMachine::Impl::on(const target_event::AdmissionAsked& event) {
    id_ = event.migration;
    capabilities_ = event.capabilities;
    ticket_ = event.ticket;
    hook_ = Hook::kWaiting;
    peer_heard_ = now_;
    begun_at_ = now_;
    enter(TargetState::kAsking, settings_.hook_wait_max);
    timers_.set(Timer::kHook, now_ + settings_.hook_wait_max);
    timers_.set(Timer::kHeartbeat, now_ + settings_.heartbeat);
    timers_.set(Timer::kPoll, now_ + settings_.job_poll);
    send(MsgPrepare{kEngineProtocolVersion, session_id_, capabilities_, ticket_});
    arm_retry();
    report(Phase::kPreflight, 0.0);
}

void TargetMachine::Impl::on(const target_event::Restarted& event) {
    id_ = event.migration;
    ticket_ = event.ticket;
    peer_heard_ = now_;
    begun_at_ = now_;
    admitted_ = true;
    verified_ = held_ = event.complete;
    asked_grant_ = event.complete.has_value();  // nobody remembers: assume the worst
    if (verified_) {
        meter_.advance(Phase::kCommit, 0.0);
    }
    if (event.record.epoch.value != 0 && !event.record.granted) {
        activated_ = activate_issued_ = event.active;
        own(event.record.epoch);
        emit(action::QueryDomain{});
        return;
    }
    emit(action::QueryDomain{});
    if (verified_) {
        enter(TargetState::kRecovering, settings_.job_poll);
        timers_.set(Timer::kHeartbeat, now_ + settings_.heartbeat);
    } else {
        // Nothing usable is held, nor was anything served: the record says so. Whether a grant was
        // on its way nobody remembers.
        return_grant(Epoch{}, {Code::kAborted, "migration.restarted", "gantryd was restarted."});
    }
}

void TargetMachine::Impl::on_domain(const DomainReport& report) {
    if (report.domain == DomainState::kUnknown) {
        return;
    }
    domain_known_ = true;
    if (state_ == TargetState::kRecovering) {
        on_recovering_domain(report);
        return;
    }
    if (report.domain == DomainState::kAbsent) {
        // A report may be older than the event that the guest is starting: believe the second.
        if ((guest_starting_ || arrival_) && ++absent_reports_ >= 2) {
            on_guest_stopped();
        }
        end_if_returned();
        return;
    }
    absent_reports_ = 0;
    if (report.domain == DomainState::kRunning) {
        if (report.job != JobState::kIncoming && report.job != JobState::kUnknown) {
            guest_memory_complete_ = true;
        }
        if (!arrival_ || arrival_ == ArrivalEvidence::kPausedArrival) {
            on_arrival(ArrivalEvidence::kGuestResumed);
        }
        activate_if_ready();
    } else if (report.job == JobState::kNone && admitted_) {
        guest_starting_ = true;
        guest_memory_complete_ = true;
        if (!arrival_) {
            on_arrival(ArrivalEvidence::kPausedArrival);
        }
        activate_if_ready();
    }
    end_if_returned();
}

void TargetMachine::Impl::on_recovering_domain(const DomainReport& report) {
    enter(TargetState::kComplete, std::nullopt);
    timers_.set(Timer::kPoll, now_ + settings_.job_poll);
    if (arrival_) {
        request_grant();  // its event came before libvirt's answer, which may be older
    }
    if (report.domain != DomainState::kAbsent) {
        guest_starting_ = true;
        on_domain(report);
    } else if (!arrival_) {
        withdraw();
    }
}

void TargetMachine::Impl::on_arrival(ArrivalEvidence evidence) {
    domain_known_ = true;
    const bool weaker = evidence == ArrivalEvidence::kPausedArrival && arrival_;
    if (!weaker) {
        arrival_ = evidence;
    }
    absent_reports_ = 0;
    timers_.clear(Timer::kArrival);
    if (state_ == TargetState::kComplete) {
        request_grant();
    } else if (state_ == TargetState::kReceiving) {
        send(MsgFreezeRequest{*arrival_, ticket_});
        arm_retry();
    } else if (state_ == TargetState::kActivating) {
        activate_if_ready();
    }
}

void TargetMachine::Impl::on_guest_stopped() {
    if (state_ == TargetState::kReturning) {
        arrival_.reset();
        guest_starting_ = false;
    }
    if (granted() || state_ == TargetState::kRecovering) {
        return;  // the VM's end is the supervisor's business once the session is owned here
    }
    arrival_.reset();
    guest_starting_ = false;
    give_up({Code::kAborted, "migration.guest_stopped",
             "The guest did not come up on the target, or was stopped there."});
}

void TargetMachine::Impl::on(const target_event::WorkerLost& /*event*/) {
    if (state_ == TargetState::kActivating && returnable_ && !activated_) {
        lost_ = true;
        return_grant(epoch_, {Code::kInternal, "worker.died", "A worker died at the target."});
        return;
    }
    if (state_ == TargetState::kReturning) {
        return;
    }
    if (granted()) {
        alert(AlertKind::kStateLost, "session.lost",
              "A worker died after the session was taken over: its process gets CUDA errors.");
        return;
    }
    lost_ = true;
    verified_.reset();
    complete_.reset();
    if (asked_grant_) {
        withdraw();
    } else if (hook_ == Hook::kWaiting && !guest_starting_ && !arrival_) {
        give_up({Code::kInternal, "worker.died", "A worker died at the target."});
    } else {
        discard(Outcome::kRetry, {Code::kInternal, "worker.died", "A worker died at the target."});
    }
}

/// What is complete here is all that is left of the session; anything less is of no use to anybody.
void TargetMachine::Impl::on(const target_event::OperatorFenced& /*event*/) {
    const bool is_wanted =
        state_ == TargetState::kRequesting || (state_ == TargetState::kWithdrawing && arrival_);
    if (is_wanted && verified_) {
        own(Epoch{std::max<std::uint64_t>(epoch_.value, 1)});
    } else if (state_ == TargetState::kReturning ? retracted_ : !granted() && !verified_) {
        alert(AlertKind::kStateLost, "session.lost",
              "The source host is down, and the session's state is not complete here: it is lost.");
        discard(Outcome::kLost, {Code::kDataLoss, "session.lost", "The source host is down."});
    }
}

/// Nothing was served: see StateSink::activate.
void TargetMachine::Impl::on(const target_event::ActivateFailed& event) {
    constexpr std::uint32_t kAttempts = 8;  // the second at once, the others with every poll
    activate_issued_ = false;
    if (state_ != TargetState::kActivating) {
        return;
    }
    alert(
        AlertKind::kAwaitingOperator, "activate.failed",
        "The session is owned here, but its workers did not take up service: " + event.error.text);
    if (++activate_failures_ == 1) {
        activate_if_ready();
    } else if (activate_failures_ < kAttempts) {
        return;
    } else if (returnable_) {
        return_grant(epoch_, {Code::kFailedPrecondition, "activate.failed", event.error.text});
    } else {  // nobody is left who could do better: the guest gets errors, not silence
        alert(AlertKind::kStateLost, "session.lost",
              "The session could not be taken into service, and no other host has it.");
        discard(Outcome::kLost, {Code::kFailedPrecondition, "activate.failed", event.error.text});
    }
}

void TargetMachine::Impl::on(const target_event::Timer& /*event*/) {
    if (timers_.take_due(Timer::kHeartbeat, now_)) {
        send(MsgAlive{});
        timers_.set(Timer::kHeartbeat, now_ + settings_.heartbeat);
        check_silence();
    }
    if (!final_state() && timers_.take_due(Timer::kPoll, now_)) {
        if (admitted_) {
            emit(action::QueryDomain{});
        }
        timers_.set(Timer::kPoll, now_ + settings_.job_poll);
    }
    if (!final_state() && timers_.take_due(Timer::kHook, now_)) {
        if (needs_ && state_ != TargetState::kReserving) {
            admit_or_hold();
        } else if (guest_starting_ || arrival_) {
            timers_.set(Timer::kHook, now_ + settings_.hook_wait_max);  // no hook: nothing to tell
        } else {
            give_up({Code::kUnavailable, "network.unreachable",
                     "The source's gantryd did not answer in time: check that it runs and that the "
                     "control port is open between the hosts."});
        }
    }
    if (!final_state() && timers_.take_due(Timer::kArrival, now_) && !guest_starting_ &&
        !arrival_) {
        give_up({Code::kDeadlineExceeded, "migration.guest_never_came",
                 "The guest was admitted and never came; its reservation is given back."});
    }
    if (!final_state() && timers_.take_due(Timer::kRetry, now_)) {
        on_retry();
    }
    if (!final_state() && timers_.take_due(Timer::kState, now_)) {
        on_state_deadline();
    }
}

/// The source says when the pause is short enough. Where the guest does not depend on the hook any
/// more, or is paused already, there is nothing to hold it for.
void TargetMachine::Impl::admit_or_hold() {
    const bool can_hold = hook_ == Hook::kWaiting && state_ == TargetState::kReceiving &&
                          !guest_starting_ && !arrival_ && settings_.downtime_max.count() != 0;
    const TimePoint end = begun_at_ + std::max(settings_.hook_wait_max, settings_.hook_hold_max);
    if (!can_hold) {
        admit();
    } else if (now_ < end) {
        timers_.set(Timer::kHook, end);
    } else {
        give_up({Code::kDeadlineExceeded, "migration.not_converging",
                 "The expected pause did not come below migration.downtime_max_ms within "
                 "migration.hook_hold_s: move while the programs write less, or accept the pause "
                 "with `gantry force-complete` at the source."});
    }
}

void TargetMachine::Impl::check_silence() {
    const bool waits = state_ == TargetState::kReceiving || state_ == TargetState::kApplying ||
                       state_ == TargetState::kComplete;
    if (!waits || now_ - peer_heard_ <= settings_.reservation_ttl) {
        return;
    }
    if (guest_starting_ || arrival_) {
        peer_heard_ = now_;  // alert again after another such time
        alert(AlertKind::kAwaitingPeer, "migration.peer_silent",
              "The guest is here, and the source's gantryd is silent: its GPU calls wait.");
        return;
    }
    give_up({Code::kUnavailable, "migration.peer_silent",
             "The source's gantryd fell silent; the reservation is given back."});
}

void TargetMachine::Impl::on_retry() {
    switch (state_) {
        case TargetState::kAsking:
            send(MsgPrepare{kEngineProtocolVersion, session_id_, capabilities_, ticket_});
            break;
        case TargetState::kReceiving:
            if (!round_seen_) {
                send(MsgReady{});
            }
            if (arrival_) {
                send(MsgFreezeRequest{*arrival_, ticket_});
            } else if (round_seen_) {
                return;
            }
            break;
        case TargetState::kRequesting:
            send(MsgGrantRequest{*verified_, epoch_, *arrival_, ticket_});
            if (not_frozen_) {
                send(MsgFreezeRequest{*arrival_, ticket_});
            }
            break;
        case TargetState::kWithdrawing:
            send(MsgAbort{"migration.withdrawn", "The target lets this migration go."});
            break;
        case TargetState::kServing: send(MsgActivated{epoch_}); break;
        case TargetState::kReturning:
            if (retracted_) {
                send(MsgGrantReturned{epoch_});
            }
            break;
        default: return;
    }
    timers_.set(Timer::kRetry, now_ + backoff_.take(settings_.retry_max));
}

void TargetMachine::Impl::on_state_deadline() {
    switch (state_) {
        case TargetState::kAsking:
        case TargetState::kReserving:
            if (guest_starting_ || arrival_) {
                alert(AlertKind::kAwaitingPeer, "migration.peer_silent",
                      "The guest is here, and the source's gantryd is silent: its GPU calls wait.");
                timers_.set(Timer::kState, now_ + settings_.operator_deadline);
                break;
            }
            give_up({Code::kDeadlineExceeded, "network.unreachable",
                     "The source's gantryd did not answer in time."});
            break;
        case TargetState::kApplying:
            emit(action::ApplyComplete{complete_->token, complete_->parts});  // idempotent
            timers_.set(Timer::kState, now_ + settings_.round_deadline);
            break;
        case TargetState::kRequesting:
        case TargetState::kWithdrawing:
            alert(AlertKind::kAwaitingPeer, "migration.awaiting_source",
                  "The complete session is here, and the source does not answer. If its host is "
                  "down and fenced off, an operator may confirm that.");
            timers_.set(Timer::kState, now_ + settings_.operator_deadline);
            break;
        case TargetState::kReturning:
            alert(AlertKind::kAwaitingPeer, "migration.awaiting_source",
                  "The session's state here is void, and the source, which has all of it, does not "
                  "answer.");
            timers_.set(Timer::kState, now_ + settings_.operator_deadline);
            break;
        case TargetState::kActivating:
            alert(AlertKind::kAwaitingOperator, "activate.slow",
                  "The session is owned here, and has not been taken into service yet.");
            emit(action::QueryDomain{});
            timers_.set(Timer::kState, now_ + settings_.switchover_deadline);
            break;
        case TargetState::kServing:
            timers_.clear_all();
            emit(action::Finished{Outcome::kMoved});
            enter(TargetState::kDone, std::nullopt);  // the source learns it when it asks
            break;
        case TargetState::kRecovering:
            emit(action::QueryDomain{});
            timers_.set(Timer::kState, now_ + settings_.job_poll);
            break;
        case TargetState::kReceiving:
        case TargetState::kComplete:
        case TargetState::kDone:
        case TargetState::kDiscarded: break;
    }
}

TargetMachine::TargetMachine(std::string session_id, Settings settings)
    : impl_(std::make_unique<Impl>(std::move(session_id), settings)) {}
TargetMachine::~TargetMachine() = default;
TargetMachine::TargetMachine(TargetMachine&&) noexcept = default;
TargetMachine& TargetMachine::operator=(TargetMachine&&) noexcept = default;

TargetActions TargetMachine::step(const TargetEvent& event, TimePoint now) {
    return impl_->step(event, now);
}
std::optional<TimePoint> TargetMachine::next_deadline() const { return impl_->next_deadline(); }
TargetState TargetMachine::state() const { return impl_->state(); }
std::optional<MigrationId> TargetMachine::migration() const { return impl_->migration(); }
Epoch TargetMachine::epoch() const { return impl_->epoch(); }
bool TargetMachine::guest_is_here() const { return impl_->guest_is_here(); }
bool TargetMachine::accepts_blocks() const { return impl_->state() == TargetState::kReceiving; }
const Progress& TargetMachine::progress() const { return impl_->progress(); }

}  // namespace gantry::engine
