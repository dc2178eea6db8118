// WorkersSource and WorkersSink: a session's workers as the engine's StateSource and StateSink.
//
// Each call becomes requests of worker.proto to the part's worker; guarantees and threads as in
// migration/engine/state.h. What a worker answers is checked for lengths and counts only: a worker
// can lie about its own guest's state, and harms nobody else by it.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "host-daemon/supervisor/parts/session_state.h"
#include "host-daemon/supervisor/workers/worker_set.h"
#include "migration/engine/state.h"
#include "proto/base/mutex.h"
#include "proto/snapshot/container.h"

namespace gantry::supervisor {

/// A program has come while its session is frozen; it is served at the target, or after the thaw.
inline constexpr char kSessionFrozen[] = "session.frozen";

/// Facts about the session that no worker knows.
struct SessionFacts {
    std::string session_id;
    std::uint64_t quota_bytes = 0;
    engine::ComputeCapability cc_min;  ///< From the VM's metadata; 0.0: whatever the code allows.
    /// A local program keeps its region when its session moves: nothing may be written there that
    /// the next owner's guest would read. A frozen worker answers nothing anyway.
    bool shares_region_with_target = false;
};

class WorkersSource final : public SessionSource {
public:
    WorkersSource(WorkerSet& workers, SessionFacts facts)
        : workers_(workers), facts_(std::move(facts)) {}

    Result<engine::SessionNeeds> describe() override;
    Result<void> announce() override;
    void end_announcement() override;
    /// Whether a worker holds to an announcement, perhaps of a gantryd that has ended.
    bool is_announced();
    Result<void> begin_precopy(engine::Seed seed) override;
    Result<engine::ScanResult> scan(engine::PartId part) override;
    Result<std::unique_ptr<engine::StagedBlocks>> read_blocks(
        engine::PartId part, std::span<const engine::BlockAddress> blocks) override;
    Result<void> mark_unsent(engine::PartId part,
                             std::span<const engine::BlockAddress> blocks) override;
    Result<std::string> graph(engine::PartId part) override;
    Result<void> freeze(engine::FreezeToken token, std::chrono::microseconds deadline) override;
    Result<std::optional<engine::FreezeToken>> frozen_token() override;
    Result<engine::FinalPart> final_part(engine::PartId part) override;
    Result<void> thaw() override;
    Result<void> fence(bool guest_is_here) override;
    Result<void> unfence(Epoch epoch) override;
    void end_precopy() override;
    Result<void> release() override;

    /// While suspended there is nothing that could be described, so no move begins.
    void set_suspended(bool suspended);
    /// Then add() would refuse, and a worker be started in vain.
    [[nodiscard]] bool is_frozen() const;
    /// Takes in the worker of a program that has just come: `serve` attaches it to its guest.
    /// Failure: that of `serve`; kUnavailable (`session.frozen`) between freeze() and thaw(), when
    /// nothing may run that the freeze has not seen.
    Result<void> add(const std::shared_ptr<Worker>& worker,
                     const std::function<Result<void>()>& serve);
    [[nodiscard]] std::vector<engine::PartId> parts() const override;
    [[nodiscard]] bool has(engine::PartId part) const override { return workers_.need(part).ok(); }
    /// A worker that came while the session is announced.
    static void announce_to(Worker& worker);
    Result<std::string> images(engine::PartId part, const std::vector<std::string>& known) override;

private:
    using EachWorker = std::function<Result<void>(const std::shared_ptr<Worker>&)>;
    /// Until one fails. The failure of a worker whose program has ended meanwhile is none.
    Result<void> for_each(const EachWorker& ask);
    Result<void> tell_all(const std::function<control::ToWorker()>& request);
    [[nodiscard]] bool has_left(const std::shared_ptr<Worker>& worker) const;
    void set_frozen(bool frozen);
    static Result<void> tell(Worker& worker, bool migrating);
    static Result<void> begin(Worker& worker, engine::Seed seed);
    WorkerSet& workers_;
    SessionFacts facts_;
    // Only on the executor of worker calls: the precopy under way, and whose workers know of it. A
    // program that starts meanwhile brings a worker that does not.
    std::optional<engine::Seed> seed_;
    std::set<engine::PartId> begun_;
    std::atomic<bool> suspended_{false};
    mutable Mutex coming_;  ///< Held also while a worker comes.
    bool is_frozen_ GANTRY_GUARDED_BY(coming_) = false;
};

class WorkersSink final : public SessionSink {
public:
    /// Makes the worker of a part that arrives; what it starts is in `workers` afterwards.
    using Launch = std::function<Result<std::shared_ptr<Worker>>(engine::PartId)>;
    using Activate = std::function<Result<void>(const std::shared_ptr<Worker>&, Epoch)>;
    struct Hooks {
        std::function<Result<void>(const engine::SessionNeeds&)> reserve;
        Launch launch;
        Activate activate;
        /// This worker could not take its guest over, others could: the guest is told, and it ends.
        std::function<void(const std::shared_ptr<Worker>&, const Error&)> lost;
        std::function<void()> discard;
    };

    WorkersSink(WorkerSet& workers, Hooks hooks) : workers_(workers), hooks_(std::move(hooks)) {}

    Result<void> reserve(const engine::SessionNeeds& needs) override;
    Result<void> prepare(engine::PartId part, engine::Seed seed, std::string_view graph) override;
    Result<void> apply_batch(engine::PartId part, const engine::BlockBatch& batch) override;
    Result<void> apply_final(const engine::FinalPart& final_part) override;
    Result<engine::BlockSetDigest> digest(engine::PartId part) override;
    Result<void> mark_complete(engine::FreezeToken token) override;
    Result<std::optional<engine::FreezeToken>> complete_token() override;
    Result<void> activate(Epoch epoch) override;
    Result<void> discard() override;
    bool retract() override;

    /// A worker of the arrival died, and was taken out of the set.
    void note_lost() { has_lost_ = true; }
    /// From here on nothing can be taken back: the guest may have been served.
    void note_served() { may_have_served_ = true; }
    /// The first worker that was asked to serve has refused.
    void note_unserved() { may_have_served_ = false; }
    [[nodiscard]] bool may_have_served() const { return may_have_served_; }

    /// What the part's worker, started for this, could not honour; nothing is built yet.
    Result<void> check(engine::PartId part, std::string_view graph);
    /// Blocks of one part as a snapshot file has them, in its order; at most kBatchBlocks.
    Result<void> apply_stored(engine::PartId part, std::span<const snapshot::StoredBlock> blocks);
    /// Blocks come from a file, which the workers read themselves.
    void expect_file() { from_file_ = true; }
    void add_images(engine::PartId part, std::string image_list) override;
    void keep_only(const std::vector<engine::PartId>& parts) override;

private:
    Result<std::shared_ptr<Worker>> worker_for(engine::PartId part);
    std::string take_images(engine::PartId part);

    WorkerSet& workers_;
    Hooks hooks_;
    Mutex mutex_;  ///< Held also while a worker is launched.
    std::map<engine::PartId, std::string> images_ GANTRY_GUARDED_BY(mutex_);
    engine::Seed seed_;
    bool from_file_ = false;
    std::atomic<bool> has_lost_{false};
    std::atomic<bool> may_have_served_{false};
};

}  // namespace gantry::supervisor
