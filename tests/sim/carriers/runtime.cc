#include "tests/sim/carriers/runtime.h"

#include <algorithm>
#include <utility>

namespace gantry::sim {
namespace {

using supervisor::Runtime;

class SimExecutor final : public supervisor::Executor {
public:
    SimExecutor(SimRuntime& runtime, std::function<void()> on_timer)
        : state_(std::make_shared<State>(runtime, std::move(on_timer))) {}
    ~SimExecutor() override { stop(); }

    bool post(std::function<void()> function) override {
        if (state_->is_stopped) {
            return false;
        }
        state_->queue.emplace_back(++state_->runtime.last_posted, std::move(function));
        wake(state_);
        return true;
    }
    void set_timer(std::optional<Runtime::Clock::time_point> due) override { state_->due = due; }
    void stop() override {
        state_->is_stopped = true;
        state_->queue.clear();
        const auto fiber = state_->fiber;
        for (int i = 0; i < 1'000 && fiber && !fiber->is_done(); ++i) {
            fiber->is_hurried = true;  // Lets the function in hand end,
            fiber->resume();
        }
        if (fiber) {
            fiber->kill();  // but for one that waits for gantryd's end.
        }
    }

private:
    struct State {
        State(SimRuntime& of, std::function<void()> then)
            : runtime(of), on_timer(std::move(then)) {}
        SimRuntime& runtime;
        std::function<void()> on_timer;
        std::deque<std::pair<std::uint64_t, std::function<void()>>> queue;
        std::optional<Runtime::Clock::time_point> due;
        std::shared_ptr<Fiber> fiber;  ///< Runs a function now.
        bool is_woken = false;
        bool is_stopped = false;
        std::uint64_t timer_serial = 0;
    };

    static void wake(const std::shared_ptr<State>& state) {
        if (state->is_woken || state->fiber || state->is_stopped) {
            return;
        }
        state->is_woken = true;
        World& world = state->runtime.world();
        world.after(world.delay(0, 40), [weak = std::weak_ptr(state)] {
            if (const auto still = weak.lock()) {
                still->is_woken = false;
                run(still);
            }
        });
    }
    static void run(const std::shared_ptr<State>& state) {
        if (state->is_stopped || state->fiber) {
            return;
        }
        std::uint64_t number = 0;
        std::function<void()> function;
        if (!state->queue.empty()) {
            std::tie(number, function) = std::move(state->queue.front());
            state->queue.pop_front();
        } else if (state->due && state->runtime.now() >= *state->due && state->on_timer) {
            state->due.reset();
            function = state->on_timer;
        }
        if (!function) {
            rest(state);
            return;
        }
        ++state->timer_serial;
        // The fiber is known before it runs, so that nothing else begins beside it.
        state->fiber = std::make_shared<Fiber>(
            [weak = std::weak_ptr(state), function = std::move(function)]() mutable {
                function();
                function = nullptr;
                if (const auto still = weak.lock()) {
                    // Its fiber has nothing more to do; the next begins in an event of its own.
                    still->runtime.world().after(Duration{0}, [weak] {
                        if (const auto then = weak.lock()) {
                            then->fiber.reset();
                            rest(then);
                        }
                    });
                }
            });
        state->fiber->task = number;
        state->runtime.resume(state->fiber);
    }
    static void rest(const std::shared_ptr<State>& state) {
        if (state->is_stopped) {
            return;
        }
        if (!state->queue.empty()) {
            wake(state);
        } else if (state->due && state->on_timer) {
            const auto at = std::chrono::duration_cast<TimePoint>(state->due->time_since_epoch());
            state->runtime.world().at(
                at + Duration{1}, [weak = std::weak_ptr(state), serial = ++state->timer_serial] {
                    const auto still = weak.lock();
                    if (still && still->timer_serial == serial) {
                        run(still);
                    }
                });
        }
    }

    std::shared_ptr<State> state_;
};

class SimCondition final : public supervisor::Condition {
public:
    explicit SimCondition(SimRuntime& runtime) : runtime_(runtime) {}
    // The lock that it gives back is its caller's.
    void wait(MutexLock& lock) override GANTRY_NO_THREAD_SAFETY_ANALYSIS {
        lock.unlock();
        // It looks again now and then: what has waited for is seen at the next notification.
        const std::uint64_t seen = serial_;
        while (serial_ == seen) {
            runtime_.pause(Duration{200});
        }
        lock.lock();
    }
    void notify_all() override { ++serial_; }

private:
    SimRuntime& runtime_;
    std::uint64_t serial_ = 0;
};

}  // namespace

std::unique_ptr<supervisor::Executor> SimRuntime::make_executor(std::function<void()> on_timer) {
    return std::make_unique<SimExecutor>(*this, std::move(on_timer));
}

std::unique_ptr<supervisor::Condition> SimRuntime::make_condition() {
    return std::make_unique<SimCondition>(*this);
}

void SimRuntime::end_process(int /*status*/) {
    world_.after(Duration{0}, [this, life = world_.hosts[host_].life] {
        if (world_.hosts[host_].life == life) {
            world_.crash_daemon(host_);
        }
    });
    while (true) {
        Fiber::suspend();  // until it is killed
    }
}

void SimRuntime::pause(Duration time) {
    Fiber* const self = Fiber::current();
    if (self->is_hurried) {
        return;
    }
    const auto found = std::ranges::find_if(
        fibers_, [&](const std::shared_ptr<Fiber>& one) { return one.get() == self; });
    world_.after(time, [this, weak = std::weak_ptr(*found)] {
        if (const auto fiber = weak.lock(); fiber && !fiber->is_done()) {
            resume(fiber);
        }
    });
    Fiber::suspend();
}

std::shared_ptr<Fiber> SimRuntime::start(std::function<void()> work) {
    auto fiber = std::make_shared<Fiber>(std::move(work));
    resume(fiber);
    return fiber;
}

void SimRuntime::resume(const std::shared_ptr<Fiber>& fiber) {
    if (std::ranges::find(fibers_, fiber) == fibers_.end()) {
        fibers_.push_back(fiber);
    }
    fiber->resume();
    std::erase_if(fibers_, [](const std::shared_ptr<Fiber>& one) { return one->is_done(); });
    if (after_step_) {
        after_step_();
    }
}

void SimRuntime::die() {
    for (const std::shared_ptr<Fiber>& fiber : std::exchange(fibers_, {})) {
        fiber->kill();
    }
}

}  // namespace gantry::sim
