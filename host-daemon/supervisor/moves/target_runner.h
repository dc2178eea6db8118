// TargetRunner: runs the TargetMachine of one migration attempt with real clocks, workers, disk,
// peer and libvirt.
//
// As SourceRunner: `main_` steps the machine, `slow_` makes the control calls to workers; batches
// are applied on the bulk streams' own threads, as RoundGate lets them in.
// Threads: feed(), receive(), apply() and status() from any.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "host-daemon/supervisor/moves/epoch_store.h"
#include "host-daemon/supervisor/moves/source_runner.h"
#include "host-daemon/supervisor/parts/worker_state.h"
#include "migration/engine/round_gate.h"
#include "migration/engine/target_machine.h"
#include "proto/base/serial_executor.h"

namespace gantry::supervisor {

struct TargetHooks {
    std::function<void(const engine::Message&)> send;
    /// The reservation stands: let the bulk streams be opened.
    std::function<void(engine::MigrationId)> open_bulk;
    std::function<void()> query_domain;
    std::function<void(engine::AlertKind, const Error&)> alert;
    std::function<void(const engine::Progress&)> progress;
    std::function<void()> admit;
    std::function<void(const Error&)> refuse;
    /// The workers serve the guest as this epoch: the session is this host's. Runs on `slow_`.
    std::function<void(Epoch)> activated;
    std::function<void(engine::Outcome, const Error&)> finished;
};

struct TargetStatus {
    engine::TargetState state = engine::TargetState::kAsking;
    Epoch epoch;
    std::optional<engine::MigrationId> migration;
    /// Its bytes are those that came here; what is left only the source knows.
    engine::Progress progress;
    engine::BlockSetDigest digest;  ///< Of what lay in memory once all had come; empty: not yet.
};

class TargetRunner {
public:
    TargetRunner(std::string session_id, engine::Settings settings, EpochStore& store,
                 WorkersSink& sink, WorkerSet& workers, TargetHooks hooks);
    ~TargetRunner() { stop(); }

    /// First event of an attempt: asks the source.
    void begin(engine::MigrationId migration, engine::TargetCapabilities capabilities,
               const Ticket& ticket);
    void feed(engine::TargetEvent event);
    void receive(engine::Message message);
    /// One batch from a bulk stream. Success: acknowledge it (applied, or too late to matter).
    Result<void> apply(const control::BulkDown& batch);
    /// A bulk stream broke: the round under way has to be sent again.
    void bulk_lost(const Error& why);
    [[nodiscard]] TargetStatus status() const;
    void stop();

private:
    void step(const engine::TargetEvent& event);
    /// Carries actions out: one overload of its operator() for each kind.
    struct Carrier;
    void reserve(const engine::SessionNeeds& needs, engine::Seed seed);
    void await_round(std::uint64_t round, std::uint64_t batch_count);
    void order_apply(engine::FreezeToken token, std::vector<engine::FinalPart> parts);
    void apply_complete(engine::FreezeToken token, std::vector<engine::FinalPart> parts);
    void persist_owned(const engine::DurableRecord& record);
    Result<void> apply_parts(const std::vector<engine::FinalPart>& parts);
    void activate(Epoch epoch);
    void retract();
    bool begin_batch(std::uint64_t round, std::uint64_t batch);
    void count_bytes(const control::BulkDown& batch);
    void count_remaining();  ///< With mutex_ held.
    void end_batch(const control::BulkDown& batch, const Result<void>& applied);
    void tell_of_round(engine::RoundGate::Verdict verdict, std::uint64_t round, const Error& why);
    Result<void> apply_content(const control::BulkDown& batch);
    void publish();

    const std::string session_id_;
    EpochStore& store_;
    WorkersSink& sink_;
    WorkerSet& workers_;
    TargetHooks hooks_;
    engine::TargetMachine machine_;

    mutable std::mutex mutex_;  // all below
    std::condition_variable batches_changed_;
    engine::RoundGate gate_;
    std::optional<engine::FreezeToken> applying_;
    std::mutex preparing_;  // one graph at a time
    engine::Seed seed_;
    TargetStatus status_;

    SerialExecutor slow_;
    SerialExecutor main_;
};

}  // namespace gantry::supervisor
