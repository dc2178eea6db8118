#include "host-daemon/supervisor/sessions/session.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "proto/base/thread_pool.h"

namespace gantry::supervisor {

static nlohmann::json to_json(const libvirt::GpuWish& wish) {
    nlohmann::json json{{"uuid", wish.uuid}, {"model", wish.model}};
    if (wish.number) {
        json["number"] = *wish.number;
    }
    return json;
}

/// May throw as nlohmann's accessors do.
static libvirt::GpuWish wish_from_json(const nlohmann::json& json) {
    libvirt::GpuWish wish{std::nullopt, json.value("uuid", ""), json.value("model", "")};
    if (const auto number = json.find("number"); number != json.end()) {
        wish.number = number->get<std::uint32_t>();
    }
    return wish;
}

nlohmann::json to_json(const SessionInfo& info) {
    const auto share = info.share ? nlohmann::json{info.share->priority, info.share->weight}
                                  : nlohmann::json(nullptr);
    return {{"id", info.id},
            {"share", share},
            {"gpu", to_json(info.wish)},
            {"kind", info.kind == SessionKind::kVm ? "vm" : "local"},
            {"vm_name", info.vm_name},
            {"quota_bytes", info.quota_bytes},
            {"cc_min", {info.cc_min.major, info.cc_min.minor}},
            {"region_path", info.region_path},
            {"region_bytes", info.region_bytes},
            {"guest_key", info.guest_key}};
}

Result<SessionInfo> session_info_from_json(const nlohmann::json& json) {
    SessionInfo info;
    try {  // nlohmann's accessors throw; nothing of it leaves this function
        info.id = json.at("id").get<std::string>();
        info.kind =
            json.at("kind").get<std::string>() == "vm" ? SessionKind::kVm : SessionKind::kLocal;
        info.vm_name = json.at("vm_name").get<std::string>();
        info.quota_bytes = json.at("quota_bytes").get<std::uint64_t>();
        info.cc_min = {json.at("cc_min").at(0).get<std::uint32_t>(),
                       json.at("cc_min").at(1).get<std::uint32_t>()};
        info.region_path = json.at("region_path").get<std::string>();
        info.region_bytes = json.at("region_bytes").get<std::uint64_t>();
        info.guest_key = json.value("guest_key", "");
        info.wish = wish_from_json(json.value("gpu", nlohmann::json::object()));
        if (const auto share = json.find("share"); share != json.end() && !share->is_null()) {
            info.share = {share->at(0).get<std::uint32_t>(), share->at(1).get<std::uint32_t>()};
        }
    } catch (const nlohmann::json::exception& error) {
        return Error{Code::kDataLoss, "record.corrupt",
                     std::string("a session's record is damaged: ") + error.what()};
    }
    if (!is_session_id(info.id)) {
        return Error{Code::kDataLoss, "record.corrupt", "a session's record names no session"};
    }
    return info;
}

/// Calls function(0) to function(count - 1) beside each other: each may wait for a worker that does
/// not answer.
static void for_all(std::size_t count, const std::function<void(std::size_t)>& function) {
    ThreadPool(static_cast<unsigned>(count)).run(count, function);
}

std::uint32_t cuda_error_of(const Error& error) {
    switch (error.code) {
        case Code::kResourceExhausted: return kCudaErrorOutOfMemory;
        case Code::kFailedPrecondition:
            return error.reason.starts_with("version.") ? kCudaErrorSystemDriverMismatch
                                                        : kCudaErrorNoDevice;
        case Code::kDeadlineExceeded:
        case Code::kUnavailable: return kCudaErrorSystemNotReady;
        default: return kCudaErrorNoDevice;
    }
}

Session::Session(SessionInfo info, const Config& config, WorkerStock& stock)
    : info_(std::move(info)),
      config_(config),
      stock_(stock),
      source_(workers_, SessionFacts{info_.id, info_.quota_bytes, info_.cc_min,
                                     info_.kind == SessionKind::kLocal}) {}

Session::~Session() {
    if (driver_) {
        driver_->stop();
    }
}

std::shared_ptr<SourceRunner> Session::driver() const {
    const MutexLock lock(mutex_);
    return driver_;
}

void Session::own(std::shared_ptr<SourceRunner> driver) {
    const MutexLock lock(mutex_);
    driver_ = std::move(driver);
}

bool Session::serves() const {
    const auto driver = this->driver();
    return driver && driver->status().serves && !suspended();
}

Result<void> Session::open_region() {
    const MutexLock lock(mutex_);
    if (!region_) {
        if (info_.kind != SessionKind::kVm) {
            return Error{Code::kFailedPrecondition, "region.none",
                         "session " + info_.id + " has no guest attached"};
        }
        GANTRY_ASSIGN(Region opened, info_.guest_key.empty()
                                         ? Region::open_file(info_.region_path, info_.region_bytes)
                                         : Region::make_file(info_.region_path, info_.region_bytes,
                                                             libvirt::kTcpChannels));
        region_ = std::move(opened);
    }
    if (channel_count_ == 0) {
        if (info_.kind == SessionKind::kLocal) {
            channel_count_ = 1;
        } else {
            GANTRY_ASSIGN(const auto count, region_->channel_count());
            channel_count_ = count.value_or(0);
        }
    }
    return {};
}

Result<std::vector<Claim>> Session::claims() {
    GANTRY_TRY(open_region());
    const MutexLock lock(mutex_);
    if (channel_count_ == 0) {
        return std::vector<Claim>{};
    }
    return region_->claims(channel_count_);
}

Result<void> Session::clear_region() {
    const MutexLock lock(mutex_);
    if (!info_.guest_key.empty()) {
        // Whoever has the old one mapped keeps that, and finds nobody at the other end.
        ::unlink(info_.region_path.c_str());
        region_.reset();
        channel_count_ = 0;
        return {};
    }
    GANTRY_ASSIGN(const Region region, Region::open_file(info_.region_path, info_.region_bytes));
    if (::fallocate(region.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                    static_cast<off_t>(info_.region_bytes)) != 0) {
        return Error{Code::kUnavailable, "region.clear",
                     "cannot clear " + info_.region_path + ": " + std::strerror(errno)};
    }
    channel_count_ = 0;
    return {};
}

void Session::set_link(GuestLink link) {
    const MutexLock lock(mutex_);
    region_ = std::move(link.region);
    socket_ = std::move(link.socket);
    channel_count_ = 1;
}

void Session::refuse(const Claim& claim, const Error& why) {
    const MutexLock lock(mutex_);
    if (region_) {
        (void)region_->write_state(claim.channel, claim.generation, wire::ServeState::kRefused,
                                   cuda_error_of(why), why.text);
    }
}

/// Attaches the worker and publishes that the claim is served.
Result<void> Session::serve(const std::shared_ptr<Worker>& worker, const Claim& claim,
                            std::uint64_t table_hash) {
    control::GuestAttachment guest;
    std::vector<int> descriptors;
    {
        const MutexLock lock(mutex_);
        guest.set_kind(info_.kind == SessionKind::kVm ? control::GuestAttachment::KIND_FILE
                                                      : control::GuestAttachment::KIND_MEMFD);
        guest.set_region_bytes(region_->bytes());
        guest.set_channel_count(channel_count_);
        guest.set_channel_index(claim.channel);
        guest.set_generation(claim.generation);
        guest.set_guest_pid(claim.guest_pid);
        guest.set_table_hash(table_hash);
        descriptors.push_back(region_->fd());
        if (socket_.valid()) {
            descriptors.push_back(socket_.get());
        }
    }
    GANTRY_TRY(worker->serve(guest, descriptors));
    const MutexLock lock(mutex_);
    // The worker has its own copy now: with ours closed, the guest's end of the socket tells it
    // when its worker has ended.
    socket_.reset();
    return region_->write_state(claim.channel, claim.generation, wire::ServeState::kServing);
}

bool Session::is_moving(const SourceStatus& status) const {
    return !status.serves || status.migration ||
           (status.announced && info_.kind == SessionKind::kVm);
}

Result<void> Session::open_channel(const Claim& claim, const WorkerHandlers& handlers,
                                   std::optional<GuestLink> link, std::uint64_t table_hash) {
    const MutexLock opening(opening_);
    const engine::PartId part = part_of({claim.channel, claim.generation});
    if (suspended()) {
        return Error{Code::kUnavailable, "session.suspended",
                     "session " + info_.id + " is suspended; `gantry restore` it first"};
    }
    if (link) {
        set_link(std::move(*link));
    }
    GANTRY_TRY(open_region());
    GANTRY_ASSIGN(auto worker,
                  stock_.launch(info_.id, part, device(), info_.quota_bytes, handlers));
    if (table_hash != 0 && worker->table_hash() != 0 && table_hash != worker->table_hash()) {
        worker->end();
        return Error{Code::kFailedPrecondition, "version.table",
                     fmt::format("the program's libcuda.so.1 was built from version {:016x} of "
                                 "the CUDA API table, gantry-worker from {:016x}; install the "
                                 "same Gantry version on both sides",
                                 table_hash, worker->table_hash())};
    }
    if (auto added = source_.add(worker, [&] { return serve(worker, claim, table_hash); });
        !added) {
        worker->end();
        return added.error();
    }
    // After it can be seen: whoever announces meanwhile sees it, or has said so before.
    if (const auto driver = this->driver(); driver && driver->status().announced) {
        WorkersSource::announce_to(*worker);
    }
    return write_record();
}

namespace {

/// A program that lives on looks at the worker's state first: it gets a CUDA error, and no hang.
void tell_closed(Region& region, std::uint32_t channel_count, const PartChannel& at) {
    (void)region.write_worker_state(channel_count, at.channel, wire::WorkerState::kDead);
    (void)region.write_state(at.channel, at.generation, wire::ServeState::kClosed);
}

}  // namespace

void Session::close_channel(engine::PartId part) {
    const MutexLock opening(opening_);
    const auto worker = workers_.remove(part);
    if (worker) {
        worker->end();
    }
    const PartChannel at = channel_of(part);
    if (at.generation != 0) {
        const MutexLock lock(mutex_);
        if (region_) {
            tell_closed(*region_, channel_count_, at);
        }
    }
    (void)write_record();
}

void Session::on_worker_lost(engine::PartId part, const std::string& how) {
    spdlog::error(
        "session {}: worker {} ended: {}; its program gets CUDA errors from now on, and "
        "has to be started again",
        info_.id, part.value, how);
    const PartChannel at = channel_of(part);
    const MutexLock lock(mutex_);
    if (region_ && channel_count_ != 0) {
        tell_closed(*region_, channel_count_, at);
    }
}

Result<void> Session::activate(const std::shared_ptr<Worker>& worker, Epoch epoch,
                               const std::function<void()>& before) {
    GANTRY_TRY(open_region());
    const PartChannel at = channel_of(worker->part());
    control::GuestAttachment guest;
    if (const auto claims = this->claims()) {
        const auto own = std::find_if(claims->begin(), claims->end(), [&](const Claim& claim) {
            return claim.channel == at.channel && claim.generation == at.generation;
        });
        guest.set_guest_pid(own != claims->end() ? own->guest_pid : 0);
    }
    std::vector<int> descriptors;
    {
        const MutexLock lock(mutex_);
        if (at.channel >= channel_count_) {
            return Error{Code::kFailedPrecondition, "region.layout",
                         fmt::format("the guest's region has {} channels, part {} needs channel {}",
                                     channel_count_, worker->part().value, at.channel)};
        }
        guest.set_kind(info_.kind == SessionKind::kVm ? control::GuestAttachment::KIND_FILE
                                                      : control::GuestAttachment::KIND_MEMFD);
        guest.set_region_bytes(region_->bytes());
        guest.set_channel_count(channel_count_);
        guest.set_channel_index(at.channel);
        guest.set_generation(at.generation);
        descriptors.push_back(region_->fd());
        if (socket_.valid()) {
            descriptors.push_back(socket_.get());
        }
    }
    before();
    GANTRY_TRY(worker->activate(epoch, guest, descriptors));
    {
        const MutexLock lock(mutex_);
        socket_.reset();
        GANTRY_TRY(region_->write_state(at.channel, at.generation, wire::ServeState::kServing));
    }
    return write_record();
}

Result<void> Session::take_guests_back() {
    for (const auto& worker : workers_.all()) {
        control::ToWorker release;
        release.mutable_release()->set_return_guest(true);
        auto reply = worker->call(std::move(release), kLongCall);
        if (!reply && info_.kind == SessionKind::kLocal) {
            return reply.error();
        }
        if (!reply) {  // The snapshot has what it held, and a VM's region is a file.
            spdlog::warn("session {}: {}", info_.id, reply.error().to_string());
        } else if (reply->descriptors.size() > 1) {
            const MutexLock lock(mutex_);
            socket_ = std::move(reply->descriptors[1]);
        }
        workers_.remove(worker->part());
        worker->end();
    }
    return {};
}

Result<void> Session::suspend(const Suspension& into) {
    const MutexLock opening(opening_);
    GANTRY_TRY(take_guests_back());
    set_suspended(into);
    return write_record();
}

void Session::set_suspended(const Suspension& into) {
    source_.set_suspended(true);
    const MutexLock lock(mutex_);
    suspended_ = into;
}

std::optional<Suspension> Session::suspended() const {
    const MutexLock lock(mutex_);
    return suspended_;
}

void Session::resume() {
    {
        const MutexLock lock(mutex_);
        suspended_.reset();
    }
    source_.set_suspended(false);
    if (auto written = write_record(); !written) {
        spdlog::warn("session {}: {}", info_.id, written.error().to_string());
    }
}

bool Session::guest_waits() const {
    const MutexLock lock(mutex_);
    if (!suspended_ || !socket_.valid()) {
        return true;
    }
    // It sends nothing after its attachment: readable means its end.
    char byte = 0;
    const ssize_t got = ::recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

void Session::end(std::optional<wire::WorkerState> how) {
    const MutexLock opening(opening_);
    const auto workers = workers_.all();
    for_all(workers.size(), [&workers](std::size_t i) { workers[i]->end(); });
    for (const auto& worker : workers) {
        const PartChannel at = channel_of(worker->part());
        workers_.remove(worker->part());
        const MutexLock lock(mutex_);
        if (how && region_ && channel_count_ != 0) {
            (void)region_->write_worker_state(channel_count_, at.channel, *how);
        }
    }
}

void Session::leave() {
    for (const auto& worker : workers_.all()) {
        worker->leave();
    }
    if (const auto driver = this->driver()) {
        driver->stop();
    }
}

std::string Session::record_path() const {
    return config_.daemon.run_directory + "/sessions/" + info_.id + ".json";
}

Result<void> Session::write_record() {
    const MutexLock recording(recording_);
    if (is_record_removed_) {
        return {};
    }
    nlohmann::json json{
        {"session", to_json(info_)}, {"device", device()}, {"workers", nlohmann::json::array()}};
    for (const auto& worker : workers_.all()) {
        json["workers"].push_back(to_json(worker->record()));
    }
    {
        const MutexLock lock(mutex_);
        if (replacement_) {
            json["workers"].push_back(to_json(replacement_->record()));
        }
        if (!arrival_note_.empty()) {
            json["arrival"] = nlohmann::json::parse(arrival_note_, nullptr, false);
        }
        if (ticket_.exists()) {
            json["ticket"] = ticket_.reveal();
        }
        if (suspended_) {
            json["suspended"] = {{"seed_low", suspended_->seed.low},
                                 {"seed_high", suspended_->seed.high},
                                 {"path", suspended_->path}};
        }
    }
    const std::string temporary = record_path() + ".new";
    std::ofstream file(temporary, std::ios::trunc);
    file << json.dump(2) << "\n";
    file.close();
    if (!file || ::rename(temporary.c_str(), record_path().c_str()) != 0) {
        return Error{Code::kUnavailable, "record.write",
                     "cannot write " + record_path() + ": " + std::strerror(errno)};
    }
    return {};
}

void Session::set_arrival_note(std::string json) {
    const MutexLock lock(mutex_);
    arrival_note_ = std::move(json);
}

void Session::set_ticket(const Ticket& ticket) {
    const MutexLock lock(mutex_);
    ticket_ = ticket;
}

void Session::remove_record() {
    const MutexLock recording(recording_);
    is_record_removed_ = true;
    ::unlink(record_path().c_str());
}

void Session::set_device(DeviceNumber device) {
    const MutexLock opening(opening_);
    device_.store(device);
    if (auto written = write_record(); !written) {
        spdlog::warn("session {}: {}", info_.id, written.error().to_string());
    }
}

void Session::begin_replacement(std::shared_ptr<Worker> fresh) {
    const MutexLock lock(mutex_);
    replacement_ = std::move(fresh);
}

void Session::end_replacement(bool is_fresh) {
    const MutexLock opening(opening_);
    {
        const MutexLock lock(mutex_);
        if (is_fresh) {
            workers_.add(replacement_);
        }
        replacement_.reset();
    }
    if (auto written = write_record(); !written) {
        spdlog::warn("session {}: {}", info_.id, written.error().to_string());
    }
}

bool Session::is_replacing(engine::PartId part) const {
    const MutexLock lock(mutex_);
    return replacement_ && replacement_->part() == part;
}

std::size_t Session::adopt_workers(const std::vector<WorkerRecord>& records,
                                   const WorkerHandlers& handlers, bool served) {
    std::size_t settled = 0;
    std::map<engine::PartId, std::string> gone;
    if (served) {  // else the guest's memory may not be complete yet
        (void)open_region();
    }
    std::vector<Result<std::shared_ptr<Worker>>> found(records.size(), std::shared_ptr<Worker>{});
    for_all(records.size(), [&](std::size_t i) { found[i] = Worker::adopt(records[i], handlers); });
    for (std::size_t i = 0; i < records.size(); ++i) {
        const WorkerRecord& record = records[i];
        auto& worker = found[i];
        if (!worker) {
            gone.emplace(record.part, worker.error().text);
            continue;
        }
        // Two of one part: it was being replaced. The one that has the guest stays.
        const control::WorkerState state = (*worker)->adopted_status().state();
        const auto other = workers_.find(record.part);
        const bool has_guest =
            state == control::WORKER_STATE_SERVING || state == control::WORKER_STATE_FROZEN;
        if (other && !has_guest) {
            (*worker)->end();
        } else {
            if (other) {
                other->end();
            }
            workers_.add(*worker);
        }
        ++settled;
    }
    for (const auto& [part, how] : gone) {
        if (workers_.find(part)) {
            ++settled;
        } else if (served) {
            on_worker_lost(part, how);
        }
    }
    (void)write_record();
    return settled;
}

}  // namespace gantry::supervisor
