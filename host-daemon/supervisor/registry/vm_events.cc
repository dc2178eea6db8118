#include "host-daemon/supervisor/registry/vm_events.h"

#include <spdlog/spdlog.h>

#include <utility>

namespace gantry::supervisor {

namespace source_event = engine::source_event;
namespace target_event = engine::target_event;
using libvirt::EventKind;

namespace {

constexpr std::chrono::minutes kComparisonInterval{1};
/// A move that is being rolled back takes moments.
constexpr std::chrono::seconds kLookAgain{1};
/// A puller sends a heartbeat every two seconds.
constexpr std::chrono::seconds kPullerSilenceMax{15};

std::optional<engine::SourceEvent> source_event_of(const libvirt::DomainEvent& event) {
    switch (event.kind) {
        case EventKind::kSuspendedMigrated:
        case EventKind::kSuspendedPostcopy: return source_event::GuestSuspended{};
        case EventKind::kResumedMigrated:
        case EventKind::kResumedUnpaused:
        case EventKind::kResumedPostcopy:
        case EventKind::kResumedPostcopyFailed:
        case EventKind::kResumedOther: return source_event::GuestResumed{};
        case EventKind::kStoppedMigrated: return source_event::GuestGone{};
        case EventKind::kStoppedFailed:
        case EventKind::kStoppedSaved:
        case EventKind::kStopped: return source_event::GuestStopped{};
        case EventKind::kMigrationStatus:
            switch (event.qemu_status) {
                case libvirt::QemuMigrationStatus::kPreSwitchover:
                case libvirt::QemuMigrationStatus::kDevice:
                    return source_event::GuestPreSwitchover{};
                case libvirt::QemuMigrationStatus::kFailed:
                case libvirt::QemuMigrationStatus::kCancelled: return source_event::JobFailed{};
                default: return std::nullopt;
            }
        default: return std::nullopt;
    }
}

std::optional<engine::TargetEvent> target_event_of(const libvirt::DomainEvent& event) {
    switch (event.kind) {
        case EventKind::kStartedMigrated: return target_event::GuestStarting{};
        case EventKind::kResumedMigrated:
        case EventKind::kResumedUnpaused: return target_event::GuestResumedMigrated{};
        case EventKind::kResumedPostcopy: return target_event::GuestResumedPostcopy{};
        case EventKind::kSuspendedPaused: return target_event::GuestArrivedPaused{};
        case EventKind::kStoppedFailed:
        case EventKind::kStoppedMigrated:
        case EventKind::kStoppedSaved:
        case EventKind::kStopped: return target_event::GuestStopped{};
        default: return std::nullopt;
    }
}

/// What the record of a move says of it.
std::optional<MoveStamp> stamp_of(const libvirt::DomainEvent& event) {
    switch (event.kind) {
        case EventKind::kStartedMigrated: return MoveStamp{"vm_started", to_string(event.kind)};
        case EventKind::kSuspendedMigrated:
        case EventKind::kSuspendedPostcopy:
        case EventKind::kSuspendedPaused:
        case EventKind::kSuspendedOther: return MoveStamp{"vm_paused", to_string(event.kind)};
        case EventKind::kResumedMigrated:
        case EventKind::kResumedUnpaused:
        case EventKind::kResumedPostcopy:
        case EventKind::kResumedPostcopyFailed:
        case EventKind::kResumedOther: return MoveStamp{"vm_resumed", to_string(event.kind)};
        case EventKind::kStoppedMigrated:
        case EventKind::kStoppedFailed:
        case EventKind::kStopped: return MoveStamp{"vm_stopped", to_string(event.kind)};
        case EventKind::kMigrationIteration: return MoveStamp{"job_pass", "", event.iteration};
        case EventKind::kMigrationStatus:
            return MoveStamp{"job_status", to_string(event.qemu_status)};
        case EventKind::kQemuStop: return MoveStamp{"vm_paused", "QEMU STOP"};
        case EventKind::kQemuResume: return MoveStamp{"vm_resumed", "QEMU RESUME"};
        case EventKind::kJobCompleted:
            return MoveStamp{"job_done", "", 0, event.job ? event.job->memory_processed_bytes : 0};
        default: return std::nullopt;
    }
}

}  // namespace

VmEvents::VmEvents(const Config& config, Hypervisor& hypervisor, SessionTable& sessions,
                   EndingSessions& ending, SerialExecutor& housekeeping, VmHooks hooks)
    : config_(config),
      hypervisor_(hypervisor),
      sessions_(sessions),
      ending_(ending),
      housekeeping_(housekeeping),
      hooks_(std::move(hooks)) {}

void VmEvents::on_event(const libvirt::DomainEvent& event) {
    if (event.kind == EventKind::kConnected || event.kind == EventKind::kDisconnected ||
        event.kind == EventKind::kStateReadEnd) {
        is_connected_ = event.kind != EventKind::kDisconnected;
        spdlog::info("libvirt: {} {}", to_string(event.kind), event.text);
        if (event.kind == EventKind::kStateReadEnd) {
            housekeeping_.post([this] { compare(); });
        }
        return;
    }
    spdlog::debug("libvirt: {} {} ({})", event.name, to_string(event.kind), event.uuid);
    hooks_.heard(event);
    switch (event.kind) {
        case EventKind::kStarted: on_domain_here(event, VmLife::kBooted); break;
        case EventKind::kRestored: on_domain_here(event, VmLife::kRestored); break;
        case EventKind::kStateRead: on_domain_here(event, VmLife::kRunning); break;
        case EventKind::kQemuReset: on_reset(event.uuid); break;
        case EventKind::kResumedMigrated: on_guest_came(event.uuid); break;
        default: break;
    }
    if (auto stamp = stamp_of(event)) {
        hooks_.note(event.uuid, std::move(*stamp));
    }
    feed_target(event.uuid, event);
    feed_source(event.uuid, event);
}

/// Its programs are gone and have said nothing, and their region's claims stand: to Gantry it is a
/// new life of the VM.
void VmEvents::on_reset(const std::string& id) {
    if (!sessions_.is_concerned(id) || sessions_.arrival(id)) {
        return;
    }
    hypervisor_.read_domain(id, [this, id](Result<libvirt::DomainInfo> domain) {
        if (!domain || !domain->gpu) {
            return;
        }
        housekeeping_.post([this, info = std::move(*domain)] {
            const SessionTable::Here here = sessions_.find(info.uuid);
            if (!here || !here.driver->status().serves || here.driver->status().migration) {
                return;  // A move of a machine that starts again fails, or brings nothing along.
            }
            spdlog::info("session {}: VM {} was reset; its programs have ended", info.uuid,
                         info.name);
            hooks_.open(info, VmLife::kBooted);
        });
    });
}

void VmEvents::on_domain_here(const libvirt::DomainEvent& event, VmLife life) {
    const bool is_fresh = life != VmLife::kRunning;
    const auto tell_source = [this, id = event.uuid, state = event.state] {
        // After a reconnect events may have been missed: let the machine ask for itself.
        if (const auto driver = sessions_.find(id).driver) {
            engine::DomainReport report;
            report.domain = state == libvirt::DomainState::kRunning ? engine::DomainState::kRunning
                                                                    : engine::DomainState::kPaused;
            driver->feed(source_event::Domain{report});
        }
    };
    if (sessions_.arrival(event.uuid)) {
        return;
    }
    if (!is_fresh && sessions_.is_concerned(event.uuid)) {
        tell_source();
        return;
    }
    hypervisor_.read_domain(event.uuid, [this, life, is_fresh,
                                         tell_source](Result<libvirt::DomainInfo> domain) {
        if (!domain) {
            spdlog::warn("{}", domain.error().to_string());
            return;
        }
        if (!domain->gpu) {
            return;  // not ours
        }
        const bool is_owned_elsewhere = domain->owner && domain->owner->daemon != own_address();
        if (!is_fresh && is_owned_elsewhere) {
            housekeeping_.post([this, info = std::move(*domain)] { take_up_guest(info); });
            return;
        }
        tell_source();
        housekeeping_.post([this, life, info = std::move(*domain)] { hooks_.open(info, life); });
    });
}

/// Normally its session is on its way, or this is the source, taking the guest back.
void VmEvents::on_guest_came(const std::string& id) {
    if (!sessions_.arrival(id) && !sessions_.is_concerned(id)) {
        find_session(id);
    }
}

std::string VmEvents::own_address() const {
    return config_.peer.advertise.empty() ? config_.peer.listen : config_.peer.advertise;
}

/// The guest came by a migration, and this gantryd was not running or lost what had come. As the
/// stamp in its XML says, another gantryd owns its session: it is fetched from there. On
/// housekeeping_ only.
void VmEvents::take_up_guest(const libvirt::DomainInfo& domain) {
    hooks_.run_aside([this, domain] {  // A host that is down is waited for.
        auto arrival = hooks_.fetch(domain);
        housekeeping_.post(
            [this, domain, arrival = std::move(arrival)] { on_taken_up(domain, arrival); });
    });
}

/// On housekeeping_ only.
void VmEvents::on_taken_up(const libvirt::DomainInfo& domain,
                           const Result<std::shared_ptr<Arrival>>& arrival) {
    constexpr std::chrono::seconds kAgain{3};
    if (!arrival) {
        if (arrival.error().code == Code::kAlreadyExists) {
            return;
        }
        spdlog::warn("VM {} is here and its session is not: {}; its GPU calls wait", domain.name,
                     arrival.error().to_string());
        stranded_.insert(domain.uuid);
        housekeeping_.set_timer_by(SerialExecutor::Clock::now() + kAgain);
        return;
    }
    spdlog::info("VM {} is here and its session is not: asking {} for it", domain.name,
                 domain.owner->daemon);
    (*arrival)->feed(target_event::GuestStarting{});
    hypervisor_.query(domain.uuid, [guest = *arrival](engine::DomainReport report) {
        if (report.domain == engine::DomainState::kRunning) {
            if (report.job == engine::JobState::kIncoming) {
                guest->feed(target_event::GuestResumedPostcopy{});
            } else {
                guest->feed(target_event::GuestResumedMigrated{});
            }
        }  // else its RESUMED comes, or the machine finds it paused
    });
}

/// On housekeeping_ only.
void VmEvents::open_later(const libvirt::DomainInfo& domain) {
    constexpr std::chrono::seconds kAgain{3};
    to_open_.push_back(domain);
    housekeeping_.set_timer_by(SerialExecutor::Clock::now() + kAgain);
}

/// On housekeeping_ only.
void VmEvents::retry_stranded() {
    for (const libvirt::DomainInfo& domain : std::exchange(to_open_, {})) {
        hypervisor_.query(domain.uuid, [this, domain](engine::DomainReport report) {
            if (report.domain != engine::DomainState::kAbsent) {
                housekeeping_.post([this, domain] { hooks_.open(domain, VmLife::kRunning); });
            }
        });
    }
    for (const std::string& id : std::exchange(stranded_, {})) {
        find_session(id);
    }
}

void VmEvents::find_session(const std::string& id) {
    hypervisor_.read_domain(id, [this](Result<libvirt::DomainInfo> domain) {
        if (domain && domain->gpu && domain->owner && domain->owner->daemon != own_address()) {
            housekeeping_.post([this, info = std::move(*domain)] { take_up_guest(info); });
        }
    });
}

void VmEvents::stamp_owner(const std::string& id, Epoch epoch, const Ticket& ticket,
                           std::function<void(Result<void>)> done) {
    if (config_.peer.listen.empty()) {
        return;
    }
    hypervisor_.write_owner(id, {own_address(), id, epoch, ticket}, std::move(done));
}

void VmEvents::feed_source(const std::string& id, const libvirt::DomainEvent& event) {
    auto told = source_event_of(event);
    const bool has_ended = event.kind == EventKind::kStopped ||
                           event.kind == EventKind::kStoppedFailed ||
                           event.kind == EventKind::kStoppedSaved;
    if (has_ended) {
        ending_.cancel_next_life(id);
    }
    const SessionTable::Here here = sessions_.find(id);
    // While the VM arrives, events of this host are the target's.
    if (!told || !here || sessions_.arrival(id)) {
        return;
    }
    here.driver->feed(std::move(*told));
    if (!has_ended) {
        return;
    }
    const SourceStatus status = here.driver->status();
    if (status.serves && !status.migration) {
        const auto& end = event.kind == EventKind::kStoppedSaved ? hooks_.saved : hooks_.close;
        housekeeping_.post([&end, session = here.session] { end(session); });
    } else {
        // The machine decides first what becomes of the move, on its own executor.
        close_if_ended(id);
    }
}

void VmEvents::close_if_ended(const std::string& id) {
    const auto session = sessions_.find(id).session;
    if (!session || session->info().kind != SessionKind::kVm) {
        return;
    }
    hypervisor_.query(id, [this, session](engine::DomainReport report) {
        // One that was migrated away lives, and its session has yet to follow it.
        const bool has_left = report.cause == engine::StopCause::kMigration;
        if (report.domain == engine::DomainState::kAbsent && !has_left) {
            housekeeping_.post([this, session] { on_absent(session); });
        }
    });
}

/// On housekeeping_ only.
void VmEvents::on_absent(const std::shared_ptr<Session>& session) {
    const std::string& id = session->info().id;
    const SessionTable::Here here = sessions_.find(id);
    // While the VM arrives, what libvirt says is the target machine's.
    if (here.session != session || sessions_.arrival(id)) {
        return;
    }
    const SourceStatus status = here.driver->status();
    if (status.serves && !status.migration) {
        spdlog::info("session {}: its VM does not run here any more", id);
        hooks_.close(session);
    } else if (status.state != engine::SourceState::kGranted &&
               status.state != engine::SourceState::kReleased) {
        to_look_at_.insert(id);  // its guest may yet be at the target
        housekeeping_.set_timer_by(SerialExecutor::Clock::now() + kLookAgain);
    }
}

/// On housekeeping_ only.
void VmEvents::compare() {
    next_comparison_ = SerialExecutor::Clock::now() + kComparisonInterval;
    to_look_at_.clear();
    for (const SessionTable::Here& here : sessions_.all().here) {
        close_if_ended(here.id);
    }
}

/// On housekeeping_ only.
void VmEvents::compare_when_due() {
    const auto now = SerialExecutor::Clock::now();
    if (now >= next_comparison_) {
        compare();
    }
    for (const std::string& id : std::exchange(to_look_at_, {})) {
        close_if_ended(id);
    }
    housekeeping_.set_timer_by(next_comparison_);
}

void VmEvents::feed_target(const std::string& id, const libvirt::DomainEvent& event) {
    auto told = target_event_of(event);
    const auto arrival = sessions_.arrival(id);
    if (!told || !arrival) {
        return;
    }
    arrival->feed(std::move(*told));
}

void VmEvents::query(const std::string& id, std::function<void(engine::DomainReport)> answer) {
    const auto session = sessions_.find(id).session;
    const bool is_local = session && session->info().kind == SessionKind::kLocal;
    if (is_local) {
        answer(local_report(id));
    } else {
        hypervisor_.query(id, std::move(answer));
    }
}

/// A local program has no hypervisor that pauses it. It counts as paused, on its way out, while the
/// gantryd that pulls it is heard; when that one has ended its attempt, it runs here.
engine::DomainReport VmEvents::local_report(const std::string& id) {
    const bool is_pulled = sessions_.is_pulled(id, kPullerSilenceMax);
    engine::DomainReport report;
    report.domain = is_pulled ? engine::DomainState::kPaused : engine::DomainState::kRunning;
    report.job = is_pulled ? engine::JobState::kOutgoing : engine::JobState::kNone;
    return report;
}

}  // namespace gantry::supervisor
