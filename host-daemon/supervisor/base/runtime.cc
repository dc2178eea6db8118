#include "host-daemon/supervisor/base/runtime.h"

#include <cstdlib>
#include <thread>
#include <utility>

#include "proto/base/random.h"
#include "proto/base/serial_executor.h"

namespace gantry::supervisor {
namespace {

class ThreadExecutor final : public Executor {
public:
    explicit ThreadExecutor(std::function<void()> on_timer) : executor_(std::move(on_timer)) {}
    bool post(std::function<void()> function) override {
        return executor_.post(std::move(function));
    }
    void set_timer(std::optional<std::chrono::steady_clock::time_point> due) override {
        executor_.set_timer(due);
    }
    void stop() override { executor_.stop(); }

private:
    SerialExecutor executor_;
};

class ThreadCondition final : public Condition {
public:
    void wait(MutexLock& lock) override { changed_.wait(lock); }
    void notify_all() override { changed_.notify_all(); }

private:
    CondVar changed_;
};

class RealRuntime final : public Runtime {
public:
    Clock::time_point now() override { return Clock::now(); }
    void sleep_for(Clock::duration time) override { std::this_thread::sleep_for(time); }
    std::unique_ptr<Executor> make_executor(std::function<void()> on_timer) override {
        return std::make_unique<ThreadExecutor>(std::move(on_timer));
    }
    std::unique_ptr<Condition> make_condition() override {
        return std::make_unique<ThreadCondition>();
    }
    std::array<std::uint64_t, 2> random_bits() override { return gantry::random_bits(); }
    void end_process(int status) override { std::_Exit(status); }
};

}  // namespace

Runtime& real_runtime() {
    static RealRuntime runtime;
    return runtime;
}

}  // namespace gantry::supervisor
