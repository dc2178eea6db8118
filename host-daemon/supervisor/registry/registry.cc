// Registry: sessions and their drivers. The rest of it: local.cc, vm.cc,
// arrival.cc, snapshot.cc, restart.cc, status.cc.
#include "host-daemon/supervisor/registry/registry.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "host-daemon/supervisor/config/version.h"

namespace gantry::supervisor {
namespace {

constexpr int kLockAttempts = 50;

Result<void> make_folder(const std::string& path, mode_t mode) {
    if (::mkdir(path.c_str(), mode) != 0 && errno != EEXIST) {
        return Error{Code::kPermissionDenied, "run_directory",
                     "cannot make " + path + ": " + std::strerror(errno) +
                         "; set daemon.run_directory to a folder that gantryd may write"};
    }
    return {};
}

std::string host_name_of(const Config& config) {
    if (!config.daemon.host_name.empty()) {
        return config.daemon.host_name;
    }
    std::array<char, 256> name{};
    ::gethostname(name.data(), name.size() - 1);
    return name.data();
}

}  // namespace

Registry::Registry(const Config& config, EpochStore& store, Hypervisor& hypervisor)
    : config_(config),
      store_(store),
      hypervisor_(hypervisor),
      stock_(config, [this] { return suspended_count(); }),
      book_([this](DeviceNumber device) { return ask_device(device); }) {}

Registry::~Registry() { stop(); }

/// Two gantryds on one run directory would both believe that the workers are theirs.
Result<void> Registry::lock_run_directory(const std::string& run) {
    const std::string path = run + "/lock";
    lock_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    // A predecessor that is just ending lets go within moments.
    for (int attempt = 0; lock_.valid() && attempt < kLockAttempts; ++attempt) {
        if (::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0) {
            return {};
        }
        std::this_thread::sleep_for(std::chrono::milliseconds{100});
    }
    return Error{Code::kFailedPrecondition, "daemon.running",
                 "another gantryd holds " + path +
                     "; stop it first, or set daemon.run_directory to a folder of its own"};
}

Result<void> Registry::start() {
    const std::string& run = config_.daemon.run_directory;
    GANTRY_TRY(make_folder(run, 0755));
    GANTRY_TRY(lock_run_directory(run));
    GANTRY_TRY(make_folder(run + "/workers", 0700));
    GANTRY_TRY(make_folder(run + "/sessions", 0700));
    GANTRY_ASSIGN(broker_, sharing::ShareBroker::start());
    (void)book_.probe(usual_device(), DeviceBook::Probe::kUnlessKnown);
    GANTRY_TRY(adopt_all());
    GANTRY_ASSIGN(handover_, HandoverServer::start(run + "/handover.sock",
                                                   [this](const HandoverRequest& request) {
                                                       return give_guest(request);
                                                   }));
    hypervisor_.listen([this](const libvirt::DomainEvent& event) { on_domain_event(event); });
    stock_.fill();
    return {};
}

void Registry::stop() {
    std::map<std::string, Entry> sessions;
    std::map<std::string, std::shared_ptr<Arrival>> arrivals;
    hypervisor_.stop();
    handover_.reset();
    housekeeping_.stop();
    errands_.clear();  // Waits for them.
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
        sessions.swap(sessions_);
        arrivals.swap(arrivals_);
    }
    for (auto& [id, entry] : sessions) {
        entry.watcher.reset();
        entry.session->leave();
        entry.driver.reset();
    }
    for (auto& [id, arrival] : arrivals) {
        arrival->stop();
        arrival->session()->leave();  // the next one goes on with it, or gives it back
    }
    stock_.stop();
}

transport::PeerIdentity Registry::identity() const {
    return {host_name_of(config_), kGantryVersion};
}

engine::Settings Registry::settings() const {
    using namespace std::chrono;
    const MigrationConfig& from = config_.migration;
    engine::Settings out;
    out.downtime_target = milliseconds{from.downtime_target_ms};
    out.rounds_max = static_cast<std::uint32_t>(from.rounds_max);
    out.hook_wait_max = seconds{from.hook_wait_s};
    out.reservation_ttl = seconds{from.reservation_s};
    out.arrival_deadline = seconds{from.arrival_s};
    out.may_abort_job = from.may_abort_job;
    return out;
}

