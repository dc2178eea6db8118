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

WorkerStock::WorkerStock(const Config& config, std::function<Awaited()> awaited)
    : config_(config), awaited_(std::move(awaited)), executor_([this] { refill(); }) {}

Config WorkerStock::config_on(DeviceNumber device) const {
    Config config = config_;
    config.worker.device = device;
    return config;
}

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

WorkerStock::Awaited WorkerStock::wanted_counts() {
    Awaited wanted = awaited_();
    for (auto& [device, count] : wanted) {
        count = static_cast<std::size_t>(config_.worker.spares) +
                std::min(config_.worker.await_restore ? count : 0, kAwaitedMax);
    }
    return wanted;
}

/// On executor_.
void WorkerStock::refill() {
    due_.reset();
    bool made = true;
    while (made) {
        Awaited lacking = wanted_counts();
        const bool are_wanted = std::any_of(lacking.begin(), lacking.end(),
                                            [](const auto& one) { return one.second != 0; });
        Workers ended;
        {
            const MutexLock lock(mutex_);
            Workers kept;
            for (std::shared_ptr<Worker>& spare : spares_) {
                const auto place = lacking.find(spare->device_number());
                const bool is_kept = spare->alive() && place != lacking.end() && place->second != 0;
                if (is_kept) {
                    --place->second;
                }
                (is_kept ? kept : ended).push_back(std::move(spare));
            }
            spares_ = std::move(kept);
            if (!is_kept_) {
                break;
            }
        }
        discard(ended);
        const auto next = std::find_if(lacking.begin(), lacking.end(),
                                       [](const auto& one) { return one.second != 0; });
        made = next != lacking.end();
        if (!made && are_wanted) {
            look_again(kLookAgain);
        }
        if (made && !make_one(next->first)) {
            look_again(kTryAgain);
            made = false;
        }
    }
}

bool WorkerStock::make_one(DeviceNumber device) {
    const Config config = config_on(device);
    auto spare = Worker::spare(config);
    if (!spare) {
        spdlog::warn("no spare worker on GPU {}: {}", device, spare.error().to_string());
        return false;
    }
    {
        const MutexLock lock(mutex_);
        making_ = *spare;
        if (!is_kept_) {
            making_->abort();
        }
    }
    const auto warmed = (*spare)->warm(config);
    const MutexLock lock(mutex_);
    making_.reset();
    made_.notify_all();
    if (!warmed) {
        spdlog::warn("no spare worker on GPU {}: {}", device, warmed.error().to_string());
        return false;
    }
    spdlog::info("spare worker {} is ready on GPU {}", (*spare)->pid(), device);
    spares_.push_back(std::move(*spare));
    return true;
}

bool WorkerStock::has_spare(DeviceNumber device) const {
    return std::any_of(spares_.begin(), spares_.end(),
                       [device](const auto& one) { return one->device_number() == device; });
}

std::shared_ptr<Worker> WorkerStock::take(DeviceNumber device) {
    MutexLock lock(mutex_);
    made_.wait(lock, [this, device]() GANTRY_REQUIRES(mutex_) {
        return making_ == nullptr || making_->device_number() != device || has_spare(device);
    });
    const auto found = std::find_if(spares_.begin(), spares_.end(), [device](const auto& spare) {
        return spare->alive() && spare->device_number() == device;
    });
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
    Config config = config_on(device);
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
    if (addresses != Addresses::kUsual) {
        return launch_new(session_id, part, device, quota_bytes, std::move(handlers), addresses);
    }
    const auto spare = take(device);
    look_again(kRefillAfter);
    if (spare == nullptr) {
        return launch_new(session_id, part, device, quota_bytes, std::move(handlers));
    }
    if (auto started = spare->start(config_on(device), session_id, part, quota_bytes, handlers);
        !started) {
        // It has ended, or its context has. The others' may have, too; a new one says what is the
        // matter, if anything is.
        spdlog::warn("session {}: a spare worker was of no use: {}", session_id,
                     started.error().to_string());
        Workers others;
        {
            const MutexLock lock(mutex_);
            const auto first = std::stable_partition(
                spares_.begin(), spares_.end(),
                [device](const auto& one) { return one->device_number() != device; });
            others.assign(std::make_move_iterator(first), std::make_move_iterator(spares_.end()));
            spares_.erase(first, spares_.end());
        }
        discard(others);
        return launch_new(session_id, part, device, quota_bytes, std::move(handlers));
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
