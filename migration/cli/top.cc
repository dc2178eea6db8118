#include "migration/cli/top.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "migration/cli/print.h"

namespace gantry::cli {
namespace {

constexpr std::size_t kBarWidth = 36;

struct Program {
    const control::SessionStatus* session = nullptr;
    const control::WorkerInfo* worker = nullptr;
    std::optional<double> calls;     ///< A second.
    std::optional<double> launches;  ///< A second.
};

const control::WorkerInfo* find_worker(const control::ListSessionsReply& reply,
                                       const std::string& session, std::uint64_t part) {
    for (const control::SessionStatus& one : reply.sessions()) {
        if (one.session_id() == session) {
            for (const control::WorkerInfo& worker : one.workers()) {
                if (worker.part_id() == part) {
                    return &worker;
                }
            }
        }
    }
    return nullptr;
}

std::vector<Program> programs_of(const TopReadings& readings) {
    std::vector<Program> out;
    for (const control::SessionStatus& session : readings.now.sessions()) {
        for (const control::WorkerInfo& worker : session.workers()) {
            Program program{&session, &worker, {}, {}};
            const auto* before =
                find_worker(readings.before, session.session_id(), worker.part_id());
            const bool is_same = before != nullptr && before->pid() == worker.pid() &&
                                 before->commands_executed() <= worker.commands_executed() &&
                                 before->kernel_launches() <= worker.kernel_launches();
            if (is_same && readings.seconds > 0.0) {
                const auto rate = [&](std::uint64_t then, std::uint64_t now) {
                    return static_cast<double>(now - then) / readings.seconds;
                };
                program.calls = rate(before->commands_executed(), worker.commands_executed());
                program.launches = rate(before->kernel_launches(), worker.kernel_launches());
            }
            out.push_back(program);
        }
    }
    return out;
}

std::string owner_of(const control::SessionStatus& session) {
    return session.vm_name().empty() ? session.session_id() : session.vm_name();
}

std::string rate_of(const std::optional<double>& rate) {
    return !rate             ? "-"
           : *rate < 1000.0  ? fmt::format("{:.0f}", *rate)
           : *rate < 1000000 ? fmt::format("{:.1f}k", *rate / 1e3)
                             : fmt::format("{:.1f}M", *rate / 1e6);
}

bool is_under_way(const control::SessionStatus& session) {
    return session.has_move() && session.move().outcome().empty();
}

}  // namespace

namespace {

std::string memory_bar(const std::string& name, std::uint64_t used, std::uint64_t all,
                       std::uint64_t promised) {
    const double share = all == 0 ? 0.0 : static_cast<double>(used) / static_cast<double>(all);
    const auto filled =
        static_cast<std::size_t>(std::clamp(share, 0.0, 1.0) * static_cast<double>(kBarWidth));
    return fmt::format("{}  [{}{}]  {} of {} used, {} promised", name, std::string(filled, '#'),
                       std::string(kBarWidth - filled, '-'), bytes_text(used), bytes_text(all),
                       bytes_text(promised));
}

}  // namespace

std::string top_text(const TopReadings& readings) {
    const control::ListSessionsReply& now = readings.now;
    const std::vector<Program> programs = programs_of(readings);
    const auto vms =
        std::count_if(now.sessions().begin(), now.sessions().end(),
                      [](const control::SessionStatus& one) { return !one.vm_name().empty(); });
    const std::string device = now.gpus_size() > 1    ? fmt::format("{} GPUs", now.gpus_size())
                               : now.device().empty() ? "no usable device"
                                                      : now.device();
    std::string out = fmt::format("gantry top  {}  {}  {} VMs, {} sessions, {} programs\n",
                                  now.host(), device, vms, now.sessions_size(), programs.size());
    if (now.gpus_size() > 1) {
        for (const control::GpuStatus& gpu : now.gpus()) {
            out += memory_bar(fmt::format("GPU {}     ", gpu.device()), gpu.memory_used_bytes(),
                              gpu.memory_bytes(), gpu.memory_promised_bytes()) +
                   fmt::format("  {}\n", gpu.name().empty() ? "cannot be used" : gpu.name());
        }
    } else {
        out += memory_bar("GPU memory", used_bytes(now), now.memory_bytes(),
                          now.memory_promised_bytes()) +
               "\n";
    }
    out += "\n";
    const bool has_gpus = now.gpus_size() > 1;
    const auto gpu_of = [has_gpus](const std::string& number) {
        return has_gpus ? fmt::format("{:>3} ", number) : "";
    };
    out +=
        fmt::format("{:<14} {:<16} {:>7} {}{:>10} {:>9} {:>7} {:>8} {}\n", "VM", "program", "pid",
                    gpu_of("GPU"), "GPU memory", "launch/s", "call/s", "refused", "state");
    for (const Program& one : programs) {
        const control::WorkerInfo& worker = *one.worker;
        out += fmt::format("{:<14.14} {:<16.16} {:>7} {}{:>10} {:>9} {:>7} {:>8} {}\n",
                           owner_of(*one.session), worker.process_name(), worker.guest_pid(),
                           gpu_of(std::to_string(worker.device())),
                           bytes_text(worker.device_memory_bytes()), rate_of(one.launches),
                           rate_of(one.calls), worker.refused_commands(), worker.state());
    }
    for (const control::SessionStatus& session : now.sessions()) {
        if (is_under_way(session)) {
            out += "\n" + watch_line(session) + "\n";
        }
        for (const std::string& alert : session.alerts()) {
            out += fmt::format("! {}: {}\n", owner_of(session), alert);
        }
    }
    return out;
}

nlohmann::ordered_json top_json(const TopReadings& readings) {
    const control::ListSessionsReply& now = readings.now;
    nlohmann::ordered_json out{{"host", now.host()},
                               {"device", now.device()},
                               {"memory_bytes", now.memory_bytes()},
                               {"memory_used_bytes", used_bytes(now)},
                               {"memory_promised_bytes", now.memory_promised_bytes()},
                               {"gpus", nlohmann::ordered_json::array()},
                               {"programs", nlohmann::ordered_json::array()},
                               {"moves", nlohmann::ordered_json::array()}};
    const auto rate = [](const std::optional<double>& value) {
        return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
    };
    for (const control::GpuStatus& gpu : now.gpus()) {
        out["gpus"].push_back(nlohmann::ordered_json::parse(to_json(gpu, false)));
    }
    for (const Program& one : programs_of(readings)) {
        const control::WorkerInfo& worker = *one.worker;
        out["programs"].push_back({{"session_id", one.session->session_id()},
                                   {"vm_name", one.session->vm_name()},
                                   {"process_name", worker.process_name()},
                                   {"guest_pid", worker.guest_pid()},
                                   {"gpu", worker.device()},
                                   {"state", worker.state()},
                                   {"device_memory_bytes", worker.device_memory_bytes()},
                                   {"pinned_memory_bytes", worker.pinned_memory_bytes()},
                                   {"launches_per_second", rate(one.launches)},
                                   {"calls_per_second", rate(one.calls)},
                                   {"refused_commands", worker.refused_commands()}});
    }
    for (const control::SessionStatus& session : now.sessions()) {
        if (is_under_way(session)) {
            out["moves"].push_back(
                {{"session_id", session.session_id()},
                 {"vm_name", session.vm_name()},
                 {"move", nlohmann::ordered_json::parse(to_json(session.move(), false))}});
        }
    }
    return out;
}

}  // namespace gantry::cli
