// What the target does with the source's messages, from the offer to service.
#include <algorithm>

#include "migration/engine/source_machine.h"  // grant_refusal
#include "migration/engine/target_impl.h"

namespace gantry::engine {

void TargetMachine::Impl::on(const target_event::Received& event) {
    const Message& message = event.message;
    if (!id_ || message.migration != *id_ || state_ == TargetState::kRecovering) {
        return;
    }
    peer_heard_ = now_;
    const MessageBody& body = message.body;
    if (const auto* offer = std::get_if<MsgOffer>(&body)) {
        on_offer(*offer);
    } else if (const auto* refused = std::get_if<MsgRefused>(&body)) {
        if (!granted() && !asked_grant_) {
            const std::string reason =
                refused->findings.empty() ? "migration.refused" : refused->findings[0].reason;
            discard(Outcome::kRefused,
                    {Code::kFailedPrecondition, reason, refusal_text(refused->findings)});
        }
    } else if (const auto* end = std::get_if<MsgRoundEnd>(&body)) {
        on_round_end(*end);
    } else if (const auto* converged = std::get_if<MsgConverged>(&body)) {
        if (state_ == TargetState::kReceiving) {
            progress_.bytes_remaining = converged->remaining_bytes;
            progress_.downtime_estimate = converged->downtime_estimate;
            report(Phase::kPrecopy, 1.0);
            admit();
        }
    } else if (const auto* alive = std::get_if<MsgAlive>(&body)) {
        if (alive->remaining_bytes && state_ == TargetState::kReceiving) {
            progress_.bytes_remaining = *alive->remaining_bytes;
        }
    } else if (const auto* complete = std::get_if<MsgComplete>(&body)) {
        on_complete(*complete);
    } else if (const auto* thawed = std::get_if<MsgThawed>(&body)) {
        on_thawed(*thawed);
    } else if (const auto* grant = std::get_if<MsgGrant>(&body)) {
        on_grant(*grant);
    } else if (const auto* grant_refused = std::get_if<MsgGrantRefused>(&body)) {
        on_grant_refused(*grant_refused);
    } else if (const auto* released = std::get_if<MsgReleased>(&body)) {
        if (state_ == TargetState::kReturning) {
            returned(Outcome::kLost);
        } else if (state_ == TargetState::kServing && released->epoch == epoch_) {
            timers_.clear_all();
            emit(action::Finished{Outcome::kMoved});
            enter(TargetState::kDone, std::nullopt);
        }
    } else if (const auto* abort = std::get_if<MsgAbort>(&body)) {
        on_abort(*abort);
    }
}

void TargetMachine::Impl::on_offer(const MsgOffer& offer) {
    if (state_ != TargetState::kAsking) {
        return;
    }
    needs_ = offer.needs;
    epoch_ = Epoch{offer.epoch.value + 1};
    progress_.bytes_remaining = progress_.bytes_total = offer.needs.resident_bytes();
    if (offer.protocol_version != kEngineProtocolVersion) {
        give_up({Code::kFailedPrecondition, "protocol.version",
                 "The two hosts' gantryd speak different versions of the migration protocol: "
                 "install the same release on both."});
        return;
    }
    const auto findings = preflight(offer.needs, capabilities_);
    if (refused(findings)) {  // the source has judged too, but the GPU is ours
        give_up({Code::kFailedPrecondition, findings[0].reason, refusal_text(findings)});
        return;
    }
    enter(TargetState::kReserving, settings_.describe_deadline);
    timers_.clear(Timer::kRetry);
    emit(action::Reserve{offer.needs, offer.seed});
    report(Phase::kPreflight, 1.0);
}

void TargetMachine::Impl::on_round_end(const MsgRoundEnd& end) {
    const bool open = state_ == TargetState::kReceiving || state_ == TargetState::kComplete ||
                      state_ == TargetState::kRequesting;
    if (!open) {
        return;
    }
    round_seen_ = true;
    if (end.round <= round_applied_) {
        send(MsgRoundAck{end.round});
        return;
    }
    if (state_ != TargetState::kReceiving) {
        // Either the source has not heard that all is here, or it has thawed and that message was
        // lost: it answers with MsgThawed then.
        send(MsgVerified{*verified_});
        return;
    }
    emit(action::AwaitRound{end.round, end.batch_count});
}

void TargetMachine::Impl::on(const target_event::RoundApplied& event) {
    const std::uint64_t round = event.round;
    if (state_ != TargetState::kReceiving || round <= round_applied_) {
        return;
    }
    round_applied_ = round;
    progress_.round = round;
    send(MsgRoundAck{round});
    report(Phase::kPrecopy, 1.0 - 1.0 / static_cast<double>(round + 1));
    apply_if_ready();
}

void TargetMachine::Impl::on_complete(const MsgComplete& complete) {
    if (verified_ == complete.token) {
        send(MsgVerified{complete.token});
        return;
    }
    const bool open = state_ == TargetState::kReceiving || state_ == TargetState::kComplete ||
                      state_ == TargetState::kRequesting;
    if (!open || complete.round < round_applied_ || is_thawed(complete.token)) {
        return;  // overtaken by a later round, or by the word that it is void
    }
    if (state_ != TargetState::kReceiving) {
        void_complete();
    }
    if (!complete_ || complete.round >= complete_->round) {
        complete_ = complete;
    }
    apply_if_ready();
}

void TargetMachine::Impl::apply_if_ready() {
    if (!complete_ || state_ != TargetState::kReceiving || round_applied_ < complete_->round) {
        return;
    }
    if (round_applied_ > complete_->round) {
        complete_.reset();
        return;
    }
    enter(TargetState::kApplying, settings_.round_deadline);
    emit(action::ApplyComplete{complete_->token, complete_->parts});
    report(Phase::kSwitchover, 0.5);
}

void TargetMachine::Impl::on(const target_event::Applied& event) {
    const FreezeToken token = event.token;
    if (state_ != TargetState::kApplying || !complete_ || complete_->token != token) {
        return;
    }
    complete_.reset();
    verified_ = held_ = token;
    not_frozen_ = false;
    progress_.bytes_remaining = 0;
    send(MsgVerified{token});
    report(Phase::kSwitchover, 1.0);
    enter(TargetState::kComplete, std::nullopt);
    admit();  // a guest that was paused before precopy had converged waits for nothing else
    if (arrival_) {
        request_grant();
    }
}

void TargetMachine::Impl::on(const target_event::ApplyFailed& event) {
    if (state_ != TargetState::kApplying || !complete_ || complete_->token != event.token) {
        return;
    }
    complete_.reset();
    send(MsgVerifyFailed{event.token, event.error.text});
    enter(TargetState::kReceiving, std::nullopt);
    arm_retry();
}

void TargetMachine::Impl::on_thawed(const MsgThawed& thawed) {
    if (granted()) {
        return;
    }
    if (!is_thawed(thawed.token)) {
        thawed_ = thawed.token;
    }
    if (verified_ == thawed.token &&
        (state_ == TargetState::kComplete || state_ == TargetState::kRequesting)) {
        void_complete();
    } else if (complete_ && complete_->token == thawed.token) {
        if (state_ == TargetState::kApplying) {
            enter(TargetState::kReceiving, std::nullopt);
            arm_retry();
        }
        complete_.reset();
        emit(action::UnmarkComplete{});  // apply_final may be under way
    }
}

bool TargetMachine::Impl::is_thawed(const FreezeToken& token) const {
    return thawed_ && thawed_->migration == token.migration && token.count <= thawed_->count;
}

void TargetMachine::Impl::void_complete() {
    emit(action::UnmarkComplete{});  // or a restart would take it for the newest state
    verified_.reset();
    complete_.reset();
    enter(TargetState::kReceiving, std::nullopt);
    arm_retry();
}

void TargetMachine::Impl::request_grant() {
    asked_grant_ = true;
    enter(TargetState::kRequesting, settings_.switchover_deadline);
    send(MsgGrantRequest{*verified_, epoch_, *arrival_, ticket_});
    arm_retry();
    report(Phase::kCommit, 0.0);
}

void TargetMachine::Impl::on_grant(const MsgGrant& grant) {
    if (granted() || held_ != grant.token) {
        return;
    }
    if (state_ == TargetState::kWithdrawing) {
        return_grant(grant.epoch, {Code::kAborted, "migration.withdrawn",
                                   "The target had let this migration go."});
        return;
    }
    returnable_ = true;
    own(grant.epoch);
}

void TargetMachine::Impl::own(Epoch epoch) {
    epoch_ = epoch;
    timers_.clear_all();
    timers_.set(Timer::kPoll, now_ + settings_.job_poll);
    enter(TargetState::kActivating, settings_.switchover_deadline);
    DurableRecord record;
    record.epoch = epoch;
    emit(action::PersistOwned{record});
    activate_if_ready();
}

void TargetMachine::Impl::activate_if_ready() {
    const bool may_touch = guest_memory_complete_ || !settings_.activate_needs_guest_memory;
    if (state_ == TargetState::kActivating && owned_durable_ && may_touch && !activate_issued_) {
        activate_issued_ = true;
        emit(action::Activate{epoch_});
    }
}

void TargetMachine::Impl::confirm_if_ready() {
    if (state_ != TargetState::kActivating || !owned_durable_ || !activated_) {
        return;
    }
    timers_.clear_all();
    enter(TargetState::kServing, settings_.operator_deadline);
    send(MsgActivated{epoch_});
    arm_retry();
    report(Phase::kDone, 1.0);
}

void TargetMachine::Impl::on_grant_refused(const MsgGrantRefused& refused) {
    if (state_ == TargetState::kReturning && refused.is_final) {
        returned(Outcome::kRolledBack);
        return;
    }
    if (granted()) {
        return;
    }
    if (!refused.is_final) {
        not_frozen_ = refused.reason == grant_refusal::kNotFrozen;
        return;
    }
    over(refused.reason, refused.text);
}

void TargetMachine::Impl::on_abort(const MsgAbort& abort) {
    if (granted() || state_ == TargetState::kWithdrawing) {
        return;
    }
    if (!asked_grant_) {
        over(abort.reason, abort.text);
    } else if (abort.reason != kUnknownMigration || state_ != TargetState::kRequesting) {
        withdraw();  // a grant may be on its way: let go only when the source rules it out
    }
}

/// The source has ended this migration for good, and will not grant it any more.
void TargetMachine::Impl::over(std::string reason, std::string text) {
    // With the guest here a new attempt is worth it, unless the source gave a reason that will
    // stay. Who may not have the session is told so as one whose Prepare is refused: nobody asks
    // for it again.
    const auto is_one_of = [&](std::initializer_list<std::string_view> reasons) {
        return std::find(reasons.begin(), reasons.end(), reason) != reasons.end();
    };
    const bool is_refused =
        is_one_of({peer_refusal::kTicket, peer_refusal::kOtherTarget, peer_refusal::kNoJob});
    const bool stays = is_one_of({grant_refusal::kGuestNotGone, grant_refusal::kOtherMigration,
                                  grant_refusal::kEpoch, "migration.aborted_by_operator",
                                  "migration.verify_failed"});
    const bool coming = arrival_ || guest_starting_;
    const Error why{Code::kAborted, std::move(reason), std::move(text)};
    discard(is_refused         ? Outcome::kRefused
            : coming && !stays ? Outcome::kRetry
                               : Outcome::kRolledBack,
            why);
}

void TargetMachine::Impl::withdraw() {
    timers_.clear(Timer::kPoll);
    enter(TargetState::kWithdrawing, settings_.switchover_deadline);
    send(MsgAbort{"migration.withdrawn", "The target lets this migration go."});
    arm_retry();
}

/// The session was granted, or may have been, and will not be served here: the source, which has
/// kept its frozen copy, is told so once the driver has proven that nothing was served.
void TargetMachine::Impl::return_grant(Epoch epoch, Error why) {
    epoch_ = epoch;
    return_why_ = std::move(why);
    retracted_ = false;
    verified_.reset();
    complete_.reset();
    timers_.clear_all();
    timers_.set(Timer::kPoll, now_ + settings_.job_poll);
    enter(TargetState::kReturning, settings_.switchover_deadline);
    emit(action::Retract{});
}

void TargetMachine::Impl::on(const target_event::Retracted& event) {
    if (state_ != TargetState::kReturning || retracted_) {
        return;
    }
    if (event.may_have_served) {
        // The session is this host's for good; processes whose workers died get CUDA errors.
        alert(AlertKind::kStateLost, "session.lost",
              "A worker died while the session was taken into service: its process gets CUDA "
              "errors.");
        enter(TargetState::kActivating, settings_.switchover_deadline);
        activate_if_ready();
        confirm_if_ready();
        return;
    }
    retracted_ = true;
    send(MsgGrantReturned{epoch_});
    arm_retry();
}

/// The source has taken the session back, or never granted it (kRolledBack), or nothing of it is
/// left there (kLost).
void TargetMachine::Impl::returned(Outcome outcome) {
    if (retracted_ && !returned_) {
        returned_ = outcome;
        timers_.clear(Timer::kRetry);
        end_if_returned();
    }
}

/// Whether another attempt is worth it depends on where the guest is; after a restart only libvirt
/// knows.
void TargetMachine::Impl::end_if_returned() {
    if (state_ != TargetState::kReturning || !returned_) {
        return;
    }
    if (!domain_known_) {
        emit(action::QueryDomain{});
        return;
    }
    const bool coming = arrival_ || guest_starting_;
    const bool again =
        *returned_ == Outcome::kRolledBack && coming && return_why_.reason != "activate.failed";
    discard(again ? Outcome::kRetry : *returned_, return_why_);
}

/// Something failed here before the grant.
void TargetMachine::Impl::give_up(Error why) {
    if (asked_grant_) {
        withdraw();
        return;
    }
    if (id_) {
        send(MsgAbort{why.reason, why.text});
    }
    discard(Outcome::kRolledBack, std::move(why));
}

void TargetMachine::Impl::discard(Outcome outcome, Error why) {
    if (hook_ == Hook::kWaiting) {
        hook_ = Hook::kNone;
        emit(action::RefuseAdmission{why});
    }
    timers_.clear_all();
    emit(action::Discard{});
    report(Phase::kFailed, 0.0);
    emit(action::Finished{outcome, std::move(why)});
    enter(TargetState::kDiscarded, std::nullopt);
}

void TargetMachine::Impl::enter(TargetState state, std::optional<Duration> deadline) {
    state_ = state;
    if (deadline) {
        timers_.set(Timer::kState, now_ + *deadline);
    } else {
        timers_.clear(Timer::kState);
    }
}

void TargetMachine::Impl::send(MessageBody body) { emit(action::Send{{*id_, std::move(body)}}); }

void TargetMachine::Impl::alert(AlertKind kind, std::string reason, std::string text) {
    emit(action::Alert{kind, {Code::kUnavailable, std::move(reason), std::move(text)}});
}

void TargetMachine::Impl::admit() {
    timers_.clear(Timer::kHook);
    if (hook_ == Hook::kWaiting) {
        hook_ = Hook::kNone;
        emit(action::Admit{});
    }
    if (!admitted_) {
        admitted_ = true;
        if (!arrival_) {
            timers_.set(Timer::kArrival, now_ + settings_.arrival_deadline);
        }
    }
}

void TargetMachine::Impl::report(Phase phase, double fraction) {
    progress_.phase = phase;
    progress_.percent = meter_.advance(phase, fraction);
    progress_.elapsed = now_ - begun_at_;
    emit(action::ReportProgress{progress_});
}

void TargetMachine::Impl::arm_retry() {
    backoff_.reset(settings_.retry);
    timers_.set(Timer::kRetry, now_ + backoff_.take(settings_.retry_max));
}

}  // namespace gantry::engine
