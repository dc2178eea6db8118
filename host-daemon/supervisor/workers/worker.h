// One worker as gantryd sees it: its process, its control channel, and what it serves.
//
// Invariant: `record()` is enough for a restarted gantryd to find the worker again (adopt), and
// what the worker then says about itself (session, part) must agree with the record, or it is not
// ours. Threads: call() from any; the rest from the thread that owns the session. When the
// connection ends the loss handler runs once, on the channel's thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "host-daemon/supervisor/config/config.h"
#include "host-daemon/supervisor/share/gpu_shares.h"
#include "host-daemon/supervisor/workers/memory_slot.h"
#include "host-daemon/supervisor/workers/worker_channel.h"
#include "host-daemon/supervisor/workers/worker_process.h"
#include "migration/engine/needs.h"

namespace gantry::supervisor {

/// What the id of a local program's session begins with; a VM's is its UUID.
inline constexpr std::string_view kLocalSession = "local-";

struct WorkerRecord {
    std::string session_id;
    engine::PartId part;
    ProcessRecord process;
    std::string memory_page;  ///< Path; empty: it does not share its quota.
    std::uint32_t memory_slot = 0;
    DeviceNumber device = 0;
};

nlohmann::json to_json(const WorkerRecord& record);
Result<WorkerRecord> worker_record_from_json(const nlohmann::json& json);

struct WorkerHandlers {
    /// The connection has ended; `how` says how the process ended, or that it was cut off.
    std::function<void(engine::PartId, const std::string& how)> lost;
    std::function<void(engine::PartId, const control::Event&)> event;
    /// A connection to the share broker; null: the worker gets none.
    std::function<Result<control::UniqueFd>()> sharing{};
    /// A place at the arbiter of a GPU; null: the worker launches as it likes.
    std::function<Result<ArbiterPlace>(DeviceNumber)> arbiter{};
};

class Worker {
public:
    /// Spawns the program, connects and sends Start, on the device that `config` names.
    /// `quota_bytes` is the whole session's; 0: the device's memory, for each worker.
    static Result<std::shared_ptr<Worker>> launch(const Config& config,
                                                  const std::string& session_id,
                                                  engine::PartId part, std::uint64_t quota_bytes,
                                                  WorkerHandlers handlers);
    /// Spawns one for nobody, and connects. It ends with its connection.
    static Result<std::shared_ptr<Worker>> spare(const Config& config);
    /// A spare makes its context now. After a failure it has ended.
    Result<void> warm(const Config& config);
    /// Sends Start to a spare. After a failure it has ended.
    Result<void> start(const Config& config, const std::string& session_id, engine::PartId part,
                       std::uint64_t quota_bytes, WorkerHandlers handlers);
    /// Connects to a running one and asks what it holds.
    static Result<std::shared_ptr<Worker>> adopt(const WorkerRecord& record,
                                                 WorkerHandlers handlers);
    ~Worker();
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;

    [[nodiscard]] engine::PartId part() const { return record_.part; }
    [[nodiscard]] const WorkerRecord& record() const { return record_; }
    [[nodiscard]] pid_t pid() const { return record_.process.pid; }
    [[nodiscard]] DeviceNumber device_number() const { return record_.device; }
    [[nodiscard]] bool alive() const { return channel_ && channel_->open(); }
    [[nodiscard]] const control::DeviceDescription& device() const { return device_; }
    [[nodiscard]] std::uint64_t table_hash() const { return table_hash_; }
    [[nodiscard]] const control::GuestAttachment& guest() const { return guest_; }
    /// What the worker said when it was adopted.
    [[nodiscard]] const control::StatusReply& adopted_status() const { return adopted_status_; }

    Result<WorkerReply> call(control::ToWorker request, std::chrono::milliseconds deadline,
                             std::span<const int> descriptors = {}) {
        return channel_->call(std::move(request), deadline, descriptors);
    }
    /// The same in two steps (WorkerChannel).
    Result<WorkerChannel::Sent> send(control::ToWorker request, std::chrono::milliseconds deadline,
                                     std::span<const int> descriptors = {}) {
        return channel_->send(std::move(request), deadline, descriptors);
    }
    Result<WorkerReply> await(WorkerChannel::Sent sent) { return channel_->await(std::move(sent)); }
    Result<void> serve(const control::GuestAttachment& guest, std::span<const int> descriptors);
    Result<void> activate(Epoch epoch, const control::GuestAttachment& guest,
                          std::span<const int> descriptors);
    Result<control::StatusReply> status();
    /// Orderly end: Shutdown, then SIGKILL when it does not go. Idempotent; no loss is reported.
    void end();
    /// SIGKILL, and waits for its end; no loss is reported.
    void kill();
    /// It serves the guest of another worker now, which it replaced; `pause_us` took that.
    void took_over(const Worker& from, std::uint64_t pause_us);
    [[nodiscard]] std::uint32_t replacements() const { return replacements_; }
    [[nodiscard]] std::uint64_t replacement_pause_us() const { return replacement_pause_us_; }
    /// Of a spare: breaks the connection off, so that calls end; from any thread.
    void abort() { channel_->shut_down(); }
    /// Kills what serves nobody, and waits for it.
    void discard();
    /// Forgets the worker without ending it: gantryd is being restarted.
    void leave() { leaving_ = true; }

private:
    Worker(WorkerRecord record, WorkerProcess process, WorkerHandlers handlers);
    static Result<std::shared_ptr<Worker>> spawn(const Config& config, const std::string& name);
    Result<void> connect();
    Error start_failed(const Error& error);
    [[nodiscard]] std::string log_path() const;
    void on_closed(const Error& why);
    void join_sharing();
    void join_arbiter();

    WorkerRecord record_;
    WorkerProcess process_;
    WorkerHandlers handlers_;
    MemorySlot memory_;
    std::atomic<bool> leaving_{false};
    control::DeviceDescription device_;
    std::uint64_t table_hash_ = 0;
    control::GuestAttachment guest_;
    control::StatusReply adopted_status_;
    std::shared_ptr<void> arbiter_place_;
    std::atomic<std::uint32_t> replacements_{0};
    std::atomic<std::uint64_t> replacement_pause_us_{0};
    std::unique_ptr<WorkerChannel> channel_;
};

/// Deadlines of calls that do little; those that do much take one from their caller.
inline constexpr std::chrono::milliseconds kQuickCall{10'000};
/// Calls that build or move state.
inline constexpr std::chrono::milliseconds kLongCall{120'000};

}  // namespace gantry::supervisor
