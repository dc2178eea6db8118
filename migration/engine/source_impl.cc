#include "migration/engine/source_impl.h"

#include "migration/engine/source_machine.h"

namespace gantry::engine {

SourceMachine::Impl::Impl(std::string session_id, Epoch epoch, Settings settings)
    : session_id_(std::move(session_id)), settings_(settings) {
    record_.epoch = epoch;
    ticket_backoff_.reset(settings_.retry);
}

SourceActions SourceMachine::Impl::step(const SourceEvent& event, TimePoint now) {
    now_ = std::max(now_, now);
    out_.clear();
    std::visit([this](const auto& one) { on(one); }, event);
    if (announced() && !timers_.is_set(Timer::kPoll)) {
        timers_.set(Timer::kPoll, now_ + settings_.job_poll);
    }
    if (!wants_ticket()) {
        ticket_backoff_.reset(settings_.retry);
    } else if (!timers_.is_set(Timer::kTicket)) {
        timers_.set(Timer::kTicket, now_ + ticket_backoff_.take(settings_.retry_max));
    }
    return std::move(out_);
}

const std::string& SourceMachine::Impl::peer() const {
    static const std::string kNobody;
    return m_ ? m_->peer : record_.granted ? record_.granted_peer : kNobody;
}

std::optional<MigrationId> SourceMachine::Impl::migration() const {
    if (m_) {
        return m_->id;
    }
    return std::nullopt;
}

bool SourceMachine::Impl::serves() const {
    return !record_.granted && !lost_ && !frozen_or_freezing() &&
           state_ != SourceState::kGranting && state_ != SourceState::kThawing &&
           state_ != SourceState::kRecovering && state_ != SourceState::kReleased;
}

bool SourceMachine::Impl::is_open(std::uint64_t round) const {
    return m_ && m_->round_in_flight && round == m_->round && !m_->doomed && !record_.granted &&
           state_ != SourceState::kGranting;
}

void SourceMachine::Impl::on(const source_event::DescribeFailed& event) {
    if (state_ == SourceState::kDescribing) {
        fail(event.error);
    }
}

void SourceMachine::Impl::on(const source_event::RoundProgress& event) {
    if (is_open(event.round)) {
        m_->stats = event.stats;
        timers_.set(Timer::kState, now_ + settings_.round_deadline);
        report_round();
    }
}

void SourceMachine::Impl::on(const source_event::RoundFailed& event) {
    if (m_ && !m_->begun && state_ == SourceState::kPrecopy) {
        fail(event.error);
    } else if (is_open(event.round)) {
        resend_round(event.error);
    }
}

void SourceMachine::Impl::on(const source_event::CompleteSent& event) {
    if (state_ == SourceState::kFinalRound && frozen_ == event.token) {
        if (m_) {
            m_->state_failures = 0;
        }
        enter(SourceState::kFrozen, settings_.switchover_deadline);
        arm_retry();
    }
}

/// Whether or not the round has arrived: something came that it does not have.
void SourceMachine::Impl::on(const source_event::CompleteFailed& event) {
    if (m_ && !m_->doomed && state_ == SourceState::kFinalRound && frozen_ == event.token) {
        resend_round(event.error);
    }
}

void SourceMachine::Impl::on(const source_event::GuestSuspended& /*event*/) {
    guest_suspended_ = true;
    left_by_migration_ = true;
    on_guest_away();
}

/// A guest that is being saved to a file comes by here too.
void SourceMachine::Impl::on(const source_event::GuestPreSwitchover& /*event*/) {
    guest_suspended_ = true;
    left_by_migration_ = left_by_migration_ || (m_ && m_->is_job_seen);
    on_guest_away();
}

void SourceMachine::Impl::on(const source_event::GuestResumed& /*event*/) { on_guest_resumed(); }

void SourceMachine::Impl::on(const source_event::GuestGone& /*event*/) {
    guest_gone_ = true;
    left_by_migration_ = true;
    on_guest_away();
}

void SourceMachine::Impl::on(const source_event::GuestStopped& /*event*/) {
    left_by_migration_ = false;
    on_job_ended();
}

void SourceMachine::Impl::on(const source_event::JobFailed& /*event*/) { on_job_ended(); }

void SourceMachine::Impl::on_job_ended() {
    cancelled_at_.reset();
    if (m_ && !frozen_or_freezing() && state_ != SourceState::kThawing) {
        fail({Code::kAborted, "migration.job_failed",
              "libvirt ended the migration of this VM; it goes on here."});
    } else {
        emit(action::QueryDomain{});
    }
}

void SourceMachine::Impl::on(const source_event::OperatorAbort& /*event*/) {
    if (m_ && !record_.granted && state_ != SourceState::kGranting) {
        abort_job();
        fail({Code::kCancelled, "migration.aborted_by_operator",
              "The operator aborted the migration."});
    }
}

void SourceMachine::Impl::on(const source_event::OperatorForce& /*event*/) {
    is_forced_ = true;
    if (state_ == SourceState::kPrecopy && m_ && m_->begun && !m_->converged) {
        m_->converged = true;
        send_converged();
    }
}

void SourceMachine::Impl::on(const source_event::OperatorDiscard& /*event*/) {
    if (state_ == SourceState::kGranted || state_ == SourceState::kHolding) {
        emit(action::Release{});
    }
}

void SourceMachine::Impl::on(const source_event::Restarted& event) {
    record_ = event.record;
    ticket_ = event.ticket;
    is_ticket_used_ = true;  // perhaps, and perhaps by whoever will ask for the grant
    lost_ = !event.workers_alive;
    frozen_ = event.frozen;
    if (frozen_) {
        newest_token_ = *frozen_;
    }
    if (record_.granted && lost_) {
        enter(SourceState::kReleased, std::nullopt);  // given away, and nothing left here to free
        return;
    }
    if (record_.granted) {
        emit(action::Fence{});
        enter(SourceState::kGranted, settings_.operator_deadline);
        return;
    }
    if (lost_) {
        lost_token_unknown_ = true;
        enter(SourceState::kLost, std::nullopt);
        alert(AlertKind::kStateLost, "session.lost",
              "The session's workers did not survive; its GPU state on this host is gone.");
        emit(action::QueryDomain{});  // where the guest runs here, what is left of it goes on
        return;
    }
    announced_ = event.announced;
    // The epoch is still ours, whatever the peer thinks. If the workers are frozen, libvirt knows
    // whether their guest still lives here.
    if (frozen_) {  // a grant may have come back just before
        emit(action::Unfence{record_.epoch});
    }
    emit(action::QueryDomain{});
    if (frozen_) {
        frozen_at_ = now_;
        enter(SourceState::kRecovering, settings_.job_poll);
    } else {
        enter(SourceState::kServing, std::nullopt);
    }
}

void SourceMachine::Impl::on(const source_event::Domain& event) {
    if (event.report.domain != DomainState::kUnknown) {
        note_whether_it_left(event.report);
        on_domain(event.report);
        settle_applicant(event.report);
        renew_ticket(event.report);
    }
}

void SourceMachine::Impl::on_domain(const DomainReport& report) {
    const bool running = report.domain == DomainState::kRunning;
    guest_gone_ = report.domain == DomainState::kAbsent;
    if (report.job == JobState::kNone || !running) {
        cancelled_at_.reset();
    }
    look_whether_job_is_over(report);
    look_whether_move_is_over(report);
    if (lost_request_ && state_ == SourceState::kLost) {
        const auto [id, request, peer] = *std::exchange(lost_request_, std::nullopt);
        if (running || !may_have_left()) {
            send_to(id, MsgGrantRefused{std::string(grant_refusal::kGuestNotGone),
                                        "The guest is at the source.", true});
        } else {
            persist_grant(id, request.token, peer);
        }
        return;
    }
    const bool lost_here = lost_ && !record_.granted && state_ != SourceState::kGranting;
    if (running && (frozen_or_freezing() || lost_here)) {
        on_guest_resumed();  // the event was missed
        return;
    }
    if (state_ == SourceState::kRecovering) {
        guest_suspended_ = report.domain == DomainState::kPaused;
        enter(SourceState::kHolding, settings_.operator_deadline);
        timers_.set(Timer::kPoll, now_ + settings_.job_poll);
        return;
    }
    if (m_ && state_ != SourceState::kGranting && !record_.granted) {
        on_domain_while_moving(report);
    }
}

/// Not at the first report: it may be as old as the question, and libvirt shows no job yet between
/// the target's hook and the first copy.
void SourceMachine::Impl::look_whether_job_is_over(const DomainReport& report) {
    const bool is_over = report.domain == DomainState::kRunning && report.job == JobState::kNone;
    if (!is_over || !announced() || m_ || frozen_or_freezing()) {
        job_over_since_.reset();
        return;
    }
    if (!job_over_since_) {
        job_over_since_ = now_;
    }
    if (now_ - *job_over_since_ >= settings_.job_absent_grace) {
        job_over_since_.reset();
        announced_ = false;
        timers_.clear(Timer::kPoll);
        emit(action::EndAnnouncement{});
    }
}

/// For what operators are told. Unlike an announcement, it ends where the guest is paused or gone.
void SourceMachine::Impl::look_whether_move_is_over(const DomainReport& report) {
    if (!awaits_attempt() || report.job != JobState::kNone) {
        move_over_since_.reset();
        return;
    }
    move_over_since_ = move_over_since_.value_or(now_);
    const Duration grace = report.domain == DomainState::kAbsent ? settings_.reservation_ttl
                                                                 : settings_.job_absent_grace;
    if (now_ - *move_over_since_ >= grace) {
        awaits_attempt_ = false;
        is_forced_ = false;
    }
}

void SourceMachine::Impl::on_domain_while_moving(const DomainReport& report) {
    const bool running = report.domain == DomainState::kRunning;
    if (running) {
        guest_suspended_ = false;
    }
    if (report.domain == DomainState::kAbsent) {
        on_guest_away();
    }
    if (m_->freeze_asked) {
        m_->freeze_asked = false;
        const bool is_left = may_have_left() || report.job != JobState::kNone;
        if (report.domain == DomainState::kPaused && is_left) {
            guest_suspended_ = true;
            on_guest_away();
        } else if (report.domain == DomainState::kPaused) {
            fail({Code::kAborted, std::string(peer_refusal::kNoJob),
                  "The guest is paused at the source, and libvirt has no migration of it under "
                  "way."});
            return;
        } else if (running && report.job == JobState::kNone) {
            fail({Code::kAborted, std::string(grant_refusal::kGuestNotGone),
                  "The guest runs at the source and libvirt has no migration of it under way."});
            return;
        }
    }
    if (report.job == JobState::kOutgoing) {
        m_->job_absent_since.reset();
        const bool silent = now_ - m_->peer_heard > settings_.peer_silence;
        if (frozen_ && (silent || m_->doomed) && report.domain == DomainState::kPaused) {
            abort_job();
        }
    } else if (report.job == JobState::kNone && report.domain != DomainState::kAbsent) {
        if (!m_->job_absent_since) {
            m_->job_absent_since = now_;
        }
        if (now_ - *m_->job_absent_since >= settings_.job_absent_grace && !frozen_or_freezing() &&
            state_ != SourceState::kThawing) {
            fail({Code::kAborted, "migration.job_gone",
                  "libvirt has no migration of this VM under way any more; it goes on here."});
        }
    }
}

void SourceMachine::Impl::on_guest_resumed() {
    guest_suspended_ = false;
    guest_gone_ = false;
    left_by_migration_ = false;
    if (m_) {
        m_->freeze_asked = false;
    }
    if (state_ == SourceState::kTakingBack) {
        resumed_meanwhile_ = true;
        return;
    }
    if (record_.granted) {
        emit(action::Fence{true});
        alert(AlertKind::kSplitBrain, "session.split_brain",
              "libvirt resumed the guest on this host after its GPU session was given to the "
              "target: its GPU calls here fail. Destroy one of the two guests.");
        return;
    }
    if (state_ == SourceState::kGranting || pending_) {
        resumed_meanwhile_ = true;
        return;
    }
    if (lost_) {
        go_on_without_lost();
        return;
    }
    if (frozen_) {
        roll_back();
    } else if (state_ == SourceState::kFreezing) {  // It failed, and need not be tried again.
        frozen_at_.reset();
        go_on_with_precopy();
    }
}

/// A worker died while the session was frozen, and the guest is back: no copy of that freeze can be
/// granted any more. The program of that worker has its CUDA error; the others go on, and a later
/// move takes what there is then.
void SourceMachine::Impl::go_on_without_lost() {
    lost_ = false;
    lost_token_unknown_ = false;
    lost_request_.reset();
    if (m_) {
        m_->doomed = true;
        m_->doom = {Code::kDataLoss, "session.lost", "A worker of the session died at the source."};
    }
    enter(SourceState::kThawing, settings_.freeze_deadline);
    emit(action::Thaw{});
}

void SourceMachine::Impl::on_guest_away() {
    if (record_.granted || lost_ || frozen_or_freezing()) {
        return;
    }
    if (state_ == SourceState::kPrecopy && m_ && m_->begun) {
        begin_freeze();
    } else if (state_ == SourceState::kServing && guest_gone_) {
        alert(AlertKind::kAwaitingPeer, "migration.no_target",
              "The guest left this host, but no gantryd asked for its GPU session; it is kept.");
    }
}

void SourceMachine::Impl::on(const source_event::WorkerLost& /*event*/) {
    if (lost_ || state_ == SourceState::kReleased) {
        return;
    }
    if (record_.granted || state_ == SourceState::kGranting) {
        lost_ = true;  // the target has all of it
        alert(AlertKind::kStateLost, "session.lost",
              "A worker of the session died; its GPU state on this host is gone.");
        return;
    }
    const Error why{Code::kDataLoss, "session.worker_lost",
                    "The worker of one of the session's programs died during the move; the others "
                    "go on at the source, and can be moved again."};
    if (!frozen_) {
        if (pending_ && m_) {
            abort_job();  // else the guest arrives there without any of its programs' state
        }
        fail(why);
        return;
    }
    lost_ = true;
    alert(AlertKind::kStateLost, "session.lost",
          "A worker of the session died; its GPU state on this host is gone.");
    // The target may have all of it, and ask for the grant: until the guest runs here again.
    frozen_.reset();
    pending_.reset();
    timers_.clear_all();
    enter(SourceState::kLost, std::nullopt);
    emit(action::QueryDomain{});
}

void SourceMachine::Impl::on(const source_event::Timer& /*event*/) {
    if (timers_.take_due(Timer::kHeartbeat, now_) && m_) {
        send(MsgAlive{progress_.bytes_remaining});
        timers_.set(Timer::kHeartbeat, now_ + settings_.heartbeat);
    }
    if (timers_.take_due(Timer::kPoll, now_)) {
        on_poll();
    }
    if (timers_.take_due(Timer::kIdleRound, now_) && state_ == SourceState::kPrecopy && m_ &&
        !m_->round_in_flight) {
        begin_round();
    }
    if (timers_.take_due(Timer::kTicket, now_) && wants_ticket()) {
        emit(action::QueryDomain{});  // see renew_ticket()
    }
    if (timers_.take_due(Timer::kRetry, now_)) {
        on_retry();
    }
    if (timers_.take_due(Timer::kState, now_)) {
        on_state_deadline();
    }
}

void SourceMachine::Impl::on_poll() {
    const bool frozen_here = frozen_or_freezing() && !record_.granted;
    if (!m_ && !frozen_here && !announced()) {
        return;
    }
    emit(action::QueryDomain{});
    timers_.set(Timer::kPoll, now_ + settings_.job_poll);
    if (m_ && !frozen_here && state_ != SourceState::kThawing && state_ != SourceState::kGranting &&
        state_ != SourceState::kGranted && now_ - m_->peer_heard > settings_.peer_silence) {
        alert(AlertKind::kJobHangs, "migration.peer_silent",
              "The target's gantryd has been silent for too long; this migration is given up.");
        abort_job();
        fail({Code::kUnavailable, "migration.peer_silent", "The target's gantryd is silent."});
    }
}

void SourceMachine::Impl::on_retry() {
    switch (state_) {
        case SourceState::kOffered: send_offer(); break;
        case SourceState::kPrecopy:
        case SourceState::kFinalRound:
            if (m_ && m_->round_in_flight && m_->round_sent) {
                send(MsgRoundEnd{m_->round, m_->batch_count});
            }
            break;
        case SourceState::kFreezing:
            if (m_ && !frozen_or_freezing() && guest_away()) {
                begin_freeze();
            }
            return;
        case SourceState::kFrozen:
            if (m_ && frozen_ && !m_->doomed) {
                if (m_->round_in_flight) {
                    send(MsgRoundEnd{m_->round, m_->batch_count});
                }
                send_complete();
            }
            break;
        default: return;
    }
    timers_.set(Timer::kRetry, now_ + backoff_.take(settings_.retry_max));
}

void SourceMachine::Impl::on_state_deadline() {
    switch (state_) {
        case SourceState::kDescribing:
            fail({Code::kDeadlineExceeded, "migration.describe_timeout",
                  "The workers did not describe their state in time."});
            break;
        case SourceState::kOffered:
            fail({Code::kDeadlineExceeded, "migration.peer_silent",
                  "The target did not confirm its reservation in time."});
            break;
        case SourceState::kPrecopy:
        case SourceState::kFinalRound:
            if (m_ && m_->round_in_flight) {
                resend_round({Code::kDeadlineExceeded, "stream.timeout",
                              "A round was not acknowledged in time."});
            } else if (m_ && frozen_ && m_->round_is_final) {
                send_complete();  // its answer never came
                timers_.set(Timer::kState, now_ + settings_.round_deadline);
            } else {
                timers_.set(Timer::kState, now_ + settings_.round_deadline);
            }
            break;
        case SourceState::kFreezing:
            if (pending_) {
                emit(action::Freeze{*pending_, settings_.freeze_deadline});  // idempotent
            }
            timers_.set(Timer::kState, now_ + 2 * settings_.freeze_deadline);
            break;
        case SourceState::kFrozen:
        case SourceState::kHolding:
            alert(AlertKind::kAwaitingPeer, "migration.awaiting_target",
                  "The session is frozen and complete here, and the target has not taken it.");
            emit(action::QueryDomain{});
            timers_.set(Timer::kState, now_ + settings_.operator_deadline);
            break;
        case SourceState::kThawing:
            emit(action::Thaw{});
            timers_.set(Timer::kState, now_ + settings_.freeze_deadline);
            break;
        case SourceState::kRecovering:
            emit(action::QueryDomain{});
            timers_.set(Timer::kState, now_ + settings_.job_poll);
            break;
        case SourceState::kGranted:
            alert(AlertKind::kAwaitingPeer, "migration.not_confirmed",
                  "The session was given to the target, which has not confirmed that it serves.");
            timers_.set(Timer::kState, now_ + settings_.operator_deadline);
            break;
        case SourceState::kServing:
        case SourceState::kGranting:
        case SourceState::kTakingBack:
        case SourceState::kReleased:
        case SourceState::kLost: break;
    }
}

SourceMachine::SourceMachine(std::string session_id, Epoch epoch, Settings settings)
    : impl_(std::make_unique<Impl>(std::move(session_id), epoch, settings)) {}
SourceMachine::~SourceMachine() = default;
SourceMachine::SourceMachine(SourceMachine&&) noexcept = default;
SourceMachine& SourceMachine::operator=(SourceMachine&&) noexcept = default;

SourceActions SourceMachine::step(const SourceEvent& event, TimePoint now) {
    return impl_->step(event, now);
}
std::optional<TimePoint> SourceMachine::next_deadline() const { return impl_->next_deadline(); }
SourceState SourceMachine::state() const { return impl_->state(); }
Epoch SourceMachine::epoch() const { return impl_->epoch(); }
std::optional<MigrationId> SourceMachine::migration() const { return impl_->migration(); }
const std::string& SourceMachine::peer() const { return impl_->peer(); }
const Progress& SourceMachine::progress() const { return impl_->progress(); }
bool SourceMachine::serves() const { return impl_->serves(); }
bool SourceMachine::announced() const { return impl_->announced(); }
bool SourceMachine::awaits_attempt() const { return impl_->awaits_attempt(); }

}  // namespace gantry::engine