/// A worker is started once, to learn what the driver has to offer, and ended again: gantryd itself
/// never loads a CUDA driver. Without the lock, since a driver may take long.
Result<control::DeviceDescription> Registry::ask_device(DeviceNumber device) {
    {
        const std::lock_guard lock(mutex_);
        if (stopping_) {
            return Error{Code::kUnavailable, "daemon.stopping", "gantryd is being stopped"};
        }
    }
    const WorkerHandlers nobody{[](engine::PartId, const std::string&) {},
                                [](engine::PartId, const control::Event&) {}};
    GANTRY_ASSIGN(const auto worker,
                  stock_.launch_new("probe", part_of({0, 1}), device, 0, nobody));
    worker->end();
    return worker->device();
}

Result<engine::TargetCapabilities> Registry::capabilities() {
    return capabilities_of(usual_device());
}

/// No name: there is no such device, as preflight says (gpu.absent).
engine::TargetCapabilities Registry::capabilities_of(DeviceNumber number) {
    engine::TargetCapabilities out;
    out.host = host_name_of(config_);
    const auto device = book_.probe(number, DeviceBook::Probe::kUnlessKnown);
    if (!device) {
        return out;  // It is asked again next time: it may be repaired by then.
    }
    const std::uint64_t promised = book_.promised(number);
    out.gpu_name = device->name();
    out.gpu_uuid = device->uuid();
    out.cc = {device->compute_capability_major(), device->compute_capability_minor()};
    out.memory_total_bytes = device->memory_bytes();
    out.memory_free_bytes =
        promised < out.memory_total_bytes ? out.memory_total_bytes - promised : 0;
    out.is_soft = device->is_soft();
    out.can_place_globals = device->can_place_globals();
    out.driver_version = device->driver_version();
    out.ptx_isa_version_max = device->ptx_isa_version_max();
    out.snapshot_version_min = device->snapshot_version_min();
    out.snapshot_version_max = device->snapshot_version_max();
    out.table_hash = device->table_hash();
    for (const auto& [attribute, value] : device->attributes()) {
        out.attributes.emplace_back(attribute, value);
    }
    return out;
}

/// Whose processes may share memory: a VM's, or a user's local programs. A local session that came
/// from elsewhere is alone: its user here is not known.
std::string Registry::sharing_group(const std::string& id) {
    const std::lock_guard lock(mutex_);
    const auto guest = local_guests_.find(id);
    return guest != local_guests_.end() ? "user " + std::to_string(guest->second.uid)
                                        : "session " + id;
}

WorkerHandlers Registry::handlers_for(const std::string& id) {
    WorkerHandlers handlers;
    handlers.lost = [this, id](engine::PartId part, const std::string& how) {
        // Not on the channel's own thread: the worker is destroyed in the course of it.
        housekeeping_.post([this, id, part, how] { on_worker_lost(id, part, how); });
    };
    handlers.event = [this, id](engine::PartId part, const control::Event& event) {
        housekeeping_.post([this, id, part, event] { on_worker_event(id, part, event); });
    };
    handlers.sharing = [this, group = sharing_group(id)] { return broker_->connect(group); };
    return handlers;
}

void Registry::on_worker_lost(const std::string& id, engine::PartId part, const std::string& how) {
    std::shared_ptr<Session> session;
    std::shared_ptr<Arrival> arrival;
    {
        const std::lock_guard lock(mutex_);
        if (const auto found = sessions_.find(id); found != sessions_.end()) {
            session = found->second.session;
        }
        if (const auto found = arrivals_.find(id); found != arrivals_.end()) {
            arrival = found->second;
        }
    }
    if (session && session->suspended()) {
        return;  // one that was being restored: its caller hears of it, the guest waits on
    }
    if (session && session->is_replacing(part)) {
        return;  // the replacement finds out by itself, and says so when nobody is left
    }
    if (session && session->workers().find(part) && !session->workers().find(part)->alive()) {
        drop_worker(session, part, how);
    } else if (arrival && arrival->session()->workers().find(part) &&
               !arrival->session()->workers().find(part)->alive()) {
        arrival->on_worker_lost(part, how);
    }
}

void Registry::drop_worker(const std::shared_ptr<Session>& session, engine::PartId part,
                           const std::string& how) {
    const auto worker = session->workers().find(part);
    const std::uint32_t guest_pid = worker ? worker->guest().guest_pid() : 0;
    session->on_worker_lost(part, how);
    session->workers().remove(part);
    if (worker) {
        ::unlink(worker->record().process.control_path.c_str());
    }
    (void)session->write_record();
    // During a migration the whole session is at stake; else one program has died, and the others
    // of the VM go on.
    if (const auto driver = session->driver()) {
        const SourceStatus status = driver->status();
        if (status.migration || !status.serves) {
            driver->feed(engine::source_event::WorkerLost{});
        }
    }
    if (session->info().kind == SessionKind::kLocal) {
        close_session(session, wire::WorkerState::kDead);
        return;
    }
    constexpr std::size_t kMostAlerts = 16;
    const std::lock_guard lock(mutex_);
    if (const auto found = sessions_.find(session->info().id); found != sessions_.end()) {
        std::vector<std::string>& alerts = found->second.alerts;
        if (alerts.size() >= kMostAlerts) {
            alerts.erase(alerts.begin());
        }
        alerts.push_back("worker " + std::to_string(part.value) + " (program " +
                         std::to_string(guest_pid) + " of the guest) ended: " + how);
    }
}

