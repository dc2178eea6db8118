// The steps of one migration at the source, from Prepare to release or rollback.
#include <algorithm>
#include <utility>

#include "migration/engine/source_impl.h"

namespace gantry::engine {
namespace {

/// How much of precopy counts as done after so many rounds, unless they have converged.
double precopy_done(std::size_t rounds) {
    return rounds == 0 ? 0.0 : 0.8 + 0.15 * (1.0 - 1.0 / static_cast<double>(rounds));
}

/// No other attempt follows within the hypervisor's job: it has ended, or the target will not.
bool ends_the_move(std::string_view reason) {
    constexpr std::string_view kEnds[] = {
        grant_refusal::kGuestNotGone, peer_refusal::kNoJob,   "migration.aborted_by_operator",
        "migration.verify_failed",    "migration.job_failed", "migration.job_gone",
        "migration.not_converging"};
    return std::ranges::count(kEnds, reason) != 0;
}

/// Links and workers that are away come back; what a frozen worker says of its state stays true.
bool may_pass(const Error& why) {
    return why.code == Code::kUnavailable || why.code == Code::kDeadlineExceeded ||
           why.code == Code::kCancelled;
}

}  // namespace

void SourceMachine::Impl::begin_migration(const MigrationId& id, const MsgPrepare& prepare,
                                          Seed seed, const std::string& peer) {
    if (m_) {
        // libvirt allows one outgoing migration: a new attempt means that the old one is dead.
        const Error why{Code::kAborted, "migration.superseded", "A newer attempt took its place."};
        if (!m_->doomed) {
            send(MsgAbort{why.reason, why.text});
        }
        emit(action::EndPrecopy{});
        ended_.push_back({m_->id, why, {}});
    }
    const bool goes_on = m_ || awaits_attempt();
    m_.emplace(Migration{});  // Not emplace(): clang 14 asks for its default values too early.
    m_->id = id;
    m_->peer = peer;
    m_->seed = seed;
    m_->rounds = Rounds(rules_of_move(settings_));
    m_->target = prepare.capabilities;
    m_->peer_heard = now_;
    m_->prepared_at = now_;
    cancelled_at_.reset();
    if (guest_gone_ && !announced_) {  // Its host lacks libvirt's hook, most likely.
        alert(AlertKind::kAwaitingOperator, "migration.not_announced",
              "The guest left this host before its migration was announced here: what its GPU was "
              "writing into page-locked memory then may be missing at the target. Install Gantry's "
              "hook for libvirt on every host.");
    }
    announced_ = true;
    job_over_since_.reset();
    if (!goes_on) {
        meter_.reset();
        progress_ = {};
        move_begun_at_ = now_;
    }
    awaits_attempt_ = false;
    move_over_since_.reset();
    rounds_before_ = progress_.round;
    m_->bytes_sent_before = progress_.bytes_sent;
    m_->bytes_content_before = progress_.bytes_content;
    timers_.clear_all();
    enter(SourceState::kDescribing, settings_.describe_deadline);
    timers_.set(Timer::kHeartbeat, now_ + settings_.heartbeat);
    timers_.set(Timer::kPoll, now_ + settings_.job_poll);
    if (frozen_) {
        replace_token();  // whatever the old attempt holds is void from here
    }
    emit(action::Describe{});
    report(Phase::kPreflight, 0.0);
}

void SourceMachine::Impl::on(const source_event::Described& event) {
    if (state_ != SourceState::kDescribing) {
        return;
    }
    m_->needs = event.needs;
    auto findings = preflight(m_->needs, m_->target);
    if (refused(findings)) {
        send(MsgRefused{findings});
        const Error why{Code::kFailedPrecondition, "migration.refused", refusal_text(findings)};
        const MigrationId id = m_->id;
        end_migration(Outcome::kRefused, why, Announce::kNo);
        if (!ended_.empty() && ended_.back().id == id) {
            ended_.back().findings = std::move(findings);
        }
        return;
    }
    m_->warnings = std::move(findings);
    progress_.bytes_total = m_->needs.resident_bytes();
    progress_.bytes_remaining = m_->bytes_expected = progress_.bytes_total;
    enter(SourceState::kOffered, settings_.reservation_ttl);
    send_offer();
    arm_retry();
    report(Phase::kPreflight, 1.0);
}

void SourceMachine::Impl::send_offer() {
    MsgOffer offer;
    offer.epoch = record_.epoch;
    offer.seed = m_->seed;
    offer.needs = m_->needs;
    offer.warnings = m_->warnings;
    send(std::move(offer));
}

void SourceMachine::Impl::on(const source_event::PrecopyBegun& /*event*/) {
    if (!m_ || (state_ != SourceState::kPrecopy && state_ != SourceState::kFinalRound)) {
        return;
    }
    m_->begun = true;
    m_->rounds.clear();
    if (frozen_) {
        enter(SourceState::kFinalRound, settings_.switchover_deadline);
        begin_round();
    } else if (pending_) {
        return;  // an older attempt's token is being replaced: the final round follows
    } else if (guest_away()) {
        begin_freeze();
    } else {
        begin_round();
    }
}

void SourceMachine::Impl::begin_round() {
    ++m_->round;
    m_->round_in_flight = true;
    m_->round_sent = false;
    m_->round_is_final = frozen_.has_value();
    m_->round_begun = now_;
    m_->stats = {};
    timers_.clear(Timer::kIdleRound);
    timers_.set(Timer::kState, now_ + settings_.round_deadline);
    emit(action::SendRound{m_->round});
}

void SourceMachine::Impl::resend_round(const Error& why) {
    if (frozen_ && !may_pass(why) && ++m_->state_failures > settings_.verify_failures_max) {
        abort_job();
        fail({why.code, why.reason, "The frozen state cannot be moved: " + why.text});
        return;
    }
    if (++m_->round_failures > settings_.round_failures_max && !frozen_or_freezing()) {
        fail({Code::kUnavailable, "migration.link",
              "The link to the target failed again and "
              "again, last: " +
                  why.text});
        return;
    }
    if (state_ == SourceState::kFrozen) {
        enter(SourceState::kFinalRound, std::nullopt);
    }
    close_round_stats();  // what was sent was sent, although it goes again
    ++m_->round;          // late batches of the failed one are dropped by the target
    m_->round_in_flight = true;
    m_->round_sent = false;
    m_->round_is_final = frozen_.has_value();
    m_->round_begun = now_;
    timers_.set(Timer::kState, now_ + settings_.round_deadline);
    emit(action::ResendRound{m_->round});
}

void SourceMachine::Impl::on(const source_event::RoundSent& event) {
    if (!is_open(event.round)) {
        return;
    }
    m_->round_sent = true;
    m_->stats = event.stats;
    m_->batch_count = event.stats.batch_count;
    send(MsgRoundEnd{m_->round, m_->batch_count});
    arm_retry();
    if (m_->round_is_final && frozen_ && state_ == SourceState::kFinalRound) {
        // Not waiting for the acknowledgement saves a round trip of the pause: the target applies
        // the final state only when this round is complete.
        send_complete();
    }
    report_round();
}

void SourceMachine::Impl::on_round_acked(std::uint64_t round) {
    if (!m_->round_in_flight || !m_->round_sent || round != m_->round) {
        return;
    }
    m_->round_in_flight = false;
    m_->round_failures = 0;
    const bool is_first = m_->rounds.records().empty();
    m_->rounds.add({m_->stats.bytes_changed, m_->stats.bytes_sent, now_ - m_->round_begun,
                    m_->stats.scan, is_first ? Duration{} : m_->round_begun - m_->last_begun});
    m_->last_begun = m_->round_begun;
    close_round_stats();
    if (state_ == SourceState::kPrecopy) {
        after_precopy_round();
    } else if (state_ == SourceState::kFinalRound && !m_->round_is_final) {
        begin_round();
    }
}

void SourceMachine::Impl::after_precopy_round() {
    const std::uint64_t resident = m_->stats.bytes_resident;
    const std::vector<RoundRecord>& rounds = m_->rounds.records();
    const Convergence verdict = m_->rounds.judge(m_->rounds.downtime(resident));
    const bool is_idle = m_->converged || verdict != Convergence::kAnotherRound;
    // Converged, a VM's pause comes at some moment of the time between two idle rounds, and that of
    // a session without one at once.
    const bool waits = is_idle && settings_.is_bound_to_hypervisor;
    const Duration open =
        rounds.back().elapsed + (waits ? settings_.idle_round_interval / 2 : Duration{});
    const DowntimeEstimate estimate = estimate_downtime(rounds, resident, open);
    progress_.bytes_remaining = m_->bytes_expected = estimate.bytes_remaining;
    progress_.link_bytes_per_second = estimate_rate(rounds);
    progress_.dirty_bytes_per_second = dirty_rate(rounds);
    progress_.downtime_estimate = estimate.downtime.value_or(Duration{});
    const bool too_long = !is_forced_ && verdict != Convergence::kFits &&
                          settings_.downtime_max.count() != 0 && estimate.downtime &&
                          *estimate.downtime > settings_.downtime_max;
    m_->rounds_too_long = too_long ? m_->rounds_too_long + 1 : 0;
    if (too_long && will_not_get_better(verdict)) {
        refuse_pause(estimate);
        return;
    }
    const bool has_waited = now_ - m_->prepared_at >= settings_.hook_wait_max;
    m_->converged = m_->converged || is_forced_ ||
                    (!too_long && (verdict != Convergence::kAnotherRound || has_waited));
    report(Phase::kPrecopy, m_->converged ? 1.0 : precopy_done(rounds.size()));
    timers_.clear(Timer::kRetry);
    if (m_->converged) {
        send_converged();
        // Until the pause comes, keep what is left small.
        timers_.set(Timer::kIdleRound, now_ + settings_.idle_round_interval);
        timers_.clear(Timer::kState);
    } else {
        begin_round();
    }
}

/// Of a pause that would be too long. An admitted guest may pause at any moment, but a single slow
/// round says little.
bool SourceMachine::Impl::will_not_get_better(Convergence verdict) const {
    constexpr std::uint32_t kRoundsToBeSure = 4;
    if (m_->converged) {
        return settings_.may_abort_job && m_->rounds_too_long >= kRoundsToBeSure;
    }
    return verdict == Convergence::kNoImprovement || verdict == Convergence::kRoundsExhausted ||
           now_ - m_->prepared_at >= std::max(settings_.hook_wait_max, settings_.hook_hold_max);
}

/// While the guest runs: it and its programs go on here. Where it was admitted, libvirt cancels;
/// should it pause all the same, the target's next attempt takes its session along.
void SourceMachine::Impl::refuse_pause(const DowntimeEstimate& estimate) {
    if (m_->converged) {
        cancelled_at_ = now_;
    }
    abort_job();
    end_migration(
        Outcome::kRefused,
        {Code::kFailedPrecondition, "migration.not_converging",
         not_converging_text(estimate, progress_.dirty_bytes_per_second, settings_.downtime_max)},
        Announce::kYes);
}

void SourceMachine::Impl::send_converged() {
    send(MsgConverged{progress_.downtime_estimate, progress_.bytes_remaining});
}

FreezeToken SourceMachine::Impl::next_token() const {
    const MigrationId id = m_ ? m_->id : newest_token_.migration;
    const bool same = id == newest_token_.migration;
    return {id, same ? newest_token_.count + 1 : 1};
}

void SourceMachine::Impl::begin_freeze() {
    resumed_meanwhile_ = false;
    pending_ = newest_token_ = next_token();
    frozen_at_ = now_;
    timers_.clear(Timer::kIdleRound);
    enter(SourceState::kFreezing, 2 * settings_.freeze_deadline);
    emit(action::Freeze{*pending_, settings_.freeze_deadline});
    report(Phase::kSwitchover, 0.0);
}

void SourceMachine::Impl::replace_token() {
    frozen_.reset();
    resumed_meanwhile_ = false;
    pending_ = newest_token_ = next_token();
    emit(action::Freeze{*pending_, settings_.freeze_deadline});
}

void SourceMachine::Impl::on(const source_event::Frozen& event) {
    const FreezeToken token = event.token;
    if (!pending_ || *pending_ != token) {
        return;
    }
    pending_.reset();
    frozen_ = token;
    if (resumed_meanwhile_) {
        resumed_meanwhile_ = false;
        roll_back();
        return;
    }
    if (!m_) {  // withdrawn after a restart
        send_to(token.migration, MsgGrantRefused{std::string(grant_refusal::kRolledBack),
                                                 "This migration has ended.", true});
        return;
    }
    if (m_->doomed) {
        m_->voided = true;
        send(MsgGrantRefused{std::string(grant_refusal::kRolledBack), "This migration has ended.",
                             true});
        enter(SourceState::kHolding, settings_.operator_deadline);
        timers_.set(Timer::kPoll, now_ + settings_.job_poll);
        emit(action::QueryDomain{});
        return;
    }
    const bool begun =
        state_ == SourceState::kFreezing || (state_ == SourceState::kPrecopy && m_->begun);
    if (!begun) {
        return;  // the token of an older attempt was replaced; this one has only begun
    }
    enter(SourceState::kFinalRound, settings_.switchover_deadline);
    if (!m_->round_in_flight) {
        begin_round();
    }
}

void SourceMachine::Impl::on(const source_event::FreezeFailed& event) {
    if (!pending_) {
        return;
    }
    pending_.reset();
    constexpr std::uint32_t kFreezeAttempts = 3;
    if (m_ && !m_->doomed && guest_away() && ++m_->freeze_failures < kFreezeAttempts) {
        timers_.set(Timer::kRetry, now_ + settings_.retry);
        return;
    }
    if (m_) {
        abort_job();
        fail({Code::kDeadlineExceeded, "freeze.failed",
              "The GPU could not be brought to rest: " + event.error.text});
    } else {
        enter(SourceState::kServing, std::nullopt);
    }
}

void SourceMachine::Impl::roll_back() {
    const FreezeToken token = *frozen_;
    frozen_.reset();
    send_to(m_ ? m_->id : token.migration, MsgThawed{token});
    enter(SourceState::kThawing, settings_.freeze_deadline);
    emit(action::Thaw{});
}

void SourceMachine::Impl::on(const source_event::Thawed& /*event*/) {
    if (state_ != SourceState::kThawing) {
        return;
    }
    if (frozen_at_) {
        progress_.downtime = now_ - *frozen_at_;
        frozen_at_.reset();
    }
    if (!m_) {
        enter(SourceState::kServing, std::nullopt);
        return;
    }
    if (m_->doomed || !m_->begun) {
        end_migration(Outcome::kRolledBack,
                      {Code::kAborted, "migration.rolled_back", "The guest resumed at the source."},
                      Announce::kYes);
        return;
    }
    go_on_with_precopy();
}

/// The pause may have been one of many (--timeout-suspend); if libvirt's job is gone, the poll ends
/// the migration.
void SourceMachine::Impl::go_on_with_precopy() {
    enter(SourceState::kPrecopy, settings_.round_deadline);
    m_->converged = false;
    m_->rounds.clear();
    emit(action::QueryDomain{});
    if (guest_away()) {
        begin_freeze();
    } else if (m_->round_in_flight) {
        m_->round_is_final = false;
    } else {
        begin_round();
    }
}

void SourceMachine::Impl::fail(Error why) {
    if (!m_) {
        return;
    }
    if (!frozen_or_freezing() && state_ != SourceState::kThawing) {
        end_migration(Outcome::kRolledBack, std::move(why), Announce::kYes);
        return;
    }
    // Frozen: only libvirt's word that the guest runs here may thaw. The target is told to let go;
    // it answers with a withdrawal, which voids the token.
    m_->doomed = true;
    m_->doom = why;
    send(MsgAbort{why.reason, why.text});
    if (state_ == SourceState::kThawing) {
        return;
    }
    alert(AlertKind::kAwaitingOperator, why.reason, why.text);
    enter(SourceState::kHolding, settings_.operator_deadline);
    timers_.clear(Timer::kRetry);
    timers_.set(Timer::kPoll, now_ + settings_.job_poll);
}

void SourceMachine::Impl::end_migration(Outcome outcome, Error why, Announce announce) {
    constexpr std::size_t kEndedKept = 16;
    if (announce == Announce::kYes) {
        send(MsgAbort{why.reason, why.text});
    }
    emit(action::EndPrecopy{});
    report(Phase::kFailed, 0.0);
    emit(action::Finished{outcome, why});
    ended_.push_back({m_->id, std::move(why), {}});
    if (ended_.size() > kEndedKept) {
        ended_.pop_front();
    }
    m_.reset();
    awaits_attempt_ = outcome == Outcome::kRolledBack && !ends_the_move(ended_.back().why.reason);
    is_forced_ = is_forced_ && awaits_attempt_;
    timers_.clear_all();
    if (frozen_or_freezing()) {
        enter(SourceState::kHolding, settings_.operator_deadline);
        timers_.set(Timer::kPoll, now_ + settings_.job_poll);
    } else {
        enter(SourceState::kServing, std::nullopt);
    }
    if (wants_ticket()) {
        emit(action::QueryDomain{});  // see renew_ticket()
    }
}

void SourceMachine::Impl::enter(SourceState state, std::optional<Duration> deadline) {
    state_ = state;
    if (deadline) {
        timers_.set(Timer::kState, now_ + *deadline);
    } else {
        timers_.clear(Timer::kState);
    }
}

void SourceMachine::Impl::send(MessageBody body) { send_to(m_->id, std::move(body)); }

void SourceMachine::Impl::send_to(const MigrationId& id, MessageBody body) {
    emit(action::Send{{id, std::move(body)}});
}

void SourceMachine::Impl::alert(AlertKind kind, std::string reason, std::string text) {
    emit(action::Alert{kind, {Code::kUnavailable, std::move(reason), std::move(text)}});
}

void SourceMachine::Impl::send_complete() { emit(action::SendComplete{*frozen_, m_->round}); }

void SourceMachine::Impl::abort_job() {
    constexpr Duration kPatience{10'000'000};  // libvirt needs seconds to end a job
    const bool again = m_->abort_job_at && now_ - *m_->abort_job_at < kPatience;
    if (settings_.may_abort_job && !again) {
        m_->abort_job_at = now_;
        emit(action::AbortJob{});
    }
}

void SourceMachine::Impl::report(Phase phase, double fraction) {
    progress_.phase = phase;
    progress_.percent = meter_.advance(phase, fraction);
    if (m_) {
        progress_.round = rounds_before_ + m_->round;
        progress_.bytes_sent = m_->bytes_sent_before + m_->stats.bytes_sent;
        progress_.bytes_content = m_->bytes_content_before + m_->stats.bytes_content;
        progress_.elapsed = now_ - move_begun_at_;
    }
    emit(action::ReportProgress{progress_});
}

/// While a round is under way: by what the target has acknowledged of it.
void SourceMachine::Impl::report_round() {
    // The first round sends everything; what its later parts hold is not known before their scan.
    const bool is_scanned =
        m_->round_sent || (m_->rounds.records().size() == 1 && m_->stats.bytes_changed != 0);
    const std::uint64_t due = is_scanned ? m_->stats.bytes_changed
                                         : std::max(m_->stats.bytes_changed, m_->bytes_expected);
    const std::uint64_t acknowledged = std::min(m_->stats.bytes_acknowledged, due);
    progress_.bytes_remaining = due - acknowledged;
    const auto done = static_cast<double>(acknowledged);
    const double share = due == 0 ? 0.0 : done / static_cast<double>(due);
    if (frozen_) {
        report(Phase::kSwitchover, 0.5 * share);
        return;
    }
    const std::size_t rounds = m_->rounds.records().size();
    const double from = precopy_done(rounds);
    const double to = precopy_done(rounds + 1);
    report(Phase::kPrecopy, from + (to - from) * share);
}

void SourceMachine::Impl::close_round_stats() {
    m_->bytes_sent_before += std::exchange(m_->stats.bytes_sent, 0);
    m_->bytes_content_before += std::exchange(m_->stats.bytes_content, 0);
}

void SourceMachine::Impl::arm_retry() {
    backoff_.reset(settings_.retry);
    timers_.set(Timer::kRetry, now_ + backoff_.take(settings_.retry_max));
}

}  // namespace gantry::engine
