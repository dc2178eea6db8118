// SimRuntime: gantryd's Runtime on one host of the simulated world. Its executors and sleeps are
// fibers; the world's queue of events has their order, and its seed their delays.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "host-daemon/supervisor/base/runtime.h"
#include "tests/sim/carriers/fibers.h"
#include "tests/sim/world.h"

namespace gantry::sim {

class SimRuntime final : public supervisor::Runtime {
public:
    SimRuntime(World& world, int host) : world_(world), host_(host) {}

    Clock::time_point now() override { return Clock::time_point{world_.now}; }
    void sleep_for(Clock::duration time) override {
        pause(std::chrono::duration_cast<Duration>(time));
    }
    std::unique_ptr<supervisor::Executor> make_executor(std::function<void()> on_timer) override;
    std::unique_ptr<supervisor::Condition> make_condition() override;
    std::array<std::uint64_t, 2> random_bits() override {
        return {world_.random.next(), world_.random.next()};
    }
    /// gantryd dies, and comes back.
    [[noreturn]] void end_process(int status) override;

    /// The fiber that runs stops for that long.
    void pause(Duration time);
    /// Runs as a fiber of this host, until its end or gantryd's.
    std::shared_ptr<Fiber> start(std::function<void()> work);
    void resume(const std::shared_ptr<Fiber>& fiber);
    /// gantryd dies: every fiber ends where it stands.
    void die();
    /// After every step of a fiber of this host.
    void set_after_step(std::function<void()> look) { after_step_ = std::move(look); }
    std::uint64_t last_posted = 0;  ///< Number of the function that an executor was given last.
    World& world() { return world_; }
    [[nodiscard]] int host() const { return host_; }

private:
    World& world_;
    const int host_;
    std::vector<std::shared_ptr<Fiber>> fibers_;
    std::function<void()> after_step_;
};

}  // namespace gantry::sim
