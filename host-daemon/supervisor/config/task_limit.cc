#include "host-daemon/supervisor/config/task_limit.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

namespace gantry::supervisor {
namespace {

/// gantryd's own, those of gRPC, libvirt and the AttachQueue included.
constexpr std::uint64_t kOwnTasks = 64;
/// Of a program that does little: three of gantryd's, and its worker's. One that waits for its GPU
/// by many threads takes up to 64 more.
constexpr std::uint64_t kTasksOfAProgram = 8;

void lower(std::optional<TaskLimit>& limit, std::uint64_t tasks, const std::string& from) {
    if (!limit || tasks < limit->tasks) {
        limit = TaskLimit{tasks, from};
    }
}

/// Of a cgroup and those above it. Where there is none, or it says "max", it bounds nothing.
void lower_by_cgroup(std::optional<TaskLimit>& limit, const std::string& root, std::string cgroup) {
    for (;;) {
        std::ifstream file(root + cgroup + "/pids.max");
        if (std::uint64_t tasks = 0; file >> tasks) {
            lower(limit, tasks, "pids.max of " + (cgroup.empty() ? "/" : cgroup));
        }
        if (cgroup.empty()) {
            return;
        }
        cgroup.resize(cgroup.rfind('/'));
    }
}

}  // namespace

std::optional<TaskLimit> find_task_limit(const TaskLimitSources& sources) {
    std::optional<TaskLimit> limit;
    std::ifstream own(sources.own_cgroups);
    for (std::string line; std::getline(own, line);) {  // "0::/PATH", or "8:pids:/PATH"
        const std::size_t first = line.find(':');
        const std::size_t second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos ||
            line.substr(second + 1, 1) != "/") {
            continue;
        }
        const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
        std::string cgroup = line.substr(second + 1);
        cgroup = cgroup == "/" ? "" : cgroup;
        if (controllers == ",,") {
            lower_by_cgroup(limit, sources.cgroup_root, cgroup);
        } else if (controllers.find(",pids,") != std::string::npos) {
            lower_by_cgroup(limit, sources.cgroup_root + "/pids", cgroup);
        }
    }
    rlimit processes{RLIM_INFINITY, RLIM_INFINITY};
    if (sources.processes_max) {
        processes.rlim_cur = *sources.processes_max;
    } else if (::geteuid() != 0) {
        ::getrlimit(RLIMIT_NPROC, &processes);
    }
    if (processes.rlim_cur != RLIM_INFINITY) {
        lower(limit, processes.rlim_cur, "RLIMIT_NPROC");
    }
    return limit;
}

Result<void> check_tasks(const Config& config, const std::optional<TaskLimit>& limit) {
    if (config.guest.socket.empty() || !limit) {
        return {};
    }
    const auto programs = static_cast<std::uint64_t>(config.guest.sessions_max);
    const std::uint64_t wanted = kOwnTasks + programs * kTasksOfAProgram;
    if (wanted <= limit->tasks) {
        return {};
    }
    return Error{Code::kFailedPrecondition, "guest.tasks",
                 fmt::format("guest.sessions_max is {}, which takes {} tasks and more, and {} is "
                             "{}; raise that (TasksMax of the service), or lower the key",
                             programs, wanted, limit->from, limit->tasks)};
}

}  // namespace gantry::supervisor
