// How many tasks (threads and processes) the system lets this gantryd and its workers have, against
// what the configuration may make of them.
//
// The least of pids.max of its cgroup and those above it, version 1 or 2, and RLIMIT_NPROC, which
// does not hold for root. Asked at the start and by `gantryd --check`, which sees the limits of the
// shell that it runs in. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "host-daemon/supervisor/config/config.h"
#include "proto/base/result.h"

namespace gantry::supervisor {

struct TaskLimit {
    std::uint64_t tasks = 0;
    std::string from;  ///< "pids.max of /system.slice/gantryd.service", "RLIMIT_NPROC".
};

/// Where a test keeps what the kernel tells otherwise.
struct TaskLimitSources {
    std::string own_cgroups = "/proc/self/cgroup";
    std::string cgroup_root = "/sys/fs/cgroup";
    std::optional<std::uint64_t> processes_max;  ///< RLIMIT_NPROC's; nothing: asked.
};

/// Nothing: there is no limit.
std::optional<TaskLimit> find_task_limit(const TaskLimitSources& sources = {});
/// `guest.tasks` where guest.sessions_max programs cannot be served at a time.
Result<void> check_tasks(const Config& config, const std::optional<TaskLimit>& limit);

}  // namespace gantry::supervisor
