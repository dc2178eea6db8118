// TargetRunner: runs the TargetMachine of one migration attempt with a clock, workers, disk, peer
// and libvirt: gantryd's real ones, or those of tests/sim.
//
// As SourceRunner: `main_` steps the machine, `slow_` makes the control calls to workers; batches
// are applied on the bulk streams' own threads, as RoundGate lets them in.
// Threads: feed(), receive(), apply() and status() from any.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "host-daemon/supervisor/moves/epoch_store.h"
#include "host-daemon/supervisor/moves/source_runner.h"
#include "host-daemon/supervisor/parts/session_state.h"
#include "migration/engine/round_gate.h"
#include "migration/engine/target_machine.h"

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
    MoveLog log = {};
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
    TargetRunner(std::string session_id, engine::Settings settings, RecordStore& store,
                 SessionSink& sink, TargetHooks hooks, Runtime& runtime = real_runtime());
    ~TargetRunner() { stop(); }

    /// First event of an attempt: asks the source.
    void begin(engine::MigrationId migration, engine::TargetCapabilities capabilities,
               const Ticket& ticket);
    void feed(engine::TargetEvent event);
    void receive(engine::Message message);
    /// One batch from a bulk stream. Success: acknowledge it (applied, or too late to matter).
    /// Not acknowledged, its blocks are sent again with the round.
    Result<void> apply(const control::BulkDown& batch);
    /// A bulk stream broke: the round under way has to be sent again.
    void bulk_lost(const Error& why);
    [[nodiscard]] TargetStatus status() const;
    void stop();

private:
    void step(const engine::TargetEvent& event);
    struct Stamps;  ///< What the record of the move says of an event.
    void record(const engine::TargetEvent& event, engine::TargetState before);
    /// Carries actions out: one overload of its operator() for each kind.
    struct Carrier;
    void reserve(const engine::SessionNeeds& needs, engine::Seed seed);
    /// Once for a migration.
    void open_bulk();
    void await_round(std::uint64_t round, std::uint64_t batch_count);
    void order_apply(engine::FreezeToken token, std::vector<engine::FinalPart> parts);
    void apply_complete(engine::FreezeToken token, std::vector<engine::FinalPart> parts);
    void persist_owned(const engine::DurableRecord& record);
    Result<void> apply_parts(const std::vector<engine::FinalPart>& parts);
    void activate(Epoch epoch);
    void retract();
    Result<void> apply_graph(engine::PartId part, const control::GraphBatch& graph);
    engine::RoundGate::Entry begin_batch(std::uint64_t round, std::uint64_t batch);
    void count_bytes(const control::BulkDown& batch);
    void count_remaining() GANTRY_REQUIRES(mutex_);
    void end_batch(const control::BulkDown& batch, const Result<void>& applied);
    void tell_of_round(engine::RoundGate::Verdict verdict, std::uint64_t round, const Error& why);
    Result<void> apply_content(const control::BulkDown& batch);
    void publish();

    const std::string session_id_;
    Runtime& runtime_;
    RecordStore& store_;
    SessionSink& sink_;
    TargetHooks hooks_;
    engine::TargetMachine machine_;
    /// main_ only: what an action has ended in at once. The machine is told when those after it are
    /// carried out.
    std::optional<engine::TargetEvent> outcome_;

    mutable Mutex mutex_;
    const std::unique_ptr<Condition> batches_changed_;
    engine::RoundGate gate_ GANTRY_GUARDED_BY(mutex_);
    std::optional<engine::FreezeToken> applying_ GANTRY_GUARDED_BY(mutex_);
    std::optional<engine::MigrationId> bulk_of_ GANTRY_GUARDED_BY(mutex_);  ///< With streams.
    bool is_preparing_ GANTRY_GUARDED_BY(mutex_) = false;  ///< One graph at a time.
    engine::Seed seed_ GANTRY_GUARDED_BY(mutex_);
    TargetStatus status_ GANTRY_GUARDED_BY(mutex_);

    const std::unique_ptr<Executor> slow_;
    const std::unique_ptr<Executor> main_;
};

}  // namespace gantry::supervisor
