// Starting, watching and ending one gantry-worker process.
//
// Invariant: a worker outlives this gantryd (own session, no parent-death signal, its control
// socket bound in the run directory), and is found again by its record. A process id is only ever
// signalled through a pidfd whose start time was compared with the record, so that a reused id is
// never hit. In the sandbox, from gantryd's side: unprivileged user without groups, no_new_privs,
// resource limits, a private /tmp, a network without interfaces, no inherited descriptors but the
// control socket; from the worker's own side: its seccomp filter (Start.sandbox). Failure: a Result
// error naming the step that failed. Threads: any. Cost: one fork, about a millisecond.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host-daemon/supervisor/config/config.h"
#include "proto/base/mutex.h"
#include "proto/base/result.h"
#include "proto/control/channel.h"

namespace gantry::supervisor {

/// What is written down about a running worker, so that the next gantryd finds it.
struct ProcessRecord {
    pid_t pid = 0;
    std::uint64_t start_time_ticks = 0;  ///< /proc/PID/stat field 22: tells a reused pid apart.
    std::string control_path;
};

/// A GPU as gantry-worker lists it.
struct ListedDevice {
    DeviceNumber number = 0;
    std::string uuid;  ///< 32 hex digits.
    std::uint32_t cc_major = 0;
    std::uint32_t cc_minor = 0;
    std::uint64_t memory_bytes = 0;
    std::string name;
};

/// Asks worker.executable which devices worker.driver has, without a context. Failure: gpu.list,
/// with what the driver says.
Result<std::vector<ListedDevice>> list_worker_devices(const WorkerConfig& config);

/// Asks worker.executable whether its device may be served (gpu.pageable_access), without a
/// context. A driver that cannot be loaded, or no such device, is no error here.
Result<void> check_worker_device(const WorkerConfig& config);

class WorkerProcess {
public:
    WorkerProcess() = default;
    WorkerProcess(WorkerProcess&&) noexcept = default;
    WorkerProcess& operator=(WorkerProcess&&) noexcept = default;

    /// Starts the program with --control-fd; `control_path` is where the socket is bound and
    /// `log_path` takes its standard output and error.
    static Result<WorkerProcess> start(const WorkerConfig& config, const std::string& control_path,
                                       const std::string& log_path);
    /// Finds a running one again; kNotFound when it has ended.
    static Result<WorkerProcess> adopt(const ProcessRecord& record);

    [[nodiscard]] const ProcessRecord& record() const { return record_; }
    [[nodiscard]] bool valid() const { return pidfd_.valid(); }
    /// nullopt: still running after `timeout`. Otherwise how it ended, in words ("exit status 0",
    /// "signal 9 (Killed): ..."); "ended" for an adopted one, whose status is init's.
    std::optional<std::string> wait(std::chrono::milliseconds timeout);
    void kill();

private:
    control::UniqueFd pidfd_;
    ProcessRecord record_;
    /// A worker's reader and who ends it may both wait. By pointer: what has one is moved about.
    std::unique_ptr<Mutex> ending_ = std::make_unique<Mutex>();
    std::optional<std::string> ended_ GANTRY_GUARDED_BY(*ending_);
};

}  // namespace gantry::supervisor