void Registry::on_worker_event(const std::string& id, engine::PartId part,
                               const control::Event& event) {
    std::shared_ptr<Session> session;
    std::shared_ptr<SourceRunner> driver;
    std::shared_ptr<Arrival> arrival;
    {
        const std::lock_guard lock(mutex_);
        if (const auto found = sessions_.find(id); found != sessions_.end()) {
            session = found->second.session;
            driver = found->second.driver;
        }
        if (const auto found = arrivals_.find(id); found != arrivals_.end()) {
            arrival = found->second;
        }
    }
    if (event.has_fatal()) {
        spdlog::error("session {}: worker {}: {}", id, part.value,
                      to_error(event.fatal().status()).to_string());
    } else if (event.has_first_request() && arrival) {
        arrival->feed(engine::target_event::GuestCalled{});
    } else if (event.has_guest_gone() && !session && arrival) {
        if (arrival->request().info.kind == SessionKind::kLocal) {
            arrival->session()->note_program_ended();  // Before it counts as served here.
            housekeeping_.post([this] { look_after_guests(); });
        }
    } else if (event.has_guest_gone() && session) {
        spdlog::info("session {}: its program (worker {}) has ended{}", id, part.value,
                     event.guest_gone().orderly() ? "" : " without a goodbye");
        if (!driver->status().serves) {
            // Frozen or granted: the engine decides who closes it.
            session->note_program_ended();
            housekeeping_.post([this] { look_after_guests(); });
            return;
        }
        if (session->info().kind == SessionKind::kLocal) {
            close_session(session, wire::WorkerState::kNone);
        } else {
            session->close_channel(part);
        }
    }
}

Result<Epoch> Registry::epoch_for_new_life(const std::string& id) {
    GANTRY_ASSIGN(const auto record, store_.load(id));
    engine::DurableRecord fresh;
    fresh.epoch = first_epoch(record, std::chrono::time_point_cast<std::chrono::seconds>(
                                          std::chrono::system_clock::now()));
    const SaveOutcome saved = store_.save(id, fresh);
    if (!saved.ok()) {
        return saved.error;
    }
    return fresh.epoch;
}

std::shared_ptr<SourceRunner> Registry::make_driver(const std::shared_ptr<Session>& session,
                                                    Epoch epoch) {
    const std::string id = session->info().id;
    SourceHooks hooks;
    hooks.query_domain = [this, id] {
        query_domain(id, [this, id](engine::DomainReport report) {
            const std::lock_guard lock(mutex_);
            if (const auto found = sessions_.find(id); found != sessions_.end()) {
                found->second.driver->feed(engine::source_event::Domain{report});
            }
        });
    };
    hooks.abort_job = [this, id] { hypervisor_.abort_job(id); };
    hooks.alert = [this, id](engine::AlertKind kind, const Error& error) {
        const std::lock_guard lock(mutex_);
        if (const auto found = sessions_.find(id); found != sessions_.end()) {
            found->second.alerts.push_back(error.to_string());
        }
        if (kind == engine::AlertKind::kSplitBrain && config_.vm.destroy_split_brain) {
            hypervisor_.destroy(id);
        }
    };
    hooks.progress = [](const engine::Progress&) {};
    hooks.finished = [this, id](engine::Outcome outcome, const Error& error) {
        const std::lock_guard lock(mutex_);
        if (const auto found = sessions_.find(id); found != sessions_.end()) {
            found->second.peer_heard = {};
            const SourceStatus status = found->second.driver->status();
            found->second.pull_ended = status.last_migration;
            found->second.attempt_error.reset();
            if (status.awaits_attempt) {
                found->second.attempt_error = error;
                return;
            }
        }
        note_source_ended(id, outcome, error);
    };
    hooks.given_up = [this, id] {
        const std::lock_guard lock(mutex_);
        if (const auto found = sessions_.find(id);
            found != sessions_.end() && found->second.attempt_error) {
            const Error error = *std::exchange(found->second.attempt_error, std::nullopt);
            note_source_ended(id, engine::Outcome::kRolledBack, error);
        }
    };
    hooks.released = [this, weak = std::weak_ptr(session)] {
        housekeeping_.post([this, weak] {
            if (const auto released = weak.lock()) {
                close_session(released, wire::WorkerState::kDisowned);
            }
        });
    };
    return std::make_shared<SourceRunner>(
        id, epoch, settings(), config_.migration.compression,
        static_cast<std::uint64_t>(config_.migration.bandwidth_mib_s) << 20, store_,
        session->source(), std::move(hooks));
}

