// WorkerStock: where a gantryd's workers come from, and the spare ones among them.
//
// A worker needs its driver's context before it can serve: a few milliseconds on the soft GPU,
// about 0.3 s on NVIDIA's. On each GPU that is served worker.spares of them make theirs before
// anybody asks (worker.proto: Warm), and a program that attaches, a session that arrives or is
// restored, takes one. While sessions are suspended there is one more for each, since that is who
// will ask; kAwaitedMax of them at most, and none with worker.await_restore off. Whoever finds none
// gets a worker of its own as before, and waits for one that is being made, as its own would come
// no sooner. What a spare costs is its context's memory on the device, and a process.
//
// A spare belongs to no session, has no record and reads no guest's byte. It ends with its
// connection, so that nothing is left behind when gantryd ends, however it does. A place that has
// become free is filled a second later: whoever took the spare has work to do first. Dead ones are
// looked for now and then, and replaced.
// Threads: any. Failure: launch() as Worker::launch(); a spare that cannot be made is logged, and
// tried again a minute later.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "host-daemon/supervisor/config/config.h"
#include "host-daemon/supervisor/workers/worker.h"
#include "proto/base/mutex.h"
#include "proto/base/serial_executor.h"

namespace gantry::supervisor {

/// Where a worker's driver has its own memory. Usual: where every other worker's has it, so that
/// module variables lie at the same addresses by themselves. Scattered: anywhere, so that what lies
/// there in a usual one is free.
enum class Addresses { kUsual, kScattered };

/// A worker's reason when something else lies where module variables must: another may have room.
inline constexpr std::string_view kVariablesNotNow = "module.globals.not_now";

class WorkerStock {
public:
    static constexpr std::size_t kAwaitedMax = 4;

    /// By GPU that is served: how many workers will be asked for.
    using Awaited = std::map<DeviceNumber, std::size_t>;
    /// `awaited` is called without any lock.
    WorkerStock(const Config& config, std::function<Awaited()> awaited);
    ~WorkerStock() { stop(); }
    WorkerStock(const WorkerStock&) = delete;
    WorkerStock& operator=(const WorkerStock&) = delete;

    /// From now on there are spares. Once.
    void fill();
    /// What is awaited has changed. It is also asked now and then.
    void look() { look_again(std::chrono::milliseconds{0}); }
    /// A spare that is ready on the device, or a new one: as Worker::launch(). Spares are as usual.
    Result<std::shared_ptr<Worker>> launch(const std::string& session_id, engine::PartId part,
                                           DeviceNumber device, std::uint64_t quota_bytes,
                                           WorkerHandlers handlers,
                                           Addresses addresses = Addresses::kUsual);
    /// How an attempt to take a session in has ended: where its variables' places were taken in a
    /// usual worker, the next attempt is scattered. Null: well.
    void note_attempt(const std::string& session_id, const Error* error);
    /// A new one.
    Result<std::shared_ptr<Worker>> launch_new(const std::string& session_id, engine::PartId part,
                                               DeviceNumber device, std::uint64_t quota_bytes,
                                               WorkerHandlers handlers,
                                               Addresses addresses = Addresses::kUsual) const;
    /// Ends the spares, also one that is being made. There are none afterwards.
    void stop();

private:
    using Workers = std::vector<std::shared_ptr<Worker>>;
    std::shared_ptr<Worker> take(DeviceNumber device);
    Addresses addresses_for(const std::string& session_id, Addresses wanted);
    Awaited wanted_counts();
    void refill();
    bool make_one(DeviceNumber device);
    [[nodiscard]] bool has_spare(DeviceNumber device) const GANTRY_REQUIRES(mutex_);
    [[nodiscard]] Config config_on(DeviceNumber device) const;
    void look_again(std::chrono::milliseconds after);

    const Config& config_;
    const std::function<Awaited()> awaited_;
    Mutex mutex_;
    CondVar made_;
    Workers spares_ GANTRY_GUARDED_BY(mutex_);
    std::shared_ptr<Worker> making_ GANTRY_GUARDED_BY(mutex_);  ///< Its context.
    /// Sessions whose next worker is to be scattered.
    std::set<std::string> scattered_ GANTRY_GUARDED_BY(mutex_);
    bool is_kept_ GANTRY_GUARDED_BY(mutex_) = false;        ///< fill() was called, stop() not.
    std::optional<SerialExecutor::Clock::time_point> due_;  ///< On executor_ only.
    SerialExecutor executor_;
};

}  // namespace gantry::supervisor
