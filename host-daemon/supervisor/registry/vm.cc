// Registry and libvirt: which VM is ours, and which hint concerns which machine.
#include <spdlog/spdlog.h>

#include <utility>

#include "host-daemon/supervisor/registry/registry.h"

namespace gantry::supervisor {

namespace source_event = engine::source_event;
namespace target_event = engine::target_event;
using libvirt::EventKind;

namespace {

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
        case EventKind::kStopped: return target_event::GuestStopped{};
        default: return std::nullopt;
    }
}

}  // namespace

void Registry::on_domain_event(const libvirt::DomainEvent& event) {
    if (event.kind == EventKind::kConnected || event.kind == EventKind::kDisconnected ||
        event.kind == EventKind::kStateReadEnd) {
        spdlog::info("libvirt: {} {}", to_string(event.kind), event.text);
        return;
    }
    spdlog::debug("libvirt: {} {} ({})", event.name, to_string(event.kind), event.uuid);
    switch (event.kind) {
        case EventKind::kStarted: on_domain_here(event, true); break;
        case EventKind::kStateRead: on_domain_here(event, false); break;
        case EventKind::kResumedMigrated: on_guest_came(event.uuid); break;
        default: break;
    }
    feed_target(event.uuid, event);
    feed_source(event.uuid, event);
}

void Registry::on_domain_here(const libvirt::DomainEvent& event, bool is_fresh) {
    const auto tell_source = [this, id = event.uuid, state = event.state] {
        // After a reconnect events may have been missed: let the machine ask for itself.
        const std::lock_guard lock(mutex_);
        if (const auto found = sessions_.find(id); found != sessions_.end()) {
            engine::DomainReport report;
            report.domain = state == libvirt::DomainState::kRunning ? engine::DomainState::kRunning
                                                                    : engine::DomainState::kPaused;
            found->second.driver->feed(source_event::Domain{report});
        }
    };
    {
        const std::lock_guard lock(mutex_);
        if (arrivals_.contains(event.uuid)) {
            return;
        }
        if (!is_fresh && is_concerned(event.uuid)) {
            tell_source();
            return;
        }
    }
    hypervisor_.read_domain(
        event.uuid, [this, is_fresh, tell_source](Result<libvirt::DomainInfo> domain) {
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
            housekeeping_.post(
                [this, is_fresh, info = std::move(*domain)] { open_vm(info, is_fresh); });
        });
}

/// True while the session is served here or is leaving: events of the VM are its own. With the
/// lock.
bool Registry::is_concerned(const std::string& id) const {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) {
        return false;
    }
    const SourceStatus status = found->second.driver->status();
    return status.serves || (status.migration && status.state != engine::SourceState::kGranted);
}

/// Normally its session is on its way, or this is the source, taking the guest back.
void Registry::on_guest_came(const std::string& id) {
    {
        const std::lock_guard lock(mutex_);
        if (arrivals_.contains(id) || is_concerned(id)) {
            return;
        }
    }
    find_session(id);
}

std::string Registry::own_address() const {
    return config_.peer.advertise.empty() ? config_.peer.listen : config_.peer.advertise;
}

/// The guest came by a migration, and this gantryd was not running or lost what had come. As the
/// stamp in its XML says, another gantryd owns its session: it is fetched from there. On
/// housekeeping_ only.
void Registry::take_up_guest(const libvirt::DomainInfo& domain) {
    run_aside([this, domain] {  // A host that is down is waited for.
        auto arrival = begin_arrival(arrival_request(domain));
        housekeeping_.post(
            [this, domain, arrival = std::move(arrival)] { on_taken_up(domain, arrival); });
    });
}

