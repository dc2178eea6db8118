// What the source does with the target's messages.
#include <algorithm>

#include "migration/engine/source_impl.h"

namespace gantry::engine {
namespace {

/// Answers that the other side's driver gives for a migration nobody knows; never answered again.
bool ends_a_conversation(const MessageBody& body) {
    return std::holds_alternative<MsgRefused>(body) ||
           std::holds_alternative<MsgGrantRefused>(body) ||
           std::holds_alternative<MsgReleased>(body);
}

}  // namespace

void SourceMachine::Impl::on(const source_event::Received& event) {
    const Message& message = event.message;
    if (is_stranger(message.migration, event.peer)) {
        return;  // an answer would go to whom it is about
    }
    if (is_current(message.migration)) {
        m_->peer_heard = now_;
    }
    if (const auto* prepare = std::get_if<MsgPrepare>(&message.body)) {
        on_prepare(message.migration, *prepare, event.seed, event.peer);
    } else if (const auto* request = std::get_if<MsgGrantRequest>(&message.body)) {
        on_grant_request(message.migration, *request, event.peer);
    } else if (const auto* activated = std::get_if<MsgActivated>(&message.body)) {
        on_activated(message.migration, *activated);
    } else if (const auto* returned = std::get_if<MsgGrantReturned>(&message.body)) {
        on_grant_returned(message.migration, *returned);
    } else if (std::holds_alternative<MsgAbort>(message.body)) {
        on_withdrawal(message.migration);
    } else if (state_ == SourceState::kGranting) {
        return;
    } else if (record_.granted && record_.granted_migration == message.migration) {
        if (state_ == SourceState::kGranted && !ends_a_conversation(message.body)) {
            send_to(message.migration,  // it does not know yet
                    MsgGrant{record_.granted_token, Epoch{record_.epoch.value + 1}});
        }
    } else if (!is_current(message.migration) || state_ == SourceState::kLost) {
        on_unknown(message);
    } else if (m_->doomed) {
        send(MsgAbort{m_->doom.reason, m_->doom.text});
    } else {
        on_peer_message(message);
    }
}

/// Uses the name of a migration that another host has drawn, which nobody else is told.
bool SourceMachine::Impl::is_stranger(const MigrationId& id, const std::string& peer) const {
    const bool has_known_peer = id == record_.granted_migration && !record_.granted_peer.empty();
    return (is_current(id) && m_->peer != peer) || (has_known_peer && record_.granted_peer != peer);
}

void SourceMachine::Impl::on_unknown(const Message& message) {
    if (ends_a_conversation(message.body)) {
        return;
    }
    const auto ended = std::find_if(ended_.begin(), ended_.end(),
                                    [&](const Ended& e) { return e.id == message.migration; });
    if (ended != ended_.end()) {
        send_to(message.migration, MsgAbort{ended->why.reason, ended->why.text});
    } else if (!waits_rightly(message)) {
        send_to(message.migration, MsgAbort{std::string(kUnknownMigration),
                                            "The source knows no such migration (any more)."});
    }
}

/// An answer would end what will yet be granted, or taken up: the target repeats what it wants.
bool SourceMachine::Impl::waits_rightly(const Message& message) const {
    const bool is_alive = std::holds_alternative<MsgAlive>(message.body);
    if (state_ == SourceState::kLost) {  // It may be all that is left: see on_grant_request().
        return is_alive || std::holds_alternative<MsgVerified>(message.body);
    }
    // It has asked, and libvirt's word is awaited, however long that takes.
    const bool is_considered = applicant_ && applicant_->id == message.migration;
    return is_alive &&
           (is_considered || is_renewing_ || is_settling() || state_ == SourceState::kTakingBack);
}

/// A new attempt is taken up in a moment.
bool SourceMachine::Impl::is_settling() const {
    return pending_ || state_ == SourceState::kThawing || state_ == SourceState::kRecovering;
}

void SourceMachine::Impl::on_prepare(const MigrationId& id, const MsgPrepare& prepare, Seed seed,
                                     const std::string& peer) {
    if (is_current(id) && !lost_) {
        if (state_ == SourceState::kOffered) {
            send_offer();
        }
        return;
    }
    constexpr Duration kCancelling{10'000'000};  // libvirt needs seconds to end a job
    const bool ends = cancelled_at_ && now_ - *cancelled_at_ < kCancelling && !guest_away();
    if (state_ == SourceState::kTakingBack || ends) {
        return;  // in a moment; the target repeats it
    }
    const auto ended =
        std::find_if(ended_.begin(), ended_.end(), [&](const Ended& e) { return e.id == id; });
    if (ended != ended_.end()) {
        if (ended->findings.empty()) {
            send_to(id, MsgAbort{ended->why.reason, ended->why.text});
        } else {
            send_to(id, MsgRefused{ended->findings});
        }
        return;
    }
    const auto refuse = [&](const char* reason, const char* text) {
        send_to(id, MsgRefused{{{Severity::kRefusal, reason, text}}});
    };
    if (prepare.protocol_version != kEngineProtocolVersion) {
        refuse("protocol.version",
               "The two hosts' gantryd speak different versions of the "
               "migration protocol: install the same release on both.");
    } else if (prepare.session_id != session_id_) {
        refuse("session.unknown", "The source has no GPU session of this VM.");
    } else if (is_renewing_) {
        return;  // in a moment; the target repeats it
    } else if (auto why = objection(prepare.ticket, peer)) {
        send_to(id, MsgRefused{{std::move(*why)}});
    } else if (lost_) {
        refuse("session.lost",
               "A worker of the session died at the source while it was frozen: "
               "until the VM runs there again, nothing can be moved.");
        emit(action::QueryDomain{});
    } else if (record_.granted || state_ == SourceState::kGranting) {
        refuse("session.granted", "The source has given this session away already.");
    } else if (is_settling()) {
        return;  // the target repeats it
    } else if (settings_.is_bound_to_hypervisor) {
        consider({id, prepare, seed, peer});
    } else {
        begin_migration(id, prepare, seed, peer);
    }
}

void SourceMachine::Impl::on_peer_message(const Message& message) {
    if (std::holds_alternative<MsgReady>(message.body)) {
        if (state_ == SourceState::kOffered) {
            enter(SourceState::kPrecopy, settings_.round_deadline);
            emit(action::BeginPrecopy{m_->seed});
            report(Phase::kPrecopy, 0.0);
        }
    } else if (const auto* ack = std::get_if<MsgRoundAck>(&message.body)) {
        on_round_acked(ack->round);
    } else if (const auto* lost = std::get_if<MsgRoundLost>(&message.body)) {
        const bool open = m_->round_in_flight || state_ == SourceState::kFrozen;
        if (open && lost->round == m_->round) {
            resend_round({Code::kUnavailable, "stream.lost", lost->detail});
        }
    } else if (const auto* request = std::get_if<MsgFreezeRequest>(&message.body)) {
        if (const auto why = objection(request->ticket, m_->peer)) {
            send(MsgAbort{why->reason, why->text});
        } else if (state_ == SourceState::kPrecopy && !m_->freeze_asked) {
            m_->freeze_asked = true;  // the target may be wrong about its guest: ask libvirt
            emit(action::QueryDomain{});
        } else if (state_ == SourceState::kFrozen) {
            send(MsgRoundEnd{m_->round, m_->batch_count});  // it lacks something: start over here
            send_complete();
        }
    } else if (const auto* verified = std::get_if<MsgVerified>(&message.body)) {
        on_verified(verified->token);
    } else if (const auto* failed = std::get_if<MsgVerifyFailed>(&message.body)) {
        on_verify_failed(*failed);
    }
}

void SourceMachine::Impl::on_verified(FreezeToken token) {
    if (frozen_ != token) {
        send(MsgThawed{token});
        return;
    }
    if (state_ == SourceState::kFinalRound) {  // sending again what is there already
        enter(SourceState::kFrozen, settings_.switchover_deadline);
    }
    if (state_ == SourceState::kFrozen) {
        timers_.clear(Timer::kRetry);
        m_->round_in_flight = false;
        progress_.bytes_remaining = 0;
        report(Phase::kCommit, 0.0);
    }
}

void SourceMachine::Impl::on_verify_failed(const MsgVerifyFailed& failed) {
    if (state_ != SourceState::kFrozen || frozen_ != failed.token) {
        return;
    }
    if (++m_->verify_failures > settings_.verify_failures_max) {
        abort_job();
        fail({Code::kDataLoss, "migration.verify_failed",
              "The target could not take the final state over: " + failed.detail});
        return;
    }
    enter(SourceState::kFinalRound, settings_.switchover_deadline);
    m_->round_in_flight = false;
    emit(action::BeginPrecopy{m_->seed});  // everything counts as unsent again
}

void SourceMachine::Impl::on_withdrawal(const MigrationId& id) {
    const MsgGrantRefused never{std::string(grant_refusal::kRolledBack),
                                "This migration has ended and will not be granted.", true};
    if (state_ == SourceState::kGranting || state_ == SourceState::kTakingBack) {
        return;
    }
    if (record_.granted) {
        if (record_.granted_migration == id) {
            send_to(id, MsgGrant{record_.granted_token, Epoch{record_.epoch.value + 1}});
        } else {
            send_to(id, never);
        }
        return;
    }
    const bool is_ours = is_current(id) || (!m_ && frozen_ && frozen_->migration == id);
    if (frozen_or_freezing() && is_ours) {
        if (m_ && !m_->doomed) {
            m_->doomed = true;
            m_->doom = {Code::kAborted, "migration.aborted_by_target", "The target gave up."};
            abort_job();
        }
        if (pending_) {
            return;  // repeated by the target
        }
        if (m_ && m_->voided) {
            send_to(id, never);
            return;
        }
        replace_token();
        return;
    }
    if (lost_ && (lost_token_unknown_ || id == newest_token_.migration)) {
        newest_token_ = {};  // the target lets its copy go: nothing is left to grant
        lost_token_unknown_ = false;
    }
    if (is_current(id) && state_ != SourceState::kThawing) {
        end_migration(Outcome::kRolledBack,
                      {Code::kAborted, "migration.aborted_by_target", "The target gave up."},
                      Announce::kNo);
    } else if (is_current(id)) {
        m_->doomed = true;
        m_->doom = {Code::kAborted, "migration.aborted_by_target", "The target gave up."};
    }
    send_to(id, never);
}

}  // namespace gantry::engine
