// The grant at the source: whether it is given, its record, its end, and how it comes back.
#include <algorithm>
#include <utility>

#include "migration/engine/source_impl.h"

namespace gantry::engine {

std::optional<MsgGrantRefused> SourceMachine::Impl::refusal(const MigrationId& id,
                                                            const MsgGrantRequest& request) {
    const auto refuse = [](std::string_view reason, const char* text, bool is_final) {
        return MsgGrantRefused{std::string(reason), text, is_final};
    };
    if (std::any_of(ended_.begin(), ended_.end(), [&](const Ended& e) { return e.id == id; }) ||
        (is_current(id) && m_->doomed && !pending_)) {
        return refuse(grant_refusal::kRolledBack, "This migration has ended.",
                      frozen_ != request.token);
    }
    if (!frozen_ || *frozen_ != request.token) {
        // Only a migration that is still going on may become grantable.
        const bool may_come = is_current(id) || pending_ || state_ == SourceState::kRecovering;
        return refuse(grant_refusal::kNotFrozen,
                      "The session is not frozen in the state that the target has.", !may_come);
    }
    if (m_ && !is_current(id)) {
        return refuse(grant_refusal::kOtherMigration, "Another migration is under way.", false);
    }
    if (state_ != SourceState::kFrozen && state_ != SourceState::kFinalRound &&
        state_ != SourceState::kHolding) {
        return refuse(grant_refusal::kNotFrozen, "Not yet.", false);
    }
    if (!may_have_left()) {
        emit(action::QueryDomain{});
        return refuse(
            peer_refusal::kNoJob,
            "The guest was not stopped by a migration of libvirt's at the source (a pause "
            "by an operator is none).",
            false);
    }
    if (request.evidence == ArrivalEvidence::kPausedArrival && !guest_gone_) {
        emit(action::QueryDomain{});
        return refuse(grant_refusal::kGuestNotGone,
                      "The guest arrived paused, and may still come back here.", false);
    }
    return std::nullopt;
}

void SourceMachine::Impl::on_grant_request(const MigrationId& id, const MsgGrantRequest& request,
                                           const std::string& peer) {
    if (state_ == SourceState::kGranting || state_ == SourceState::kTakingBack) {
        return;  // answered when the write has ended
    }
    if (record_.granted) {
        if (record_.granted_migration == id && record_.granted_token == request.token) {
            send_to(id, MsgGrant{request.token, Epoch{record_.epoch.value + 1}});
        } else if (record_.granted_migration == id) {
            // Late: it has asked again since. A final word would say that it was given nothing.
            send_to(id, MsgGrantRefused{std::string(grant_refusal::kNotFrozen),
                                        "A newer state was granted to this migration.", false});
        } else {
            send_to(id, MsgGrantRefused{std::string(grant_refusal::kOtherMigration),
                                        "The session was given to another migration.", true});
        }
        return;
    }
    if (auto why = objection(request.ticket, peer)) {
        send_to(id, MsgGrantRefused{std::move(why->reason), std::move(why->text), true});
        return;
    }
    if (id != request.token.migration) {
        send_to(id, MsgGrantRefused{std::string(grant_refusal::kOtherMigration),
                                    "Another migration froze the session in that state.", true});
        return;
    }
    if (request.epoch.value != 0 && request.epoch.value != record_.epoch.value + 1) {
        send_to(id,
                MsgGrantRefused{std::string(grant_refusal::kEpoch), "Another epoch is due.", true});
        return;
    }
    if (id == record_.granted_migration) {  // Late, and after a restart perhaps of any epoch.
        send_to(id, MsgGrantRefused{std::string(grant_refusal::kReturned),
                                    "This migration has given its grant back.", true});
        return;
    }
    if (lost_) {
        // Our copy is gone, the target's is complete: the grant is the only way to keep the
        // session. It must be the state that we froze last, or, when a restart forgot which that
        // was, the guest must not run here.
        const bool known = request.token.count != 0 && request.token == newest_token_;
        if (known && may_have_left()) {
            persist_grant(id, request.token, peer);
        } else if (known) {
            emit(action::QueryDomain{});
            send_to(id, MsgGrantRefused{std::string(peer_refusal::kNoJob),
                                        "The guest was not stopped by a migration of libvirt's.",
                                        false});
        } else if (lost_token_unknown_ && request.token.count == 0) {
            // No freeze has that number, so no copy does. The answer is not final: the target may
            // have the newest state all the same, and its own request comes.
            send_to(id, MsgGrantRefused{std::string(grant_refusal::kNotFrozen),
                                        "The request names no frozen state.", false});
        } else if (lost_token_unknown_) {
            const bool is_late = lost_request_ && lost_request_->id == id &&
                                 request.token.count < lost_request_->request.token.count;
            if (!is_late) {
                lost_request_ = {id, request, peer};
            }
            emit(action::QueryDomain{});
        } else {
            send_to(id, MsgGrantRefused{std::string(grant_refusal::kRolledBack),
                                        "The session went on at the source and died there.", true});
        }
        return;
    }
    if (auto refused = refusal(id, request)) {
        send_to(id, std::move(*refused));
        return;
    }
    persist_grant(id, request.token, peer);
}

void SourceMachine::Impl::persist_grant(const MigrationId& id, FreezeToken token,
                                        const std::string& peer) {
    resumed_meanwhile_ = false;
    timers_.clear_all();
    enter(SourceState::kGranting, std::nullopt);
    DurableRecord record = record_;
    record.granted = true;
    record.granted_migration = id;
    record.granted_token = token;
    record.granted_peer = peer;
    granting_ = record;
    emit(action::PersistGrant{record});
    report(Phase::kCommit, 0.5);
}

void SourceMachine::Impl::on(const source_event::GrantDurable& /*event*/) {
    if (state_ == SourceState::kTakingBack && granting_) {
        on_taken_back();
        return;
    }
    if (state_ != SourceState::kGranting || !granting_) {
        return;
    }
    record_ = *granting_;
    granting_.reset();
    if (frozen_at_) {
        progress_.downtime = now_ - *frozen_at_;
    }
    send_to(record_.granted_migration,
            MsgGrant{record_.granted_token, Epoch{record_.epoch.value + 1}});
    emit(action::Fence{});
    report(Phase::kCommit, 1.0);
    enter(SourceState::kGranted, settings_.peer_silence);
    if (resumed_meanwhile_) {
        on_guest_resumed();
    }
}

/// The epoch after the granted one is durable: this host owns the session again, frozen as it was
/// granted, and waits for whoever has the guest (libvirt here, or a new attempt of the target).
void SourceMachine::Impl::on_taken_back() {
    const MigrationId id = record_.granted_migration;
    record_ = *granting_;
    granting_.reset();
    const Error why{Code::kAborted, std::string(grant_refusal::kReturned),
                    "The target could not take the session into service; it is this host's again."};
    send_to(id, MsgGrantRefused{why.reason, why.text, true});
    emit(action::Unfence{record_.epoch});
    if (lost_) {  // What is left goes on where the guest runs.
        frozen_.reset();
        enter(SourceState::kLost, std::nullopt);
        emit(action::QueryDomain{});
        return;
    }
    if (m_) {
        end_migration(Outcome::kRolledBack, why, Announce::kNo);
    } else {
        ended_.push_back({id, why, {}});
        enter(SourceState::kHolding, settings_.operator_deadline);
        timers_.set(Timer::kPoll, now_ + settings_.job_poll);
    }
    if (resumed_meanwhile_) {
        roll_back();
    } else {
        emit(action::QueryDomain{});
    }
}

void SourceMachine::Impl::on(const source_event::GrantWriteFailed& event) {
    const Error& error = event.error;
    if (state_ == SourceState::kTakingBack) {
        granting_.reset();
        alert(AlertKind::kAwaitingOperator, "grant.not_written",
              "The target gave the session back, and the disk does not take that: " + error.text);
        enter(SourceState::kGranted, settings_.peer_silence);  // the target repeats it
        return;
    }
    if (state_ != SourceState::kGranting) {
        return;
    }
    granting_.reset();
    alert(AlertKind::kAwaitingOperator, "grant.not_written",
          "The grant could not be written to disk, so the session stays here: " + error.text);
    if (lost_) {
        enter(SourceState::kLost, std::nullopt);
        emit(action::QueryDomain{});
        return;
    }
    timers_.set(Timer::kHeartbeat, now_ + settings_.heartbeat);
    timers_.set(Timer::kPoll, now_ + settings_.job_poll);
    if (resumed_meanwhile_) {
        resumed_meanwhile_ = false;
        roll_back();
        return;
    }
    const bool goes_on = m_ && !m_->doomed;
    enter(goes_on ? SourceState::kFrozen : SourceState::kHolding, settings_.switchover_deadline);
}

void SourceMachine::Impl::on(const source_event::Released& /*event*/) {
    if (state_ == SourceState::kGranted) {
        send_to(record_.granted_migration, MsgReleased{Epoch{record_.epoch.value + 1}});
        report(Phase::kDone, 1.0);
        emit(action::Finished{granted_in_vain_ ? Outcome::kLost : Outcome::kMoved});
    } else if (state_ != SourceState::kHolding) {
        return;
    }
    m_.reset();
    timers_.clear_all();
    enter(SourceState::kReleased, std::nullopt);
}

void SourceMachine::Impl::on_activated(const MigrationId& id, const MsgActivated& activated) {
    if (!record_.granted || record_.granted_migration != id ||
        activated.epoch.value != record_.epoch.value + 1) {
        return;
    }
    if (state_ == SourceState::kReleased) {
        send_to(id, MsgReleased{activated.epoch});
    } else if (state_ == SourceState::kGranted) {
        emit(action::Release{});
    }
}

/// Nothing was served under the grant, so what is frozen here is the session as it is. It becomes
/// this host's again under the epoch after the one that was granted, which nobody ever served.
void SourceMachine::Impl::on_grant_returned(const MigrationId& id,
                                            const MsgGrantReturned& returned) {
    if (!record_.granted || record_.granted_migration != id) {
        on_withdrawal(id);  // and nothing to take back
        return;
    }
    const Epoch granted{record_.epoch.value + 1};
    if (returned.epoch.value != 0 && returned.epoch != granted) {
        return;
    }
    if (state_ == SourceState::kReleased) {
        send_to(id, MsgReleased{granted});  // discarded by an operator meanwhile
        return;
    }
    if (state_ != SourceState::kGranted) {
        return;
    }
    if (lost_ || frozen_ != record_.granted_token) {
        if (!std::exchange(granted_in_vain_, true)) {
            alert(AlertKind::kStateLost, "session.lost",
                  "The target lost the session that it was granted, and its workers here have "
                  "ended too: its GPU state is gone.");
        }
        emit(action::Release{});
        return;
    }
    timers_.clear_all();
    resumed_meanwhile_ = false;
    enter(SourceState::kTakingBack, std::nullopt);
    granting_ = DurableRecord{};
    granting_->epoch = Epoch{granted.value + 1};
    granting_->granted_migration = id;
    granting_->granted_peer = record_.granted_peer;
    emit(action::PersistGrant{*granting_});
}

}  // namespace gantry::engine
