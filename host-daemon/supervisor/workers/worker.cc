#include "host-daemon/supervisor/workers/worker.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <chrono>
#include <nlohmann/json.hpp>

#include "host-daemon/supervisor/config/version.h"
#include "proto/base/hex.h"
#include "proto/base/unless_exhausted.h"
#include "proto/control/process_end.h"
#include "proto/cuda/abi.h"

namespace gantry::supervisor {
namespace {

/// A worker has nothing to save when it ends; one that waits for its GPU in vain is killed.
constexpr std::chrono::milliseconds kOrderlyEnd{3000};
constexpr std::chrono::milliseconds kAdoptionAwaited{30'000};

std::string worker_name(const WorkerRecord& record) {
    return record.session_id.empty()
               ? "spare worker " + std::to_string(record.process.pid)
               : fmt::format("worker {} of session {}", record.part.value, record.session_id);
}

control::DeviceChoice device_choice(const Config& config) {
    control::DeviceChoice device;
    device.set_driver_library(config.worker.driver);
    device.set_driver_profile(config.worker.profile);
    device.set_device_ordinal(0);  // It sees no other: WorkerProcess::start().
    device.set_pageable_access(config.worker.pageable_access);
    return device;
}

/// A VM's GPU is named for the VM, so that its programs find the same one wherever they begin: its
/// UUID is the VM's, and it lies where none of the VM's own devices does.
void name_device(const std::string& session_id, control::Baseline* baseline) {
    constexpr int kPciBus = 0xf0;
    const auto uuid = from_uuid_text(session_id);
    if (!uuid || session_id.starts_with(kLocalSession)) {
        return;
    }
    baseline->set_uuid(uuid->data(), uuid->size());
    (*baseline->mutable_attributes())[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID] = 0;
    (*baseline->mutable_attributes())[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID] = kPciBus;
    (*baseline->mutable_attributes())[CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID] = 0;
}

control::ToWorker start_request(const Config& config, const WorkerRecord& record,
                                std::uint64_t quota_bytes) {
    control::ToWorker request;
    control::Start& start = *request.mutable_start();
    start.set_protocol_version(control::kWorkerProtocolVersion);
    start.set_gantry_version(kGantryVersion);
    start.set_session_id(record.session_id);
    start.set_part_id(record.part.value);
    *start.mutable_device() = device_choice(config);
    start.mutable_limits()->set_device_memory_bytes(quota_bytes);
    start.mutable_limits()->set_shares_device_memory(!record.memory_page.empty());
    start.mutable_limits()->set_memory_slot(record.memory_slot);
    name_device(record.session_id, start.mutable_baseline());
    start.mutable_sandbox()->set_seccomp(config.worker.seccomp);
    start.set_single_launches(!config.worker.batch_launches);
    start.set_account_launches(config.worker.account || config.worker.profile_level != 0);
    start.set_profile_level(static_cast<std::uint32_t>(config.worker.profile_level));
    return request;
}

}  // namespace

nlohmann::json to_json(const WorkerRecord& record) {
    return {{"session", record.session_id},
            {"part", record.part.value},
            {"pid", record.process.pid},
            {"start_time_ticks", record.process.start_time_ticks},
            {"control", record.process.control_path},
            {"memory_page", record.memory_page},
            {"memory_slot", record.memory_slot},
            {"device", record.device}};
}

Result<WorkerRecord> worker_record_from_json(const nlohmann::json& json) {
    WorkerRecord record;
    try {  // nlohmann's accessors throw; nothing of it leaves this function
        record.session_id = json.at("session").get<std::string>();
        record.part.value = json.at("part").get<std::uint64_t>();
        record.process.pid = json.at("pid").get<pid_t>();
        record.process.start_time_ticks = json.at("start_time_ticks").get<std::uint64_t>();
        record.process.control_path = json.at("control").get<std::string>();
        record.memory_page = json.value("memory_page", "");
        record.memory_slot = json.value("memory_slot", 0U);
        record.device = json.value("device", DeviceNumber{0});
    } catch (const nlohmann::json::exception& error) {
        return Error{Code::kDataLoss, "record.corrupt",
                     std::string("a worker's record is damaged: ") + error.what()};
    }
    return record;
}

Worker::Worker(WorkerRecord record, WorkerProcess process, WorkerHandlers handlers)
    : record_(std::move(record)), process_(std::move(process)), handlers_(std::move(handlers)) {}

Worker::~Worker() {
    leaving_ = true;
    channel_.reset();
}

Result<void> Worker::connect() {
    GANTRY_ASSIGN(control::PacketSocket socket,
                  control::PacketSocket::connect(record_.process.control_path));
    GANTRY_ASSIGN(
        channel_, unless_exhausted([&] {
            return std::make_unique<WorkerChannel>(
                std::move(socket), worker_name(record_),
                [this](const control::Event& event) { handlers_.event(record_.part, event); },
                [this](const Error& why) { on_closed(why); });
        }));
    return {};
}

void Worker::on_closed(const Error& why) {
    if (leaving_) {
        return;
    }
    // A worker that has closed its connection but lives on broke the protocol: it is not trusted
    // any further. Its process may also just be ending: give it a moment to say how.
    auto how = process_.wait(std::chrono::milliseconds{1000});
    if (!how) {
        process_.kill();
        process_.wait(std::chrono::milliseconds{5000});
        how = "killed after it broke off: " + why.text;
    }
    *how += "; its log is " + log_path();
    if (const std::string last = control::last_line_of(log_path()); !last.empty()) {
        *how += ", and ends with: " + last;
    }
    memory_.release();
    arbiter_place_.reset();
    handlers_.lost(record_.part, *how);
}

/// A worker without a broker serves all but memory between processes.
void Worker::join_sharing() {
    if (!handlers_.sharing) {
        return;
    }
    auto broker = handlers_.sharing();
    if (broker.ok()) {
        control::ToWorker request;
        request.mutable_share();
        const int descriptor = broker->get();
        if (const auto joined = call(std::move(request), kQuickCall, std::span(&descriptor, 1));
            joined.ok()) {
            return;
        } else {
            broker = joined.error();
        }
    }
    spdlog::warn("{}: no memory between processes: {}", worker_name(record_),
                 broker.error().to_string());
}

void Worker::join_arbiter() {
    if (!handlers_.arbiter) {
        return;
    }
    auto place = handlers_.arbiter(record_.device);
    if (place.ok()) {
        control::ToWorker request;
        request.mutable_join_arbiter()->set_slot(place->seat.slot);
        const int descriptors[] = {place->seat.page.get(), place->seat.claim.get(),
                                   place->seat.bell.get()};
        if (const auto joined = call(std::move(request), kQuickCall, descriptors); joined.ok()) {
            arbiter_place_ = std::move(place->place);
            return;
        } else {
            place = joined.error();
        }
    }
    spdlog::warn("{}: its launches are not arbitrated: {}", worker_name(record_),
                 place.error().to_string());
}

Result<std::shared_ptr<Worker>> Worker::spawn(const Config& config, const std::string& name) {
    // Numbered: a session may move from one worker to another on this same host.
    static std::atomic<unsigned> launches{0};
    const std::string base = fmt::format("{}/workers/{}.{}-{}", config.daemon.run_directory, name,
                                         ::getpid(), ++launches);
    GANTRY_ASSIGN(WorkerProcess process,
                  WorkerProcess::start(config.worker, base + ".sock", base + ".log"));
    WorkerRecord record;
    record.process = process.record();
    record.device = static_cast<DeviceNumber>(config.worker.device);
    WorkerHandlers nobody{[](engine::PartId, const std::string&) {},
                          [](engine::PartId, const control::Event&) {}};
    std::shared_ptr<Worker> worker(
        new Worker(std::move(record), std::move(process), std::move(nobody)));
    worker->leaving_ = true;  // a worker that ends while starting is an error here, not a loss
    if (auto connected = worker->connect(); !connected) {
        return worker->start_failed(connected.error());
    }
    return worker;
}

/// Ends it. What to say of it.
Error Worker::start_failed(const Error& error) {
    const auto how = process_.wait(std::chrono::milliseconds{200});
    discard();
    return Error{error.code, error.reason,
                 error.text + (how ? " (the worker ended: " + *how + ")" : "") + "; its log is " +
                     log_path()};
}

std::string Worker::log_path() const {
    constexpr std::string_view kSuffix = ".sock";
    std::string path = record_.process.control_path;
    if (path.ends_with(kSuffix)) {
        path.replace(path.size() - kSuffix.size(), kSuffix.size(), ".log");
    }
    return path;
}

Result<std::shared_ptr<Worker>> Worker::spare(const Config& config) {
    return spawn(config, "spare");
}

Result<void> Worker::warm(const Config& config) {
    control::ToWorker request;
    request.mutable_warm()->set_protocol_version(control::kWorkerProtocolVersion);
    *request.mutable_warm()->mutable_device() = device_choice(config);
    if (auto warmed = call(std::move(request), std::chrono::seconds{config.worker.start_timeout_s});
        !warmed) {
        return start_failed(warmed.error());
    }
    return {};
}

Result<std::shared_ptr<Worker>> Worker::launch(const Config& config, const std::string& session_id,
                                               engine::PartId part, std::uint64_t quota_bytes,
                                               WorkerHandlers handlers) {
    GANTRY_ASSIGN(std::shared_ptr<Worker> worker,
                  spawn(config, fmt::format("{}.{}", session_id, part.value)));
    GANTRY_TRY(worker->start(config, session_id, part, quota_bytes, std::move(handlers)));
    return worker;
}

Result<void> Worker::start(const Config& config, const std::string& session_id, engine::PartId part,
                           std::uint64_t quota_bytes, WorkerHandlers handlers) {
    record_.session_id = session_id;
    record_.part = part;
    handlers_ = std::move(handlers);
    channel_->set_name(worker_name(record_));
    if (quota_bytes != 0) {
        auto claimed =
            MemorySlot::claim(config.daemon.run_directory + "/workers/" + session_id + ".memory");
        if (!claimed) {
            return start_failed(claimed.error());
        }
        memory_ = std::move(*claimed);
        record_.memory_page = memory_.path();
        record_.memory_slot = memory_.index();
    }
    const int page = memory_.fd();
    auto reply = call(start_request(config, record_, quota_bytes),
                      std::chrono::seconds{config.worker.start_timeout_s},
                      std::span(&page, memory_.valid() ? 1 : 0));
    if (!reply) {
        return start_failed(reply.error());
    }
    const control::StartReply& started = reply->message.start();
    if (started.protocol_version() != control::kWorkerProtocolVersion) {
        return start_failed(
            {Code::kFailedPrecondition, "version.worker",
             fmt::format("gantryd {} speaks worker protocol {}, {} is {} and "
                         "speaks {}; install the same version of both",
                         kGantryVersion, control::kWorkerProtocolVersion, config.worker.executable,
                         started.gantry_version(), started.protocol_version())});
    }
    device_ = started.device();
    table_hash_ = started.table_hash();
    leaving_ = false;
    if (!alive()) {
        return start_failed(
            {Code::kUnavailable, "worker.gone", "the worker ended right after its start"});
    }
    join_sharing();
    join_arbiter();
    return {};
}

Result<std::shared_ptr<Worker>> Worker::adopt(const WorkerRecord& record, WorkerHandlers handlers) {
    MemorySlot memory;
    if (!record.memory_page.empty()) {
        GANTRY_ASSIGN(memory, MemorySlot::adopt(record.memory_page, record.memory_slot));
    }
    auto process = WorkerProcess::adopt(record.process);
    if (!process) {
        memory.release();
        return process.error();
    }
    std::shared_ptr<Worker> worker(new Worker(record, std::move(*process), std::move(handlers)));
    worker->memory_ = std::move(memory);
    const auto lost = [&](const Error& error) {
        spdlog::warn("{} cannot be taken up again: {}", worker_name(record), error.to_string());
        worker->discard();  // Else its program would wait for it, and its memory stay taken.
        return error;
    };
    if (auto connected = worker->connect(); !connected) {
        return lost(connected.error());
    }
    // It may be at what the last gantryd asked of it: blocks for a slow disk.
    control::ToWorker request;
    request.mutable_status();
    auto answer = worker->call(std::move(request), kAdoptionAwaited);
    if (!answer) {
        return lost(answer.error());
    }
    worker->adopted_status_ = std::move(*answer->message.mutable_status_reply());
    const control::StatusReply& status = worker->adopted_status_;
    if (status.session_id() != record.session_id || status.part_id() != record.part.value ||
        status.protocol_version() != control::kWorkerProtocolVersion) {
        const Error error{
            Code::kFailedPrecondition, "worker.mismatch",
            fmt::format(
                "process {} says it is worker {} of session {} (protocol {}), its record says {}",
                record.process.pid, status.part_id(), status.session_id(),
                status.protocol_version(), worker_name(record))};
        if (status.session_id() == record.session_id) {
            return lost(error);
        }
        worker->leaving_ = true;  // Another's.
        return error;
    }
    worker->device_ = status.device();
    worker->guest_ = status.guest();
    worker->join_sharing();
    worker->join_arbiter();
    return worker;
}

Result<void> Worker::serve(const control::GuestAttachment& guest,
                           std::span<const int> descriptors) {
    control::ToWorker request;
    *request.mutable_serve()->mutable_guest() = guest;
    GANTRY_TRY(call(std::move(request), kQuickCall, descriptors));
    guest_ = guest;
    return {};
}

Result<void> Worker::activate(Epoch epoch, const control::GuestAttachment& guest,
                              std::span<const int> descriptors) {
    control::ToWorker request;
    request.mutable_activate()->set_epoch(epoch.value);
    *request.mutable_activate()->mutable_guest() = guest;
    GANTRY_TRY(call(std::move(request), kLongCall, descriptors));
    guest_ = guest;
    return {};
}

Result<control::StatusReply> Worker::status() {
    control::ToWorker request;
    request.mutable_status();
    GANTRY_ASSIGN(WorkerReply reply, call(std::move(request), kQuickCall));
    return std::move(*reply.message.mutable_status_reply());
}

void Worker::kill() {
    leaving_ = true;
    process_.kill();
    process_.wait(std::chrono::milliseconds{5000});
}

void Worker::discard() {
    kill();
    memory_.release();
    ::unlink(record_.process.control_path.c_str());
}

void Worker::took_over(const Worker& from, std::uint64_t pause_us) {
    guest_ = from.guest_;
    replacements_ = from.replacements_ + 1;
    replacement_pause_us_ = pause_us;
}

void Worker::end() {
    leaving_ = true;
    bool answers = true;
    bool ends_well = false;
    if (alive()) {
        control::ToWorker request;
        request.mutable_shutdown();
        answers = ends_well = call(std::move(request), kOrderlyEnd).ok();
    }
    if (!process_.wait(answers ? kOrderlyEnd : std::chrono::milliseconds{0})) {
        spdlog::warn("{} does not end: killing process {}", worker_name(record_), pid());
        process_.kill();
        process_.wait(std::chrono::milliseconds{5000});
    } else if (ends_well) {
        ::unlink(log_path().c_str());  // Nobody is told of it any more.
    }
    memory_.release();
    ::unlink(record_.process.control_path.c_str());
}

}  // namespace gantry::supervisor
