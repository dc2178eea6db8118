// Registry: its sessions and their drivers. The rest of it: arrival.cc, snapshot.cc, restart.cc,
// requests.cc.
#include "host-daemon/supervisor/registry/registry.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "host-daemon/supervisor/config/version.h"
#include "host-daemon/supervisor/workers/worker_logs.h"
#include "proto/base/random.h"
#include "proto/base/thread_pool.h"
#include "proto/base/unless_exhausted.h"

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

namespace {

scheduling::Settings share_settings(const WorkerConfig& config) {
    scheduling::Settings settings;
    settings.fills_gaps = config.fill_gaps;
    settings.fill_margin = std::chrono::microseconds{config.fill_margin_us};
    return settings;
}

}  // namespace

Registry::Registry(const Config& config, EpochStore& store, Hypervisor& hypervisor)
    : config_(config),
      store_(store),
      hypervisor_(hypervisor),
      stock_(config, [this] { return suspended_counts(); }),
      devices_([this](DeviceNumber device) { return ask_device(device); }),
      shares_(share_settings(config.worker)),
      records_(config.daemon.state_directory, host_name_of(config)),
      status_(host_name_of(config), sessions_, devices_, records_),
      saves_(config.daemon.state_directory, hypervisor, sessions_, housekeeping_, save_hooks()),
      vms_(config, hypervisor, sessions_, ending_, housekeeping_, vm_hooks()) {}

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
    find_devices();
    GANTRY_TRY(adopt_all());
    forget_dead_workers(run + "/workers", worker_sockets());
    GANTRY_ASSIGN(handover_, HandoverServer::start(run + "/handover.sock",
                                                   [this](const HandoverRequest& request) {
                                                       return give_guest(request);
                                                   }));
    hypervisor_.listen([this](const libvirt::DomainEvent& event) { vms_.on_event(event); });
    housekeeping_.post([this] {
        vms_.compare_when_due();
        look_after_logs();
    });
    stock_.fill();
    return {};
}

