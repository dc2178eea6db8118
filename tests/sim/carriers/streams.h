// Streams: the bulk streams of a migration, as gRPC's are: each in order, and whole until it
// breaks. The queue at the source is gantryd's BulkQueue; what gRPC does is played.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host-daemon/supervisor/moves/target_runner.h"
#include "tests/sim/carriers/runtime.h"

namespace gantry::sim {

class Streams {
public:
    using QueueOf = std::function<std::shared_ptr<supervisor::BulkQueue>(
        int source, engine::MigrationId migration, const std::string& peer)>;
    using TargetOf = std::function<std::shared_ptr<supervisor::TargetRunner>(int target)>;

    Streams(World& world, std::array<SimRuntime*, 2> runtimes, QueueOf queue_of, TargetOf target_of)
        : world_(world),
          runtimes_(runtimes),
          queue_of_(std::move(queue_of)),
          target_of_(std::move(target_of)) {}

    /// The target opens them, in place of those that it had.
    void open(int target, engine::MigrationId migration);
    /// The source may have something to send.
    void pump(int source);
    /// gantryd of that host has died.
    void die(int host);

private:
    struct Stream {
        int target = 0;
        engine::MigrationId migration;
        std::shared_ptr<supervisor::BulkQueue> queue;  ///< nullptr: it is being dialled.
        std::uint64_t id = 0;
        std::uint64_t life = 0;  ///< Counted up when it breaks.
        bool is_closed = false;  ///< By its target: it is not dialled again.
        bool has_carried = false;
        bool is_read = false;
        int under_way = 0;
        TimePoint last_arrival{};
        std::deque<std::shared_ptr<const control::BulkDown>> arrived;
        Duration redial{100'000};
    };
    using Shared = std::shared_ptr<Stream>;

    void dial(const Shared& stream);
    void dial_later(const Shared& stream);
    void pump_one(const Shared& stream);
    void arrive(const Shared& stream, std::shared_ptr<const control::BulkDown> batch);
    void read(const Shared& stream);
    void acknowledge(const Shared& stream, const control::BulkDown& batch);
    void break_off(const Shared& stream);
    void close(int target);
    Duration flight();

    World& world_;
    const std::array<SimRuntime*, 2> runtimes_;
    const QueueOf queue_of_;
    const TargetOf target_of_;
    std::array<std::vector<Shared>, 2> streams_;  ///< By target.
};

}  // namespace gantry::sim
