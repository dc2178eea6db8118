#include "host-daemon/supervisor/workers/worker_stock.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace gantry::supervisor {
namespace {

/// A context that is made holds up the driver's other work.
constexpr std::chrono::seconds kRefillAfter{1};
/// Between two looks for dead ones, and after a failure.
constexpr std::chrono::seconds kLookAgain{5};
constexpr std::chrono::seconds kTryAgain{60};

void discard(const std::vector<std::shared_ptr<Worker>>& spares) {
    for (const auto& spare : spares) {
        spare->abort();  // All at once.
    }
    for (const auto& spare : spares) {
        spare->discard();
    }
}

}  // namespace

WorkerStock::WorkerStock(const Config& config, std::function<std::size_t()> awaited)
    : config_(config), awaited_(std::move(awaited)), executor_([this] { refill(); }) {}

void WorkerStock::fill() {
    {
        const MutexLock lock(mutex_);
        is_kept_ = true;
    }
    look_again(std::chrono::milliseconds{0});
}

void WorkerStock::look_again(std::chrono::milliseconds after) {
    executor_.post([this, after] {
        const auto then = SerialExecutor::Clock::now() + after;
        if (!due_ || then < *due_) {
            due_ = then;
            executor_.set_timer(due_);
        }
    });
}

std::size_t WorkerStock::wanted_count() {
    const std::size_t awaited = config_.worker.await_restore ? awaited_() : 0;
    return static_cast<std::size_t>(config_.worker.spares) + std::min(awaited, kAwaitedMax);
}

/// On executor_.
void WorkerStock::refill() {
    due_.reset();
    bool made = true;
    while (made) {
        const std::size_t wanted = wanted_count();
        Workers ended;
        {
            const MutexLock lock(mutex_);
            const auto first_dead = std::stable_partition(
                spares_.begin(), spares_.end(), [](const auto& spare) { return spare->alive(); });
            const auto first_ended = std::min(
                first_dead,
                spares_.begin() + static_cast<std::ptrdiff_t>(std::min(wanted, spares_.size())));
            ended.assign(std::make_move_iterator(first_ended),
                         std::make_move_iterator(spares_.end()));
            spares_.erase(first_ended, spares_.end());
            if (!is_kept_) {
                break;
            }
            if (spares_.size() >= wanted) {
                if (wanted != 0) {
                    look_again(kLookAgain);
                }
                made = false;
            }
        }
        discard(ended);
        if (made && !make_one()) {
            look_again(kTryAgain);
            made = false;
        }
    }
}

bool WorkerStock::make_one() {
    auto spare = Worker::spare(config_);
    if (!spare) {
        spdlog::warn("no spare worker: {}", spare.error().to_string());
        return false;
    }
    {
        const MutexLock lock(mutex_);
        making_ = *spare;
        if (!is_kept_) {
            making_->abort();
        }
    }
    const auto warmed = (*spare)->warm(config_);
    const MutexLock lock(mutex_);
    making_.reset();
    made_.notify_all();
    if (!warmed) {
        spdlog::warn("no spare worker: {}", warmed.error().to_string());
        return false;
    }
    spdlog::info("spare worker {} is ready", (*spare)->pid());
    spares_.push_back(std::move(*spare));
    return true;
}

std::shared_ptr<Worker> WorkerStock::take() {
    MutexLock lock(mutex_);
    made_.wait(lock,
               [this]() GANTRY_REQUIRES(mutex_) { return making_ == nullptr || !spares_.empty(); });
    const auto found = std::find_if(spares_.begin(), spares_.end(),
                                    [](const auto& spare) { return spare->alive(); });
    if (!is_kept_ || found == spares_.end()) {
        return nullptr;
    }
    std::shared_ptr<Worker> spare = std::move(*found);
    spares_.erase(found);
    return spare;
}

void WorkerStock::note_attempt(const std::string& session_id, const Error* error) {
    constexpr std::size_t kScatteredMax = 1024;  // Sessions that never came are forgotten.
    const MutexLock lock(mutex_);
    scattered_.erase(session_id);
    if (error != nullptr && error->reason == kVariablesNotNow) {
        if (scattered_.size() >= kScatteredMax) {
            scattered_.erase(scattered_.begin());
        }
        scattered_.insert(session_id);
    }
}

Addresses WorkerStock::addresses_for(const std::string& session_id, Addresses wanted) {
    const MutexLock lock(mutex_);
    return scattered_.contains(session_id) ? Addresses::kScattered : wanted;
}

Result<std::shared_ptr<Worker>> WorkerStock::launch_new(const std::string& session_id,
                                                        engine::PartId part, DeviceNumber device,
                                                        std::uint64_t quota_bytes,
                                                        WorkerHandlers handlers,
                                                        Addresses addresses) const {
    Config config = config_;
    config.worker.device = device;
    if (addresses == Addresses::kScattered) {
        config.worker.fixed_addresses = false;
    }
    return Worker::launch(config, session_id, part, quota_bytes, std::move(handlers));
}

Result<std::shared_ptr<Worker>> WorkerStock::launch(const std::string& session_id,
                                                    engine::PartId part, DeviceNumber device,
                                                    std::uint64_t quota_bytes,
                                                    WorkerHandlers handlers, Addresses addresses) {
    addresses = addresses_for(session_id, addresses);
    if (device != config_.worker.device || addresses != Addresses::kUsual) {
        return launch_new(session_id, part, device, quota_bytes, std::move(handlers), addresses);
    }
    const auto spare = take();
    look_again(kRefillAfter);
    if (spare == nullptr) {
        return Worker::launch(config_, session_id, part, quota_bytes, std::move(handlers));
    }
    if (auto started = spare->start(config_, session_id, part, quota_bytes, handlers); !started) {
        // It has ended, or its context has. The others' may have, too; a new one says what is the
        // matter, if anything is.
        spdlog::warn("session {}: a spare worker was of no use: {}", session_id,
                     started.error().to_string());
        Workers others;
        {
            const MutexLock lock(mutex_);
            others.swap(spares_);
        }
        discard(others);
        return Worker::launch(config_, session_id, part, quota_bytes, std::move(handlers));
    }
    spdlog::info("session {}: served by spare worker {}", session_id, spare->pid());
    return spare;
}

void WorkerStock::stop() {
    {
        const MutexLock lock(mutex_);
        is_kept_ = false;
        if (making_ != nullptr) {
            making_->abort();
        }
    }
    executor_.stop();
    Workers spares;
    {
        const MutexLock lock(mutex_);
        spares.swap(spares_);
    }
    discard(spares);
}

}  // namespace gantry::supervisor
