// The inside of SourceMachine, shared by its source files: events (source_impl.cc), the peer's
// messages (source_peer.cc), the steps of a migration (source_steps.cc) and the grant
// (source_grant.cc).
#pragma once

#include <deque>

#include "migration/engine/source_machine.h"
#include "migration/engine/timers.h"
#include "migration/engine/transfer.h"

namespace gantry::engine {

class SourceMachine::Impl {
public:
    Impl(std::string session_id, Epoch epoch, Settings settings);

    SourceActions step(const SourceEvent& event, TimePoint now);

    std::optional<TimePoint> next_deadline() const { return timers_.next(); }
    SourceState state() const { return state_; }
    Epoch epoch() const { return record_.epoch; }
    std::optional<MigrationId> migration() const;
    const std::string& peer() const;
    const Progress& progress() const { return progress_; }
    bool serves() const;
    bool announced() const { return announced_ && !record_.granted && !lost_; }
    bool awaits_attempt() const { return awaits_attempt_ && announced() && !m_; }

private:
    enum class Timer { kState, kRetry, kHeartbeat, kPoll, kIdleRound, kTicket };
    enum class Announce { kYes, kNo };

    /// One attempt of one target.
    struct Migration {
        MigrationId id;
        std::string peer;
        Seed seed;
        TargetCapabilities target;
        SessionNeeds needs;
        std::vector<Finding> warnings;
        std::uint64_t round = 0;
        bool round_in_flight = false;
        bool round_sent = false;
        bool round_is_final = false;  ///< Begun while frozen, so nothing can change after it.
        std::uint64_t batch_count = 0;
        TimePoint round_begun{};
        TimePoint last_begun{};  ///< Of the last round in `rounds`.
        RoundStats stats;
        Rounds rounds;
        std::uint64_t bytes_sent_before = 0;  ///< By rounds that have ended.
        std::uint64_t bytes_content_before = 0;
        std::uint32_t round_failures = 0;
        std::uint32_t verify_failures = 0;
        std::uint32_t state_failures = 0;  ///< Of frozen workers, to say their state.
        std::uint32_t freeze_failures = 0;
        std::uint32_t rounds_too_long = 0;  ///< In a row: the pause would be longer than allowed.
        TimePoint prepared_at{};
        std::uint64_t bytes_expected = 0;  ///< What the next scan may find.
        bool begun = false;
        bool is_job_seen = false;  ///< libvirt has named its outgoing job.
        bool converged = false;
        bool freeze_asked = false;  ///< By the target; libvirt's word is awaited.
        bool doomed = false;        ///< Will never be granted; frozen until libvirt says RESUMED.
        bool voided = false;        ///< doomed, and the token was replaced since.
        Error doom;                 ///< Why it is doomed: repeated to a target that missed it.
        std::optional<TimePoint> job_absent_since;
        std::optional<TimePoint> abort_job_at;
        TimePoint peer_heard{};
    };

    /// A Prepare with the right ticket that waits for libvirt's word.
    struct Applicant {
        MigrationId id;
        MsgPrepare prepare;
        Seed seed;
        std::string peer;
        std::uint32_t reports_without_job = 0;
        TimePoint heard{};
    };

    struct Ended {
        MigrationId id;
        Error why;
        std::vector<Finding> findings;
    };

    // source_impl.cc: events
    void on(const source_event::Timer& event);
    void on(const source_event::DescribeFailed& event);
    void on(const source_event::RoundProgress& event);
    void on(const source_event::RoundFailed& event);
    void on(const source_event::CompleteSent& event);
    void on(const source_event::CompleteFailed& event);
    void on(const source_event::WorkerLost& event);
    void on(const source_event::Domain& event);
    void on(const source_event::GuestSuspended& event);
    void on(const source_event::GuestPreSwitchover& event);
    void on(const source_event::GuestResumed& event);
    void on(const source_event::GuestGone& event);
    void on(const source_event::GuestStopped& event);
    void on(const source_event::JobFailed& event);
    void on(const source_event::OperatorAbort& event);
    void on(const source_event::OperatorForce& event);
    void on(const source_event::OperatorDiscard& event);
    void on(const source_event::Restarted& event);
    void on_domain(const DomainReport& report);
    void on_domain_while_moving(const DomainReport& report);
    void look_whether_job_is_over(const DomainReport& report);
    void look_whether_move_is_over(const DomainReport& report);
    void on_guest_resumed();
    void on_guest_away();
    void on_job_ended();
    void go_on_without_lost();
    void on_state_deadline();
    void on_retry();
    void on_poll();

    // source_peer.cc: messages
    void on(const source_event::Received& event);
    void on_prepare(const MigrationId& id, const MsgPrepare& prepare, Seed seed,
                    const std::string& peer);
    [[nodiscard]] bool is_stranger(const MigrationId& id, const std::string& peer) const;
    void on_unknown(const Message& message);
    [[nodiscard]] bool waits_rightly(const Message& message) const;
    [[nodiscard]] bool is_settling() const;
    void on_peer_message(const Message& message);
    void on_withdrawal(const MigrationId& id);
    void on_verified(FreezeToken token);
    void on_verify_failed(const MsgVerifyFailed& failed);

