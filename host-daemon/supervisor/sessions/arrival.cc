#include "host-daemon/supervisor/sessions/arrival.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>

#include "host-daemon/supervisor/sessions/handover.h"
#include "proto/base/unless_exhausted.h"

namespace gantry::supervisor {

namespace target_event = engine::target_event;

namespace {

bool tells_of_arrival(const engine::TargetEvent& event) {
    return std::holds_alternative<target_event::GuestResumedMigrated>(event) ||
           std::holds_alternative<target_event::GuestResumedPostcopy>(event) ||
           std::holds_alternative<target_event::GuestArrivedPaused>(event) ||
           std::holds_alternative<target_event::GuestCalled>(event);
}

}  // namespace

nlohmann::json to_json(const ArrivalNote& note) {
    return {{"source", note.request.source_address},
            {"ticket", note.request.ticket.reveal()},
            {"handover", note.request.handover_path},
            {"arrives_when_converged", note.request.arrives_when_converged},
            {"migration", {note.migration.low, note.migration.high}},
            {"epoch", note.epoch.value}};
}

/// The attempt has ended for good and the guest runs here.
void Arrival::disown_guest() {
    const SessionInfo& info = request_.info;
    if (info.kind != SessionKind::kVm || !info.guest_key.empty()) {
        return;  // Over TCP a guest is told by its relay that nobody knows it.
    }
    const auto tell = [&]() -> Result<void> {
        GANTRY_ASSIGN(Region region, Region::open_file(info.region_path, info.region_bytes));
        GANTRY_ASSIGN(const auto channels, region.channel_count());
        if (!channels) {
            return {};
        }
        GANTRY_ASSIGN(const auto claims, region.claims(*channels));
        for (const Claim& claim : claims) {
            if (claim.state != wire::ClaimState::kFree) {
                GANTRY_TRY(region.write_worker_state(*channels, claim.channel,
                                                     wire::WorkerState::kDisowned));
            }
        }
        return {};
    };
    if (auto told = tell(); !told) {
        spdlog::warn("session {}: {}", info.id, told.error().to_string());
    }
    spdlog::warn("session {}: VM {} runs here without its GPU: its programs get errors", info.id,
                 info.vm_name);
}

bool Arrival::left_guest_unknown() const {
    const MutexLock lock(mutex_);
    return is_ended_ && session_->driver() == nullptr && !guest_state_;
}

bool Arrival::is_hopeless() const {
    const MutexLock lock(mutex_);
    return outcome_ == engine::Outcome::kRefused || outcome_ == engine::Outcome::kLost;
}

void Arrival::on_worker_lost(engine::PartId part, const std::string& how) {
    sink_.note_lost();
    if (sink_.may_have_served()) {
        session_->on_worker_lost(part, how);
    } else {
        spdlog::error("session {} (arriving): worker {} ended: {}", request_.info.id, part.value,
                      how);
    }
    session_->workers().remove(part);
    feed(target_event::WorkerLost{});
}

Arrival::Arrival(ArrivalRequest request, const Config& config, WorkerStock& stock,
                 engine::Settings settings, EpochStore& store, ArrivalHooks hooks)
    : request_(std::move(request)),
      config_(config),
      settings_(settings),
      store_(store),
      hooks_(std::move(hooks)),
      session_(std::make_shared<Session>(request_.info, config, stock)),
      sink_(session_->workers(), sink_hooks()) {
    // A local program's region does not travel: nothing has to be waited for.
    settings_.activate_needs_guest_memory = request_.info.kind == SessionKind::kVm;
    driver_ = make_driver();
}

std::shared_ptr<TargetRunner> Arrival::make_driver() {
    return std::make_shared<TargetRunner>(request_.info.id, settings_, store_, sink_,
                                          target_hooks());
}

std::shared_ptr<TargetRunner> Arrival::driver() const {
    const MutexLock lock(mutex_);
    return driver_;
}

std::shared_ptr<transport::TargetLink> Arrival::link() const {
    const MutexLock lock(mutex_);
    return link_;
}

TargetStatus Arrival::status() const {
    TargetStatus status = driver()->status();
    const MutexLock lock(mutex_);
    engine::add_attempts(progress_before_, &status.progress);
    return status;
}

void Arrival::feed(engine::TargetEvent event) {
    if (tells_of_arrival(event)) {
        const MutexLock lock(mutex_);
        guest_state_ = event;
    } else if (std::holds_alternative<target_event::GuestStopped>(event)) {
        const MutexLock lock(mutex_);
        guest_state_.reset();
    }
    driver()->feed(std::move(event));
}

void Arrival::confirm_source_fenced() {
    {
        const MutexLock lock(mutex_);
        source_fenced_ = true;
    }
    spdlog::warn("session {} (arriving): an operator says that its source host {} is fenced",
                 request_.info.id, request_.source_address);
    feed(target_event::OperatorFenced{});
}

bool Arrival::source_fenced() const {
    const MutexLock lock(mutex_);
    return source_fenced_;
}

Arrival::~Arrival() { stop(); }

void Arrival::stop() {
    {
        std::shared_ptr<transport::TargetLink> link;
        {
            const MutexLock lock(mutex_);
            link = std::move(link_);
        }
    }
    driver()->stop();
    bool is_guest_stranded = false;
    {
        const MutexLock lock(mutex_);
        // Only of complete memory: before, the region must not be touched.
        is_guest_stranded =
            is_ended_ && session_->driver() == nullptr && guest_state_ &&
            std::holds_alternative<target_event::GuestResumedMigrated>(*guest_state_);
        is_ended_ = true;  // or a `gantry pull` that waits would hold up the end of gantryd
    }
    if (is_guest_stranded) {
        disown_guest();
    }
    settle(Error{Code::kCancelled, "migration.ended", "the migration has ended"});
}

WorkersSink::Hooks Arrival::sink_hooks() {
    WorkersSink::Hooks hooks;
    hooks.reserve = [this](const engine::SessionNeeds& needs) {
        return hooks_.reserve(needs, session_->device());
    };
    hooks.launch = [this](engine::PartId part) -> Result<std::shared_ptr<Worker>> {
        GANTRY_ASSIGN(auto worker, hooks_.launch(request_.info, part, session_->device()));
        session_->workers().add(worker);
        write_note();  // so that a restarted gantryd finds it, to go on with it or to end it
        return worker;
    };
    hooks.activate = [this](const std::shared_ptr<Worker>& worker, Epoch epoch) {
        return activate(worker, epoch);
    };
    hooks.lost = [this](const std::shared_ptr<Worker>& worker, const Error& why) {
        session_->on_worker_lost(worker->part(), why.text);
        session_->workers().remove(worker->part());
        worker->end();
    };
    hooks.discard = hooks_.discard;
    return hooks;
}

TargetHooks Arrival::target_hooks() {
    TargetHooks hooks;
    hooks.send = [this](const engine::Message& message) {
        if (const auto used = link()) {
            used->send(message);
        }
    };
    hooks.open_bulk = [this](engine::MigrationId migration) {
        if (const auto used = link()) {
            used->open_bulk(migration, static_cast<int>(config_.peer.streams));
        }
    };
    hooks.query_domain = [this] {
        // libvirt may answer when this arrival has ended long ago.
        hooks_.query_domain([asking = weak_from_this()](engine::DomainReport report) {
            if (const auto arrival = asking.lock()) {
                arrival->on_domain(report);
            }
        });
    };
    hooks.alert = [this](engine::AlertKind, const Error& error) {
        const MutexLock lock(mutex_);
        alerts_.push_back(error.to_string());
        has_silent_source_ = error.reason == "migration.peer_silent";
    };
    hooks.progress = [](const engine::Progress&) {};
    hooks.log = hooks_.log;
    hooks.admit = [this] {
        settle(std::nullopt);
        if (request_.arrives_when_converged) {
            feed(target_event::GuestResumedMigrated{});
        }
    };
    hooks.refuse = [this](const Error& error) { settle(error); };
    hooks.activated = [this](Epoch epoch) { hooks_.arrived(epoch); };
    hooks.finished = [this](engine::Outcome outcome, const Error& error) {
        if (outcome != engine::Outcome::kMoved && outcome != engine::Outcome::kRetry) {
            settle(error);
        }
        {
            const MutexLock lock(mutex_);
            is_ended_ = outcome != engine::Outcome::kRetry;
            outcome_ = outcome;
        }
        hooks_.ended(outcome, error);
    };
    return hooks;
}

void Arrival::on_domain(const engine::DomainReport& report) {
    if (report.domain == engine::DomainState::kRunning && report.job == engine::JobState::kNone) {
        const MutexLock lock(mutex_);
        guest_state_ = guest_state_.value_or(target_event::GuestResumedMigrated{});
    }
    feed(target_event::Domain{report});
}

void Arrival::settle(std::optional<Error> refusal) {
    const MutexLock lock(mutex_);
    if (!is_settled_) {
        is_settled_ = true;
        refusal_ = std::move(refusal);
        settled_.notify_all();
    }
}

void Arrival::write_note() {
    const TargetStatus status = driver()->status();
    const ArrivalNote note{request_, status.migration.value_or(engine::MigrationId{}),
                           status.epoch};
    session_->set_arrival_note(to_json(note).dump());
    if (auto written = session_->write_record(); !written) {
        spdlog::warn("session {}: {}", request_.info.id, written.error().to_string());
    }
}

void Arrival::resume(const Connect& connect, const std::optional<engine::DurableRecord>& owned,
                     engine::MigrationId migration,
                     const std::optional<engine::FreezeToken>& complete) {
    using control::WORKER_STATE_SERVING;
    target_event::Restarted event;
    event.migration = migration;
    event.complete = complete;
    event.ticket = request_.ticket;
    if (owned) {
        event.record = *owned;
        event.active = true;
        for (const auto& worker : session_->workers().all()) {
            const control::StatusReply& status = worker->adopted_status();
            event.active = event.active && status.state() == WORKER_STATE_SERVING &&
                           status.epoch() == owned->epoch.value;
        }
        sink_.note_served();  // what happened in the last moments of the other life nobody knows
    }
    connect_link(connect);
    if (event.active) {
        hooks_.arrived(owned->epoch);
    }
    feed(std::move(event));
}

void Arrival::connect_link(const Connect& connect) {
    transport::TargetLinkHandlers handlers;
    handlers.message = [this](engine::Message message) { driver()->receive(std::move(message)); };
    handlers.batch = [this](const control::BulkDown& batch) { return driver()->apply(batch); };
    handlers.bulk_lost = [this](const Error& why) { driver()->bulk_lost(why); };
    std::shared_ptr<transport::TargetLink> link = connect(std::move(handlers));
    const MutexLock lock(mutex_);
    link_ = std::move(link);
}

Result<engine::TargetCapabilities> Arrival::choose(std::optional<DeviceNumber> now) {
    GANTRY_ASSIGN(engine::HostGpu gpu, hooks_.choose(now));
    if (gpu.number) {
        session_->begin_on(*gpu.number);
    }
    return std::move(gpu.capabilities);
}

Result<void> Arrival::begin(const Connect& connect) {
    GANTRY_ASSIGN(engine::TargetCapabilities capabilities, choose(std::nullopt));
    connect_link(connect);
    driver()->begin(random_migration(), std::move(capabilities), request_.ticket);
    return {};
}

Result<void> Arrival::begin_again() {
    GANTRY_ASSIGN(engine::TargetCapabilities capabilities, choose(session_->device()));
    GANTRY_ASSIGN(auto fresh, unless_exhausted([this] { return make_driver(); }));
    const std::shared_ptr<TargetRunner> old = driver();
    old->stop();
    const engine::Progress so_far = status().progress;
    (void)sink_.discard();  // its own may not have been carried out any more
    std::optional<engine::TargetEvent> guest_state;
    {
        const MutexLock lock(mutex_);
        driver_ = std::move(fresh);
        progress_before_ = so_far;
        guest_state = guest_state_;
    }
    driver()->begin(random_migration(), std::move(capabilities), request_.ticket);
    if (guest_state) {
        driver()->feed(std::move(*guest_state));
    }
    return {};
}

Result<void> Arrival::wait_admitted(std::chrono::milliseconds timeout) {
    MutexLock lock(mutex_);
    if (!settled_.wait_for(lock, timeout,
                           [this]() GANTRY_REQUIRES(mutex_) { return is_settled_; })) {
        return Error{
            Code::kDeadlineExceeded, "migration.admission_timeout",
            fmt::format("the session was not ready to move within {} ms", timeout.count())};
    }
    if (refusal_) {
        return *refusal_;
    }
    return {};
}

Result<void> Arrival::activate(const std::shared_ptr<Worker>& worker, Epoch epoch) {
    if (!request_.handover_path.empty() && !has_guest_link_) {
        GANTRY_ASSIGN(GuestLink link,
                      fetch_guest(request_.handover_path, {request_.info.id, epoch.value}));
        has_guest_link_ = true;
        sink_.note_served();  // the source could not serve it any more
        if (!link.socket.valid()) {
            session_->note_program_ended();
        }
        session_->set_link(std::move(link));
    }
    const bool is_vm = request_.info.kind == SessionKind::kVm;
    if (!has_guest_link_ && !is_vm) {
        GANTRY_TRY(session_->make_link());
    } else if (!has_guest_link_ && !request_.info.guest_key.empty() && !sink_.may_have_served()) {
        GANTRY_TRY(session_->clear_region());  // Of an earlier stay, if any.
    }
    has_guest_link_ = true;
    const bool is_first = !sink_.may_have_served();
    const Result<void> activated =
        session_->activate(worker, epoch, [this] { sink_.note_served(); });
    const bool is_refusal = !activated && worker->alive() &&
                            activated.error().code != Code::kUnavailable &&
                            activated.error().code != Code::kDeadlineExceeded;
    if (is_first && is_refusal) {
        sink_.note_unserved();
    }
    return activated;
}

std::vector<std::string> Arrival::alerts() const {
    const MutexLock lock(mutex_);
    return alerts_;
}

bool Arrival::has_waited_in_vain() const {
    const MutexLock lock(mutex_);
    return has_silent_source_;
}

bool Arrival::ended() const {
    const MutexLock lock(mutex_);
    return is_ended_;
}

}  // namespace gantry::supervisor
