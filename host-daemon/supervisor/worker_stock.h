// WorkerStock: where a gantryd's workers come from, and the spare ones among them.
//
// A worker needs its driver's context before it can serve: a few milliseconds on the soft GPU,
// about 0.3 s on NVIDIA's. worker.spares of them make theirs before anybody asks (worker.proto:
// Warm), and a program that attaches, a session that arrives or is restored, takes one. Whoever
// finds none gets a worker of its own as before; what a spare costs is its context's memory on the
// device, and a process.
//
// A spare belongs to no session, has no record and reads no guest's byte. It ends with its
// connection, so that nothing is left behind when gantryd ends, however it does. A place that has
// become free is filled kRefillAfter later: whoever took the spare has work to do first.
// Threads: any. Failure: launch() as Worker::launch(); a spare that cannot be made is logged and
// tried again when the next is due.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "host-daemon/supervisor/config.h"
#include "host-daemon/supervisor/strand.h"
#include "host-daemon/supervisor/worker.h"

namespace gantry::supervisor {

class WorkerStock {
public:
    explicit WorkerStock(const Config& config);
    ~WorkerStock() { stop(); }
    WorkerStock(const WorkerStock&) = delete;
    WorkerStock& operator=(const WorkerStock&) = delete;

    /// From now on there are spares. Once.
    void fill();
    /// A spare that is ready, or a new one: as Worker::launch().
    Result<std::shared_ptr<Worker>> launch(const std::string& session_id, engine::PartId part,
                                           std::uint64_t quota_bytes, WorkerHandlers handlers);
    [[nodiscard]] std::vector<pid_t> spares() const;
    /// Ends the spares. There are none afterwards.
    void stop();

private:
    std::shared_ptr<Worker> take();
    void refill();
    void refill_later();

    const Config& config_;
    mutable std::mutex mutex_;
    std::vector<std::shared_ptr<Worker>> spares_;
    bool is_kept_ = false;  ///< fill() was called, stop() not.
    Strand strand_;
};

}  // namespace gantry::supervisor
