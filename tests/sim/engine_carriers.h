// The simulation's own carriers: they step the engine's machines themselves and carry the actions
// out against the simulated worker.
#pragma once

#include "tests/sim/world.h"

namespace gantry::sim {

struct EngineSource final : SourceEnd {
    explicit EngineSource(engine::SourceMachine made) : machine(std::move(made)) {}
    [[nodiscard]] engine::SourceState state() const override { return machine.state(); }
    [[nodiscard]] Epoch epoch() const override { return machine.epoch(); }
    [[nodiscard]] std::optional<engine::MigrationId> migration() const override {
        return machine.migration();
    }
    [[nodiscard]] std::string peer() const override { return machine.peer(); }
    engine::SourceMachine machine;
};

struct EngineTarget final : TargetEnd {
    explicit EngineTarget(engine::TargetMachine made) : machine(std::move(made)) {}
    [[nodiscard]] engine::TargetState state() const override { return machine.state(); }
    [[nodiscard]] Epoch epoch() const override { return machine.epoch(); }
    [[nodiscard]] std::optional<engine::MigrationId> migration() const override {
        return machine.migration();
    }
    [[nodiscard]] bool guest_is_here() const override { return machine.guest_is_here(); }
    engine::TargetMachine machine;
};

inline engine::SourceMachine& machine_of(SourceEnd& end) {
    return static_cast<EngineSource&>(end).machine;
}
inline engine::TargetMachine& machine_of(TargetEnd& end) {
    return static_cast<EngineTarget&>(end).machine;
}

class EngineCarriers final : public Carriers {
public:
    void make_source(World& world, int host, Epoch epoch) override;
    void make_target(World& world, int host) override;
    void source_step(World& world, int host, const engine::SourceEvent& event) override;
    void target_step(World& world, int host, const engine::TargetEvent& event) override;
    void deliver_bulk(World& world, int to, const Bulk& bulk) override;
    void die(int /*host*/) override {}
};

}  // namespace gantry::sim
