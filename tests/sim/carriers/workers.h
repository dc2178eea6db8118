// The two ends of a session's state, and the disk, as gantryd's runners use them: against the
// simulated worker of one host. Every call takes time, in which everything else goes on; some fail.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "host-daemon/supervisor/moves/epoch_store.h"
#include "host-daemon/supervisor/parts/session_state.h"
#include "tests/sim/carriers/runtime.h"

namespace gantry::sim {

/// The session's processes, which share the simulated device's blocks among them.
inline constexpr std::uint64_t kParts = 3;
[[nodiscard]] constexpr engine::PartId part_of_block(std::size_t block) {
    return {1 + block * kParts / kBlocks};
}
[[nodiscard]] constexpr engine::BlockAddress address_of_block(std::size_t block) {
    return {block % 5 == 0 ? engine::MemorySpace::kPinnedHost : engine::MemorySpace::kDevice,
            block};
}

class SimSource final : public supervisor::SessionSource {
public:
    explicit SimSource(SimRuntime& runtime)
        : runtime_(runtime), world_(runtime.world()), host_(world_.hosts[runtime.host()]) {}

    Result<engine::SessionNeeds> describe() override;
    Result<void> announce() override;
    void end_announcement() override;
    Result<void> begin_precopy(engine::Seed seed) override;
    Result<engine::ScanResult> scan(engine::PartId part) override;
    Result<std::unique_ptr<engine::StagedBlocks>> read_blocks(
        engine::PartId part, std::span<const engine::BlockAddress> blocks) override;
    Result<void> mark_unsent(engine::PartId part,
                             std::span<const engine::BlockAddress> blocks) override;
    Result<std::string> graph(engine::PartId part) override;
    Result<void> freeze(engine::FreezeToken token, Duration deadline) override;
    Result<std::optional<engine::FreezeToken>> frozen_token() override;
    Result<engine::FinalPart> final_part(engine::PartId part) override;
    Result<void> thaw() override;
    Result<void> fence(bool guest_is_here) override;
    Result<void> unfence(Epoch epoch) override;
    void end_precopy() override;
    Result<void> release() override;
    [[nodiscard]] std::vector<engine::PartId> parts() const override;
    [[nodiscard]] bool has(engine::PartId part) const override;
    Result<std::string> images(engine::PartId part, const std::vector<std::string>& known) override;

private:
    void take(std::int64_t low_us, std::int64_t high_us);
    [[nodiscard]] bool fails(double probability);
    /// The workers, or that there are none.
    Result<Worker*> worker();

    SimRuntime& runtime_;
    World& world_;
    Host& host_;
    snapshot::Fingerprint zero_{};
};

class SimSink final : public supervisor::SessionSink {
public:
    explicit SimSink(SimRuntime& runtime)
        : runtime_(runtime), world_(runtime.world()), host_(world_.hosts[runtime.host()]) {}

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
    void add_images(engine::PartId part, std::string image_list) override;
    void keep_only(const std::vector<engine::PartId>& parts) override;

private:
    void take(std::int64_t low_us, std::int64_t high_us);
    [[nodiscard]] bool fails(double probability);
    Result<Worker*> worker();
    void check_blocks(engine::PartId part);

    SimRuntime& runtime_;
    World& world_;
    Host& host_;
    std::set<engine::PartId> images_;
    std::set<engine::PartId> final_;
    bool is_preparing_ = false;
};

class SimStore final : public supervisor::RecordStore {
public:
    explicit SimStore(SimRuntime& runtime)
        : runtime_(runtime), world_(runtime.world()), host_(world_.hosts[runtime.host()]) {}

    Result<std::optional<engine::DurableRecord>> load(const std::string& session) const override;
    supervisor::SaveOutcome save(const std::string& session,
                                 const engine::DurableRecord& record) override;
    Result<void> remove(const std::string& session) override;

    /// A request for a grant that gantryd was given, with what it asks for.
    void note_request(const engine::MigrationId& migration, const engine::MsgGrantRequest& asked) {
        requests_.emplace_back(migration, asked);
    }

private:
    void check_record(const engine::DurableRecord& record);

    SimRuntime& runtime_;
    World& world_;
    Host& host_;
    std::vector<std::pair<engine::MigrationId, engine::MsgGrantRequest>> requests_;
};

}  // namespace gantry::sim