std::shared_ptr<Session> Registry::open_session(const SessionInfo& info, Epoch epoch,
                                                bool is_fresh) {
    auto session = std::make_shared<Session>(info, config_, stock_);
    const auto driver = make_driver(session, epoch);
    if (is_fresh && info.kind == SessionKind::kVm) {
        if (auto cleared = session->clear_region(); !cleared) {
            spdlog::warn("session {}: {}", info.id, cleared.error().to_string());
        }
    }
    const std::lock_guard lock(mutex_);
    Entry& entry = sessions_[info.id];
    entry.session = session;
    entry.driver = driver;
    session->own(driver);
    spdlog::info("session {} ({}) opened at epoch {}", info.id,
                 info.vm_name.empty() ? "local program" : "VM " + info.vm_name, epoch.value);
    return session;
}

void Registry::watch_region(const std::string& id) {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(id);
    if (found == sessions_.end() || found->second.session->info().kind != SessionKind::kVm) {
        return;
    }
    found->second.watcher = std::make_unique<RegionWatcher>(
        found->second.session, std::chrono::milliseconds{config_.vm.poll_ms}, handlers_for(id));
}

/// On housekeeping_ only.
void Registry::run_aside(std::function<void()> errand) {
    std::erase_if(errands_, [](const std::future<void>& one) {
        return one.wait_for(std::chrono::seconds{0}) == std::future_status::ready;
    });
    // What it holds is given back with its end, not with its future.
    errands_.push_back(std::async(std::launch::async, [errand = std::move(errand)]() mutable {
        std::exchange(errand, nullptr)();
    }));
}

/// On housekeeping_ only. A worker whose GPU is at work for ever takes seconds to end: nobody else
/// waits for it.
void Registry::close_session(const std::shared_ptr<Session>& session, wire::WorkerState how) {
    const std::string& id = session->info().id;
    const auto entry = std::make_shared<Entry>();
    {
        const std::lock_guard lock(mutex_);
        const auto found = sessions_.find(id);
        if (found == sessions_.end() || found->second.session != session) {
            return;
        }
        *entry = std::move(found->second);
        sessions_.erase(found);
        local_guests_.erase(id);
        ++closing_[id].sessions;
    }
    run_aside([this, how, entry] { end_session(how, std::move(*entry)); });
}

void Registry::end_session(wire::WorkerState how, Entry entry) {
    const SessionInfo& info = entry.session->info();
    entry.watcher.reset();
    entry.driver->stop();
    entry.session->end(how);
    bool is_back = false;
    {
        // Then its promise, its record and its region's file, which a new QEMU may have open
        // already, are the newer session's.
        const std::lock_guard lock(mutex_);
        const auto arrival = arrivals_.find(info.id);  // Its own, perhaps, not confirmed yet.
        is_back = sessions_.contains(info.id) ||
                  (arrival != arrivals_.end() && arrival->second->session() != entry.session);
        if (!is_back) {
            book_.forget(info.id);
            entry.session->remove_record();
        }
        if (!is_back && how == wire::WorkerState::kDisowned && info.kind == SessionKind::kVm &&
            !closing_[info.id].next_life) {
            ::unlink(info.region_path.c_str());  // The VM left: what lies there is stale.
        }
    }
    if (!is_back && how != wire::WorkerState::kDisowned) {
        (void)store_.remove(info.id);
    }
    std::optional<libvirt::DomainInfo> next_life;
    {
        const std::lock_guard lock(mutex_);
        const auto closing = closing_.find(info.id);
        if (--closing->second.sessions == 0) {
            next_life = std::move(closing->second.next_life);
            closing_.erase(closing);
        }
        ++closed_count_;
    }
    session_closed_.notify_all();
    spdlog::info("session {} closed", info.id);
    if (next_life) {
        housekeeping_.post([this, domain = std::move(*next_life)] { open_vm(domain, true); });
    }
}

}  // namespace gantry::supervisor
