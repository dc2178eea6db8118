// gantry-worker: serves one guest process under gantryd (--control-fd), or any number of local ones
// by itself (--listen).
#include <fmt/format.h>
#include <malloc.h>
#include <signal.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <string>

#include "host-daemon/execution/base/crash_log.h"
#include "host-daemon/execution/base/log.h"
#include "host-daemon/replacement/replacement.h"
#include "host-daemon/worker/service.h"
#include "host-daemon/worker/standalone.h"
#include "proto/base/settings.h"

namespace gantry::worker {
namespace {

int run_controlled(int control_fd, const ServiceOptions& options) {
    auto listener = control::PacketListener::adopt(control::UniqueFd(control_fd));
    if (!listener.ok()) {
        fmt::print(stderr, "gantry-worker: {}\n", listener.error().to_string());
        return 2;
    }
    install_last_words();
    Service service(std::move(listener).value(), options);
    return service.run();
}

/// Empty when it is STEP:old or STEP:fresh, as CLI11 wants it.
std::string check_kill_at(const std::string& value) {
    std::string steps;
    for (const replacement::Step step : replacement::kSteps) {
        for (const char* whom : {"old", "fresh"}) {
            const std::string known = std::string(replacement::to_string(step)) + ":" + whom;
            if (value == known) {
                return {};
            }
            steps += (steps.empty() ? "" : ", ") + known;
        }
    }
    return "'" + value + "' is none of " + steps;
}

int run(int argc, char** argv) {
    CLI::App app{"Executes the CUDA calls of a guest process on this host's GPU."};
    int control_fd = -1;
    StandaloneOptions standalone;
    ServiceOptions service;
    auto* control = app.add_option("--control-fd", control_fd,
                                   "Listening socket that gantryd connects to (inherited)");
    auto* listen =
        app.add_option("--listen", standalone.socket_path,
                       "Serve local guest processes on this unix socket, without gantryd");
    control->excludes(listen);
    app.add_option("--driver", standalone.driver,
                   "CUDA driver: path of libcuda.so.1 or libcuda-soft.so.1")
        ->capture_default_str();
    app.add_option("--profile", standalone.profile, "Profile of the soft GPU");
    app.add_option("--device", standalone.device, "Device number of the driver")
        ->capture_default_str();
    app.add_option("--memory-mib", standalone.memory_mib,
                   "Device memory quota of each guest process, MiB; 0: what the device has")
        ->check(CLI::Range(0, 1 << 24))
        ->capture_default_str();
    app.add_option("--region-mib", standalone.region_mib,
                   "Memory that each guest process shares with its worker, MiB: its page-locked "
                   "and managed memory lies there. Takes what is used of it")
        ->check(CLI::Range(8, 65536))
        ->capture_default_str();
    app.add_option("--spin-us", service.spin_us,
                   "How long an idle worker looks for commands before it sleeps")
        ->capture_default_str();
    bool single_launches = false;
    app.add_flag("--single-launches", single_launches,
                 "With --listen: launches go to the driver one by one, never together");
    bool no_seccomp = false;
    app.add_flag("--no-seccomp", no_seccomp, "Serve without the system call filter");
    app.add_option("--replace", standalone.replace,
                   "Ask the worker that listens on this socket to move all its guests into fresh "
                   "worker processes, then exit");
    app.add_option("--to-device", standalone.to_device,
                   "With --replace: the device of the fresh workers, if not the same");
    app.add_flag("--copy", standalone.copy,
                 "With --replace: copy device memory instead of handing it over");
    app.add_flag("--staged", standalone.staged,
                 "With --replace: copy device memory by way of the host's, also where one device "
                 "could read the other's");
    app.add_option("--rehearse", standalone.rehearsals,
                   "With --replace and a copy: move nothing; do each part of what is done while "
                   "the guest runs so many times, and report when each was done")
        ->check(CLI::Range(0, 100));
    app.add_option("--kill-at", standalone.kill_at,
                   "For tests, with --listen: STEP:old or STEP:fresh, the worker to kill when a "
                   "replacement comes to this step")
        ->check(check_kill_at);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : 2;  // As the other programs; 0: help.
    }
    char problem[300];
    if (!check_setting_names(environ, problem, sizeof(problem))) {
        fmt::print(stderr, "gantry-worker: {} [worker.settings]\n", problem);
        return 2;
    }
    // One heap, grown by brk: mappings made at other moments than in the worker that this one
    // replaces would change the addresses that NVIDIA's driver picks (channel_memory.cc).
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_MMAP_MAX, 0);
    standalone.seccomp = !no_seccomp;
    standalone.spin_us = service.spin_us;
    standalone.batches_launches = !single_launches;
    signal(SIGPIPE, SIG_IGN);
    if (!standalone.replace.empty()) {
        const Copy copy = standalone.staged ? Copy::kStaged
                          : standalone.copy ? Copy::kPeer
                                            : Copy::kNo;
        return ask_replace(standalone.replace, standalone.to_device, copy, standalone.rehearsals);
    }
    if (control_fd >= 0) {
        return run_controlled(control_fd, service);
    }
    if (!standalone.socket_path.empty()) {
        return run_standalone(standalone);
    }
    fmt::print(stderr, "gantry-worker: give --listen PATH, or --control-fd as gantryd does\n");
    return 2;
}

}  // namespace
}  // namespace gantry::worker

int main(int argc, char** argv) { return gantry::worker::run(argc, argv); }
