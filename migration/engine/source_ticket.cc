// Who may take the session: its ticket, and the hypervisor's word that it is migrating the VM away.
// Why both: proto/decisions/0030-who-may-take-a-session.md.
#include <utility>

#include "migration/engine/source_impl.h"

namespace gantry::engine {
namespace {

/// How long after a Prepare libvirt's word is taken for an answer to it. A target repeats itself.
/// What begins later is not what it was about.
constexpr Duration kApplicantPatience{2'000'000};

}  // namespace

void SourceMachine::Impl::on(const source_event::Opened& /*event*/) {
    if (wants_ticket()) {
        is_renewing_ = true;
        emit(action::RenewTicket{});
    }
}

void SourceMachine::Impl::on(const source_event::TicketStands& event) {
    is_renewing_ = false;
    ticket_ = event.ticket;
    is_ticket_used_ = false;
    ticket_holder_.clear();
}

void SourceMachine::Impl::on(const source_event::TicketFailed& /*event*/) {
    is_renewing_ = false;
    timers_.set(Timer::kTicket, now_ + settings_.retry_max);
}

/// Also one that a restart found may have been used.
bool SourceMachine::Impl::wants_ticket() const {
    return settings_.is_bound_to_hypervisor && (is_ticket_used_ || !ticket_.exists()) &&
           !is_renewing_ && state_ == SourceState::kServing && !m_ && !applicant_;
}

/// libvirt lets nobody write metadata while it migrates the VM, and what was written later would
/// not reach the target of that migration.
void SourceMachine::Impl::renew_ticket(const DomainReport& report) {
    if (wants_ticket() && report.job == JobState::kNone && report.domain != DomainState::kAbsent) {
        is_renewing_ = true;
        emit(action::RenewTicket{});
    }
}

/// Why this host may not have the session; nothing: so far it may.
std::optional<Finding> SourceMachine::Impl::objection(const Ticket& ticket,
                                                      const std::string& peer) const {
    const auto refuse = [](std::string_view reason, const char* text) {
        return Finding{Severity::kRefusal, std::string(reason), text};
    };
    if (settings_.is_bound_to_hypervisor && !ticket.exists()) {
        return refuse(peer_refusal::kTicket,
                      "The target brings no ticket of this VM: install the same release of Gantry "
                      "on both hosts, and move the VM by libvirt's own migration.");
    }
    if (settings_.is_bound_to_hypervisor && !ticket.is_same(ticket_)) {
        return refuse(peer_refusal::kTicket,
                      "The target's ticket is not this VM's (any more): only the host that libvirt "
                      "migrates the VM to has it, for one move. Start the migration again; a copy "
                      "of the domain XML takes no session along.");
    }
    const bool is_taken = (is_ticket_used_ && !ticket_holder_.empty() && ticket_holder_ != peer) ||
                          (m_ && m_->peer != peer);
    if (is_taken) {
        return refuse(peer_refusal::kOtherTarget,
                      "A migration of this VM to another host is under way or has just ended: wait "
                      "until it is over, and try again a few seconds later.");
    }
    return std::nullopt;
}

/// A migration begins only after libvirt has said that it is migrating the VM: it did so before the
/// target's hook ran, so the answer to a question that is asked now says it.
void SourceMachine::Impl::consider(Applicant applicant) {
    applicant.heard = now_;
    if (applicant_ && applicant_->id == applicant.id) {
        if (applicant_->peer == applicant.peer) {
            applicant_->heard = now_;
            emit(action::QueryDomain{});
        }
        return;
    }
    const bool is_other = applicant_ && applicant_->peer != applicant.peer;
    if (is_other && now_ - applicant_->heard < kApplicantPatience) {
        send_to(applicant.id,
                MsgRefused{{{Severity::kRefusal, std::string(peer_refusal::kOtherTarget),
                             "Another host asks for this VM's session just now: wait until that is "
                             "over, and try again."}}});
        return;
    }
    applicant_ = std::move(applicant);
    emit(action::QueryDomain{});
}

void SourceMachine::Impl::settle_applicant(const DomainReport& report) {
    if (!applicant_) {
        return;
    }
    const bool goes_away = report.job == JobState::kOutgoing || left_by_migration_;
    if (!goes_away && report.job == JobState::kUnknown) {
        return;  // libvirt is asked again when the target repeats itself
    }
    const bool is_closed = record_.granted || state_ == SourceState::kGranting ||
                           state_ == SourceState::kTakingBack || lost_ || is_settling();
    const bool is_late = now_ - applicant_->heard > kApplicantPatience;
    if (is_late || is_closed || objection(applicant_->prepare.ticket, applicant_->peer)) {
        applicant_.reset();  // things have changed: it repeats itself, and is told
        return;
    }
    // The first report may be as old as another question.
    constexpr std::uint32_t kReportsEnough = 2;
    if (!goes_away && ++applicant_->reports_without_job < kReportsEnough) {
        emit(action::QueryDomain{});
        return;
    }
    const Applicant applicant = *std::exchange(applicant_, std::nullopt);
    if (!goes_away) {
        send_to(applicant.id,
                MsgRefused{{{Severity::kRefusal, std::string(peer_refusal::kNoJob),
                             "libvirt at the source is not migrating this VM: its GPU session goes "
                             "only where libvirt migrates the VM. A VM that is paused or copied is "
                             "not migrated; move it with virsh migrate --live."}}});
        return;
    }
    is_ticket_used_ = true;
    ticket_holder_ = applicant.peer;
    begin_migration(applicant.id, applicant.prepare, applicant.seed, applicant.peer);
    m_->is_job_seen = report.job == JobState::kOutgoing;
}

void SourceMachine::Impl::note_whether_it_left(const DomainReport& report) {
    switch (report.domain) {
        case DomainState::kUnknown: break;
        case DomainState::kRunning: left_by_migration_ = false; break;
        case DomainState::kPaused:
            if (report.cause == StopCause::kMigration) {
                left_by_migration_ = true;
            } else if (report.cause == StopCause::kOther && report.job == JobState::kNone) {
                left_by_migration_ = false;
            }
            break;
        case DomainState::kAbsent:
            // One that was not kept defined takes its reason along. Its session is still here,
            // which it would not be had the guest ended.
            left_by_migration_ = report.cause != StopCause::kOther;
            break;
    }
    if (m_ && report.job == JobState::kOutgoing) {
        m_->is_job_seen = true;
    }
}

bool SourceMachine::Impl::may_have_left() const {
    return left_by_migration_ || !settings_.is_bound_to_hypervisor;
}

}  // namespace gantry::engine