/// On housekeeping_ only.
void Registry::on_taken_up(const libvirt::DomainInfo& domain,
                           const Result<std::shared_ptr<Arrival>>& arrival) {
    constexpr std::chrono::seconds kAgain{3};
    if (!arrival) {
        if (arrival.error().code == Code::kAlreadyExists) {
            return;
        }
        spdlog::warn("VM {} is here and its session is not: {}; its GPU calls wait", domain.name,
                     arrival.error().to_string());
        stranded_.insert(domain.uuid);
        housekeeping_.set_timer(SerialExecutor::Clock::now() + kAgain);
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

void Registry::retry_stranded() {
    for (const std::string& id : std::exchange(stranded_, {})) {
        find_session(id);
    }
}

/// If libvirt still has the VM, and it is another gantryd's, its session is asked for.
void Registry::find_session(const std::string& id) {
    hypervisor_.read_domain(id, [this](Result<libvirt::DomainInfo> domain) {
        if (domain && domain->gpu && domain->owner && domain->owner->daemon != own_address()) {
            housekeeping_.post([this, info = std::move(*domain)] { take_up_guest(info); });
        }
    });
}

/// Ends the session of the VM's earlier life. Until that has been done, its region is in use.
bool Registry::awaits_earlier_life(const libvirt::DomainInfo& domain) {
    const std::lock_guard lock(mutex_);
    if (const auto found = sessions_.find(domain.uuid); found != sessions_.end()) {
        const std::shared_ptr<Session> earlier = found->second.session;
        close_session(earlier, wire::WorkerState::kDead);
    }
    const auto closing = closing_.find(domain.uuid);
    if (closing == closing_.end()) {
        return false;
    }
    closing->second.next_life = domain;
    return true;
}

/// On housekeeping_ only.
void Registry::open_vm(const libvirt::DomainInfo& domain, bool is_fresh) {
    {
        const std::lock_guard lock(mutex_);
        if (arrivals_.contains(domain.uuid) || (!is_fresh && sessions_.contains(domain.uuid))) {
            return;
        }
    }
    if (is_fresh && awaits_earlier_life(domain)) {
        return;
    }
    const SessionInfo info = vm_session_info(domain);
    if (auto reserved = book_.reserve(info.id, usual_device(), info.quota_bytes); !reserved) {
        spdlog::error("VM {}: {}; its programs find no GPU", domain.name,
                      reserved.error().to_string());
        return;
    }
    const auto epoch = epoch_for_new_life(info.id);
    if (!epoch) {
        spdlog::error("VM {}: {}", domain.name, epoch.error().to_string());
        return;
    }
    (void)open_session(info, *epoch, is_fresh)->write_record();
    watch_region(info.id);
    stamp_owner(info.id, *epoch);
}

void Registry::stamp_owner(const std::string& id, Epoch epoch) {
    if (config_.peer.listen.empty()) {
        return;
    }
    hypervisor_.write_owner(id, {own_address(), id, epoch});
}

void Registry::feed_source(const std::string& id, const libvirt::DomainEvent& event) {
    auto told = source_event_of(event);
    const bool has_ended =
        event.kind == EventKind::kStopped || event.kind == EventKind::kStoppedFailed;
    std::shared_ptr<Session> session;
    std::shared_ptr<SourceRunner> driver;
    {
        const std::lock_guard lock(mutex_);
        if (const auto closing = closing_.find(id); has_ended && closing != closing_.end()) {
            closing->second.next_life.reset();
        }
        const auto found = sessions_.find(id);
        // While the VM arrives, events of this host are the target's.
        if (!told || found == sessions_.end() || arrivals_.contains(id)) {
            return;
        }
        session = found->second.session;
        driver = found->second.driver;
    }
    driver->feed(std::move(*told));
    if (has_ended && driver->status().serves && !driver->status().migration) {
        housekeeping_.post([this, session] { close_session(session, wire::WorkerState::kDead); });
    }
}

void Registry::feed_target(const std::string& id, const libvirt::DomainEvent& event) {
    auto told = target_event_of(event);
    std::shared_ptr<Arrival> arrival;
    {
        const std::lock_guard lock(mutex_);
        const auto found = arrivals_.find(id);
        if (!told || found == arrivals_.end()) {
            return;
        }
        arrival = found->second;
    }
    arrival->feed(std::move(*told));
}

void Registry::query_domain(const std::string& id,
                            std::function<void(engine::DomainReport)> answer) {
    bool is_local = false;
    {
        const std::lock_guard lock(mutex_);
        const auto found = sessions_.find(id);
        is_local =
            found != sessions_.end() && found->second.session->info().kind == SessionKind::kLocal;
    }
    if (is_local) {
        answer(local_report(id));
    } else {
        hypervisor_.query(id, std::move(answer));
    }
}

/// A local program has no hypervisor that pauses it. It counts as paused, on its way out, while the
/// gantryd that pulls it is heard; when that one has ended its attempt, it runs here.
engine::DomainReport Registry::local_report(const std::string& id) {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(id);
    const bool is_pulled =
        found != sessions_.end() &&
        SerialExecutor::Clock::now() - found->second.peer_heard < kPullerSilenceMax;
    engine::DomainReport report;
    report.domain = is_pulled ? engine::DomainState::kPaused : engine::DomainState::kRunning;
    report.job = is_pulled ? engine::JobState::kOutgoing : engine::JobState::kNone;
    return report;
}

}  // namespace gantry::supervisor