    // source_ticket.cc: who may take the session
    void on(const source_event::Opened& event);
    void on(const source_event::TicketStands& event);
    void on(const source_event::TicketFailed& event);
    [[nodiscard]] std::optional<Finding> objection(const Ticket& ticket,
                                                   const std::string& peer) const;
    void consider(Applicant applicant);
    void settle_applicant(const DomainReport& report);
    void note_whether_it_left(const DomainReport& report);
    [[nodiscard]] bool may_have_left() const;
    [[nodiscard]] bool wants_ticket() const;
    void renew_ticket(const DomainReport& report);

    // source_steps.cc: what a migration does
    void begin_migration(const MigrationId& id, const MsgPrepare& prepare, Seed seed,
                         const std::string& peer);
    void on(const source_event::Described& event);
    void send_offer();
    void on(const source_event::PrecopyBegun& event);
    void begin_round();
    void resend_round(const Error& why);
    void on(const source_event::RoundSent& event);
    void on_round_acked(std::uint64_t round);
    void after_precopy_round();
    [[nodiscard]] bool will_not_get_better(Convergence verdict) const;
    void refuse_pause(const DowntimeEstimate& estimate);
    void send_converged();
    void begin_freeze();
    void replace_token();
    void on(const source_event::Frozen& event);
    void on(const source_event::FreezeFailed& event);
    void roll_back();
    void on(const source_event::Thawed& event);
    void go_on_with_precopy();
    void fail(Error why);
    void end_migration(Outcome outcome, Error why, Announce announce);

    // source_grant.cc: whether it is given away, and whether it comes back
    void on_grant_request(const MigrationId& id, const MsgGrantRequest& request,
                          const std::string& peer);
    std::optional<MsgGrantRefused> refusal(const MigrationId& id, const MsgGrantRequest& request);
    void persist_grant(const MigrationId& id, FreezeToken token, const std::string& peer);
    void on(const source_event::GrantDurable& event);
    void on(const source_event::GrantWriteFailed& event);
    void on_activated(const MigrationId& id, const MsgActivated& activated);
    void on(const source_event::Released& event);
    void on_grant_returned(const MigrationId& id, const MsgGrantReturned& returned);
    void on_taken_back();

    // helpers
    void enter(SourceState state, std::optional<Duration> deadline);
    void emit(SourceAction action) { out_.push_back(std::move(action)); }
    void send_complete();
    void send(MessageBody body);
    void send_to(const MigrationId& id, MessageBody body);
    void alert(AlertKind kind, std::string reason, std::string text);
    void abort_job();
    void report(Phase phase, double fraction);
    void report_round();
    void close_round_stats();
    void arm_retry();
    bool frozen_or_freezing() const { return frozen_.has_value() || pending_.has_value(); }
    bool guest_away() const { return guest_suspended_ || guest_gone_; }
    bool is_current(const MigrationId& id) const { return m_ && m_->id == id; }
    /// What happens to that round matters.
    bool is_open(std::uint64_t round) const;
    FreezeToken next_token() const;

    std::string session_id_;
    Settings settings_;
    DurableRecord record_;
    std::optional<DurableRecord> granting_;  ///< Being written.
    SourceState state_ = SourceState::kServing;
    TimePoint now_{};
    SourceActions out_;
    TimerSet<Timer, 6> timers_;
    Backoff backoff_;

    std::optional<Migration> m_;
    std::deque<Ended> ended_;

    std::optional<FreezeToken> frozen_;   ///< Workers are frozen under this token.
    std::optional<FreezeToken> pending_;  ///< Freeze was issued, its answer is awaited.
    FreezeToken newest_token_;            ///< The last one used: its count is never used again.
    bool resumed_meanwhile_ = false;      ///< RESUMED came while freezing or granting.
    bool lost_ = false;
    bool granted_in_vain_ = false;  ///< The target has lost what it was granted.
    bool is_forced_ = false;  ///< An operator allows one move a longer pause than downtime_max.
    /// libvirt was asked to cancel an admitted guest's job: no attempt begins in its last moments.
    std::optional<TimePoint> cancelled_at_;
    bool lost_token_unknown_ = false;  ///< Restarted without workers: which token, nobody knows.
    struct LostRequest {
        MigrationId id;
        MsgGrantRequest request;
        std::string peer;
    };
    std::optional<LostRequest> lost_request_;
    bool guest_suspended_ = false;
    bool guest_gone_ = false;
    bool left_by_migration_ = false;  ///< That is why it does not run here. See may_have_left().

    Ticket ticket_;  ///< In the VM's metadata; none: none was written yet.
    bool is_ticket_used_ = false;
    std::string ticket_holder_;  ///< Who used it; "" and used: a restart forgot who.
    bool is_renewing_ = false;   ///< RenewTicket was issued, its answer is awaited.
    std::optional<Applicant> applicant_;
    Backoff ticket_backoff_;
    std::optional<TimePoint> frozen_at_;

    /// Since the first Prepare of a job of libvirt's, whatever becomes of gantryd's attempts, until
    /// libvirt has had no job for a while and the guest runs here: attempts come and go within one
    /// job, and QEMU copies the guest's memory once.
    bool announced_ = false;
    std::optional<TimePoint> job_over_since_;
    bool awaits_attempt_ = false;
    std::optional<TimePoint> move_over_since_;
    /// Of the earlier attempts of one move, which an operator sees as one.
    std::uint64_t rounds_before_ = 0;
    TimePoint move_begun_at_{};

    ProgressMeter meter_;
    Progress progress_;
};

}  // namespace gantry::engine
