#include "host-daemon/supervisor/worker_stock.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <utility>

namespace gantry::supervisor {
namespace {

/// A context that is made holds up the driver's other work.
constexpr std::chrono::seconds kRefillAfter{1};

}  // namespace

WorkerStock::WorkerStock(const Config& config) : config_(config), strand_([this] { refill(); }) {}

void WorkerStock::fill() {
    {
        const std::lock_guard lock(mutex_);
        is_kept_ = true;
    }
    strand_.post([this] { refill(); });
}

void WorkerStock::refill() {
    strand_.set_timer(std::nullopt);
    const auto wanted = static_cast<std::size_t>(config_.worker.spares);
    for (;;) {
        {
            const std::lock_guard lock(mutex_);
            std::erase_if(spares_, [](const auto& spare) { return !spare->alive(); });
            if (!is_kept_ || spares_.size() >= wanted) {
                return;
            }
        }
        auto made = Worker::warm(config_);
        if (!made) {
            spdlog::warn("no spare worker: {}", made.error().to_string());
            return;
        }
        const std::lock_guard lock(mutex_);
        spares_.push_back(std::move(*made));
    }
}

void WorkerStock::refill_later() {
    strand_.post([this] { strand_.set_timer(Strand::Clock::now() + kRefillAfter); });
}

std::shared_ptr<Worker> WorkerStock::take() {
    const std::lock_guard lock(mutex_);
    while (is_kept_ && !spares_.empty()) {
        std::shared_ptr<Worker> spare = std::move(spares_.back());
        spares_.pop_back();
        if (spare->alive()) {
            return spare;
        }
    }
    return nullptr;
}

Result<std::shared_ptr<Worker>> WorkerStock::launch(const std::string& session_id,
                                                    engine::PartId part,
                                                    std::uint64_t quota_bytes,
                                                    WorkerHandlers handlers) {
    if (config_.worker.spares == 0) {
        return Worker::launch(config_, session_id, part, quota_bytes, std::move(handlers));
    }
    const auto spare = take();
    refill_later();
    if (spare == nullptr) {
        return Worker::launch(config_, session_id, part, quota_bytes, std::move(handlers));
    }
    if (auto started = spare->start(config_, session_id, part, quota_bytes, handlers); !started) {
        // It may have ended since, or its device; a new one says what is really the matter.
        spdlog::warn("session {}: a spare worker was of no use: {}", session_id,
                     started.error().to_string());
        return Worker::launch(config_, session_id, part, quota_bytes, std::move(handlers));
    }
    return spare;
}

std::vector<pid_t> WorkerStock::spares() const {
    const std::lock_guard lock(mutex_);
    std::vector<pid_t> pids;
    for (const auto& spare : spares_) {
        pids.push_back(spare->pid());
    }
    return pids;
}

void WorkerStock::stop() {
    {
        const std::lock_guard lock(mutex_);
        is_kept_ = false;
    }
    strand_.stop();
    std::vector<std::shared_ptr<Worker>> spares;
    {
        const std::lock_guard lock(mutex_);
        spares.swap(spares_);
    }
    for (const auto& spare : spares) {
        spare->end();
    }
}

}  // namespace gantry::supervisor