void Registry::stop() {
    hypervisor_.stop();
    handover_.reset();
    housekeeping_.stop();
    errands_.clear();  // Waits for them.
    auto [sessions, arrivals] = sessions_.stop();
    for (SessionTable::Taken& taken : sessions) {
        taken.watcher.reset();
        taken.session->leave();
        taken.driver.reset();
    }
    sessions.clear();
    for (const std::shared_ptr<Arrival>& arrival : arrivals) {
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
    out.downtime_max = milliseconds{from.downtime_max_ms};
    out.hook_wait_max = seconds{from.hook_wait_s};
    out.hook_hold_max = seconds{from.hook_hold_s};
    out.reservation_ttl = seconds{from.reservation_s};
    out.arrival_deadline = seconds{from.arrival_s};
    out.may_abort_job = from.may_abort_job;
    return out;
}

/// A worker is started once, to learn what the driver has to offer, and ended again: gantryd itself
/// never loads a CUDA driver.
Result<control::DeviceDescription> Registry::ask_device(DeviceNumber device) {
    if (sessions_.is_stopping()) {
        return Error{Code::kUnavailable, "daemon.stopping", "gantryd is being stopped"};
    }
    const WorkerHandlers nobody{[](engine::PartId, const std::string&) {},
                                [](engine::PartId, const control::Event&) {}};
    GANTRY_ASSIGN(const auto worker,
                  stock_.launch_new("probe", part_of({0, 1}), device, 0, nobody));
    worker->end();
    return worker->device();
}

void Registry::find_devices() {
    const MutexLock lock(finding_mutex_);
    if (!are_found_) {
        std::vector<DeviceNumber> devices = named_devices(config_.worker);
        if (devices.empty()) {
            const auto listed = list_worker_devices(config_.worker);
            if (!listed) {  // Why it has none is said by a worker that is started on the first.
                spdlog::debug("GPUs are not listed: {}", listed.error().to_string());
            }
            for (const ListedDevice& one : listed ? *listed : std::vector<ListedDevice>{}) {
                devices.push_back(one.number);
            }
        }
        are_found_ = !devices.empty();
        if (are_found_) {
            devices_.serve(std::move(devices));
        }
    }
    std::vector<DeviceNumber> unknown = devices_.served();
    std::erase_if(unknown, [this](DeviceNumber one) { return devices_.known(one).has_value(); });
    const auto ask = [&](std::size_t i) {
        (void)devices_.probe(unknown[i], DeviceBook::Probe::kUnlessKnown);
    };
    if (unknown.size() == 1) {
        ask(0);
    } else if (!unknown.empty()) {  // Contexts of several GPUs are made beside each other.
        ThreadPool(static_cast<unsigned>(unknown.size())).run(unknown.size(), ask);
    }
}

Result<DeviceNumber> Registry::place(const SessionInfo& info) {
    return devices_.place(info.id, {info.quota_bytes, info.cc_min, info.wish}, policy());
}

/// Those that the VM's metadata allows, in the order in which they are tried.
std::vector<engine::HostGpu> Registry::gpus_for(const std::string& id,
                                                const libvirt::GpuWish& wish) {
    find_devices();
    std::vector<engine::HostGpu> out;
    for (const GpuOffer& offer : candidates(devices_.offers(id), wish, policy())) {
        out.push_back({offer.device, capabilities_of(offer.device, id)});
    }
    return out;
}

/// What preflight says gpu.absent of.
engine::HostGpu Registry::no_gpu() const {
    engine::HostGpu out;
    out.number = usual_device();
    out.capabilities.host = host_name_of(config_);
    return out;
}

/// Never none: of a host without a usable GPU one without a name.
Result<std::vector<engine::HostGpu>> Registry::capabilities() {
    std::vector<engine::HostGpu> out = gpus_for("", {});
    if (out.empty()) {
        out.push_back(no_gpu());
    }
    return out;
}

/// No name: there is no such device, as preflight says (gpu.absent).
engine::TargetCapabilities Registry::capabilities_of(DeviceNumber number,
                                                     const std::string& session) {
    engine::TargetCapabilities out;
    out.host = host_name_of(config_);
    const auto device = devices_.probe(number, DeviceBook::Probe::kUnlessKnown);
    if (!device) {
        return out;  // It is asked again next time: it may be repaired by then.
    }
    const std::uint64_t all = devices_.promised(number);  // It may end between the two.
    const std::uint64_t promised = all - std::min(all, devices_.promised_to(session, number));
    out.gpu_name = device->name();
    out.gpu_uuid = device->uuid();
    out.cc = {device->compute_capability_major(), device->compute_capability_minor()};
    out.memory_total_bytes = device->memory_bytes();
    out.memory_free_bytes =
        promised < out.memory_total_bytes ? out.memory_total_bytes - promised : 0;
    out.takes_any_profile = device->takes_any_profile();
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
    const auto user = ending_.user_of(id);
    return user ? "user " + std::to_string(*user) : "session " + id;
}

WorkerHandlers Registry::handlers_for(const std::string& id) {
    WorkerHandlers handlers;
    handlers.lost = [this, id](engine::PartId part, const std::string& how) {
        // Not on the channel's own thread: the worker is destroyed in the course of it.
        housekeeping_.post([this, id, part, how] { on_worker_lost(id, part, how); });
    };
    handlers.event = [this, id](engine::PartId part, const control::Event& event) {
        if (event.has_first_request()) {
            records_.note_session(id, {"first_call", std::to_string(part.value)});
        }
        housekeeping_.post([this, id, part, event] { on_worker_event(id, part, event); });
    };
    handlers.sharing = [this, group = sharing_group(id)] { return broker_->connect(group); };
    if (config_.worker.arbitrate) {
        handlers.arbiter = [this, id](DeviceNumber device) { return shares_.join(device, id); };
    }
    return handlers;
}

void Registry::on_worker_lost(const std::string& id, engine::PartId part, const std::string& how) {
    const std::shared_ptr<Session> session = sessions_.find(id).session;
    const std::shared_ptr<Arrival> arrival = sessions_.arrival(id);
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
    sessions_.add_alert(
        session->info().id,
        fmt::format("worker {} (program {} of the guest) ended: {}", part.value, guest_pid, how),
        kMostAlerts);
}

void Registry::on_worker_event(const std::string& id, engine::PartId part,
                               const control::Event& event) {
    const SessionTable::Here here = sessions_.find(id);
    const std::shared_ptr<Session>& session = here.session;
    const std::shared_ptr<Arrival> arrival = sessions_.arrival(id);
    if (event.has_first_request() && arrival) {
        arrival->feed(engine::target_event::GuestCalled{});
    } else if (event.has_guest_gone() && !session && arrival) {
        if (arrival->request().info.kind == SessionKind::kLocal) {
            arrival->session()->note_program_ended();  // Before it counts as served here.
            housekeeping_.post([this] { look_after_guests(); });
        }
    } else if (event.has_guest_gone() && session) {
        spdlog::info("session {}: its program (worker {}) has ended{}", id, part.value,
                     event.guest_gone().orderly() ? "" : " without a goodbye");
        if (!here.driver->status().serves) {
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

SourceHooks Registry::source_hooks(const std::shared_ptr<Session>& session) {
    const std::string id = session->info().id;
    SourceHooks hooks;
    hooks.query_domain = [this, id] {
        vms_.query(id, [this, id](engine::DomainReport report) {
            if (const auto driver = sessions_.find(id).driver) {
                driver->feed(engine::source_event::Domain{report});
            }
        });
    };
    hooks.abort_job = [this, id] { hypervisor_.abort_job(id); };
    hooks.renew_ticket = [this, weak = std::weak_ptr(session)](Epoch epoch) {
        renew_ticket(weak, epoch);
    };
    hooks.log = {records_, MoveSide::kOutgoing, id, session->info().vm_name};
    hooks.alert = [this, id](engine::AlertKind kind, const Error& error) {
        sessions_.add_alert(id, error.to_string());
        if (kind == engine::AlertKind::kSplitBrain && config_.vm.destroy_split_brain) {
            hypervisor_.destroy(id);
        }
    };
    hooks.progress = [](const engine::Progress&) {};
    hooks.finished = [this, id](engine::Outcome outcome, const Error& error) {
        if (!sessions_.end_attempt(id, error)) {
            status_.note_ended(sessions_.find(id), outcome, error);
        }
        if (outcome != engine::Outcome::kMoved) {
            vms_.close_if_ended(id);  // the move may have failed by the VM's own end
        }
    };
    hooks.given_up = [this, id] {
        if (const auto error = sessions_.take_attempt_error(id)) {
            status_.note_ended(sessions_.find(id), engine::Outcome::kRolledBack, *error);
        }
    };
    hooks.released = [this, weak = std::weak_ptr(session)] {
        housekeeping_.post([this, weak] {
            if (const auto released = weak.lock()) {
                close_session(released, wire::WorkerState::kDisowned);
            }
        });
    };
    return hooks;
}

/// It stands once it is in the VM's XML and a restarted gantryd will find it.
void Registry::renew_ticket(const std::weak_ptr<Session>& whose, Epoch epoch) {
    const std::shared_ptr<Session> session = whose.lock();
    if (!session) {
        return;
    }
    const Ticket ticket = random_ticket();
    vms_.stamp_owner(session->info().id, epoch, ticket, [whose, ticket](const Result<void>& done) {
        const std::shared_ptr<Session> stamped = whose.lock();
        const auto driver = stamped ? stamped->driver() : nullptr;
        if (!driver) {
            return;
        }
        if (!done) {
            driver->feed(engine::source_event::TicketFailed{});
            return;
        }
        stamped->set_ticket(ticket);
        if (const auto written = stamped->write_record(); !written) {
            spdlog::warn("session {}: {}", stamped->info().id, written.error().to_string());
        }
        driver->feed(engine::source_event::TicketStands{ticket});
    });
}

std::shared_ptr<SourceRunner> Registry::make_driver(const std::shared_ptr<Session>& session,
                                                    Epoch epoch) {
    engine::Settings how = settings();
    how.is_bound_to_hypervisor = session->info().kind == SessionKind::kVm;
    return std::make_shared<SourceRunner>(
        session->info().id, epoch, how, config_.migration.compression,
        static_cast<std::uint64_t>(config_.migration.bandwidth_mib_s) << 20, store_,
        session->source(), source_hooks(session));
}

std::shared_ptr<Session> Registry::open_session(const SessionInfo& info, Epoch epoch, bool is_fresh,
                                                DeviceNumber device) {
    auto session = std::make_shared<Session>(info, config_, stock_);
    session->begin_on(device);
    const auto driver = make_driver(session, epoch);
    if (is_fresh && info.kind == SessionKind::kVm) {
        if (auto cleared = session->clear_region(); !cleared) {
            spdlog::warn("session {}: {}", info.id, cleared.error().to_string());
        }
    }
    session->own(driver);
    take_share(info);
    sessions_.put(session, driver);
    spdlog::info("session {} ({}) opened at epoch {} on GPU {}", info.id,
                 info.vm_name.empty() ? "local program" : "VM " + info.vm_name, epoch.value,
                 device);
    return session;
}

void Registry::take_share(const SessionInfo& info) {
    shares_.set_share(info.id, info.share);
    if (info.share && !config_.worker.arbitrate) {
        spdlog::warn(
            "session {}: its VM has a <share> of a GPU, which has no effect here: "
            "worker.arbitrate is not set",
            info.id);
    }
}

void Registry::watch_region(const std::shared_ptr<Session>& session,
                            const std::vector<Claim>& seen) {
    if (session->info().kind == SessionKind::kVm) {
        sessions_.watch(session, std::make_unique<RegionWatcher>(
                                     session, std::chrono::milliseconds{config_.vm.poll_ms},
                                     handlers_for(session->info().id), seen));
    }
}

std::set<std::string> Registry::worker_sockets() const {
    std::set<std::string> out;
    const auto add = [&](Session& session) {
        for (const auto& worker : session.workers().all()) {
            out.insert(worker->record().process.control_path);
        }
    };
    const SessionTable::All all = sessions_.all();
    for (const SessionTable::Here& here : all.here) {
        add(*here.session);
    }
    for (const SessionTable::Coming& coming : all.coming) {
        add(*coming.arrival->session());
    }
    return out;
}

/// On housekeeping_ only.
void Registry::look_after_logs() {
    constexpr std::chrono::seconds kInterval{2};
    const auto now = SerialExecutor::Clock::now();
    if (now >= next_look_at_logs_) {
        next_look_at_logs_ = now + kInterval;
        bound_worker_logs(config_.daemon.run_directory + "/workers");
    }
    housekeeping_.set_timer_by(next_look_at_logs_);
}

/// On housekeeping_ only.
void Registry::run_aside(std::function<void()> errand) {
    std::erase_if(errands_, [](const std::future<void>& one) {
        return one.wait_for(std::chrono::seconds{0}) == std::future_status::ready;
    });
    // Where the system makes no thread it is run here and now: what ends must end, and others wait.
    // Not moved into async(), which would lose it by trying.
    const auto held = std::make_shared<std::function<void()>>(std::move(errand));
    // What ended held memory all over the threads' arenas, which keep it: tens of MiB a move.
    const auto run = [held] {
        std::exchange(*held, nullptr)();
        ::malloc_trim(0);
    };
    errands_.push_back(std::async(std::launch::async | std::launch::deferred, run));
    if (errands_.back().wait_for(std::chrono::seconds{0}) == std::future_status::deferred) {
        errands_.back().get();
        errands_.pop_back();
    }
}

/// On housekeeping_ only. A worker whose GPU is at work for ever takes seconds to end: nobody else
/// waits for it.
void Registry::close_session(const std::shared_ptr<Session>& session, wire::WorkerState how) {
    auto taken = sessions_.take(session);
    if (!taken) {
        return;
    }
    ending_.begin(session->info().id);
    const auto entry = std::make_shared<SessionTable::Taken>(std::move(*taken));
    run_aside([this, how, entry] { end_session(how, std::move(*entry)); });
}

/// What is forgotten at its end is a newer session's when there is one of its id: its promise, its
/// record and its region's file, which a new QEMU may have open already.
void Registry::end_session(wire::WorkerState how, SessionTable::Taken taken) {
    const SessionInfo& info = taken.session->info();
    taken.watcher.reset();
    taken.driver->stop();
    taken.session->end(how);
    const bool is_gone = sessions_.if_gone(taken.session, [&] {
        devices_.forget(info.id);
        shares_.set_share(info.id, std::nullopt);
        taken.session->remove_record();
        if (how == wire::WorkerState::kDisowned && info.kind == SessionKind::kVm &&
            !ending_.has_next_life(info.id)) {
            ::unlink(info.region_path.c_str());  // The VM left: what lies there is stale.
        }
    });
    if (is_gone && how != wire::WorkerState::kDisowned) {
        (void)store_.remove(info.id);
    }
    const auto next_life = ending_.end(info.id);
    spdlog::info("session {} closed", info.id);
    if (next_life) {
        housekeeping_.post([this, domain = *next_life] { open_vm(domain, VmLife::kBooted); });
    }
}

/// True of one that is suspended, which has no device memory, or waits for the end of a migration.
bool Registry::waits_itself(const std::string& id) const {
    const SessionTable::Here here = sessions_.find(id);
    return here && (here.session->suspended() || !here.driver->status().serves);
}

Result<void> Registry::open_local(GuestRequest request, GuestLink link) {
    SessionInfo info;
    info.id = fmt::format("{}{}-{}", kLocalSession, request.pid, random_bits()[0] % 1'000'000);
    info.kind = SessionKind::kLocal;
    info.quota_bytes = static_cast<std::uint64_t>(config_.guest.memory_mib) << 20;
    info.region_bytes = link.region.bytes();
    GANTRY_TRY(ending_.add_guest(info.id, request.uid,
                                 {static_cast<std::size_t>(config_.guest.sessions_of_user),
                                  static_cast<std::size_t>(config_.guest.sessions_max)}));
    const auto give_up = [&](const Error& error) {
        devices_.forget(info.id);
        ending_.forget_guest(info.id);
        return error;
    };
    const auto waits = [this](const std::string& id) { return waits_itself(id); };
    const std::set<std::string> before = ending_.soon_free(waits);
    DeviceNumber device = 0;
    const auto reserve = [&]() -> Result<void> {
        GANTRY_ASSIGN(device, place(info));
        return {};
    };
    if (const auto reserved = ending_.try_while_ending(request.process, reserve, waits);
        !reserved) {
        return give_up(reserved.error());
    }
    ending_.admit_guest(info.id, std::move(request.process));
    const auto epoch = epoch_for_new_life(info.id);
    if (!epoch) {
        return give_up(epoch.error());
    }
    const auto opened_session =
        unless_exhausted([&] { return open_session(info, *epoch, true, device); });
    if (!opened_session) {
        (void)store_.remove(info.id);
        return give_up(opened_session.error());
    }
    const std::shared_ptr<Session>& session = *opened_session;
    const Claim claim{0, wire::ClaimState::kOpen, request.pid, 1};
    auto opened =
        session->open_channel(claim, handlers_for(info.id), std::move(link), request.table_hash);
    if (!opened) {
        housekeeping_.post([this, session] { close_session(session, wire::WorkerState::kNone); });
        return give_up(opened.error());
    }
    ending_.await(before);  // Most of it passed while the worker started.
    return {};
}

void Registry::end_waits() { ending_.end_waits(); }

VmHooks Registry::vm_hooks() {
    VmHooks hooks;
    hooks.open = [this](const libvirt::DomainInfo& domain, VmLife life) {
        if (life == VmLife::kRestored) {
            on_restored(domain);
        } else {
            open_vm(domain, life);
        }
    };
    hooks.close = [this](const std::shared_ptr<Session>& session) {
        if (!saves_.closes_later(session)) {
            close_session(session, wire::WorkerState::kDead);
        }
    };
    hooks.saved = [this](const std::shared_ptr<Session>& session) { saves_.on_saved(session); };
    hooks.heard = [this](const libvirt::DomainEvent& event) { saves_.on_event(event); };
    hooks.fetch = [this](const libvirt::DomainInfo& domain) {
        return begin_arrival(arrival_request(domain));
    };
    hooks.run_aside = [this](std::function<void()> errand) { run_aside(std::move(errand)); };
    hooks.note = [this](const std::string& id, MoveStamp stamp) {
        records_.note_session(id, std::move(stamp));
    };
    return hooks;
}

/// Ends the session of the VM's earlier life. Until that has been done, its region is in use.
bool Registry::awaits_earlier_life(const libvirt::DomainInfo& domain) {
    if (const auto earlier = sessions_.find(domain.uuid)) {
        close_session(earlier.session, wire::WorkerState::kDead);
    }
    return ending_.set_next_life(domain);
}

/// On housekeeping_ only.
void Registry::open_vm(const libvirt::DomainInfo& domain, VmLife life) {
    const bool is_fresh = life == VmLife::kBooted;
    if (sessions_.arrival(domain.uuid) || (!is_fresh && sessions_.find(domain.uuid))) {
        return;
    }
    if (is_fresh && (saves_.opens_later(domain) || awaits_earlier_life(domain))) {
        return;
    }
    const SessionInfo info = vm_session_info(domain);
    const auto device = place(info);
    if (!device) {
        spdlog::error("VM {}: {}; its programs find no GPU", domain.name,
                      device.error().to_string());
        if (!is_fresh) {
            (void)saves_.lose_programs(info, nullptr, device.error());
        }
        return;
    }
    const auto epoch = epoch_for_new_life(info.id);
    if (!epoch) {
        spdlog::error("VM {}: {}", domain.name, epoch.error().to_string());
        return;
    }
    const auto opened = unless_exhausted([&] {
        const auto session = open_session(info, *epoch, is_fresh, *device);
        const auto answered =
            is_fresh ? std::vector<Claim>()
                     : saves_.lose_programs(info, session.get(), why_without_state(domain.uuid));
        watch_region(session, answered);
        saves_.renew_mark(session);
        return session;
    });
    if (!opened) {
        spdlog::error("VM {}: {}; it is tried again", domain.name, opened.error().to_string());
        if (const auto session = sessions_.find(info.id).session) {
            close_session(session, wire::WorkerState::kNone);
        } else {
            devices_.forget(info.id);
        }
        vms_.open_later(domain);
        return;
    }
    (void)(*opened)->write_record();
    (*opened)->driver()->feed(engine::source_event::Opened{});
}

/// What a session is closed for that no event tells of is looked for here.
control::ListSessionsReply Registry::list(const std::string& name,
                                          std::optional<std::uint64_t> ended_after) {
    drop_ended_guests();
    return status_.list(name, ended_after);
}

}  // namespace gantry::supervisor
