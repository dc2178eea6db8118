// gantryd: the supervisor of a GPU host. Options, logging, signals; the rest is in the registry.
//
// Signals: SIGTERM and SIGINT end it. SIGHUP has the configuration read again: the log's level and
// file become those named now (a file that was rotated away is let go); every other key waits for
// the next start. A service manager that asks for it (NOTIFY_SOCKET) is told when gantryd serves.
//
// Exit status: 0 asked to end (workers keep running), 1 could not start (the reason is on standard
// error), 2 wrong usage, 70 a write to disk could not be proven (start again: it reads the disk).
#include <fmt/format.h>
#include <signal.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/dist_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <sstream>

#include "host-daemon/supervisor/api/metrics.h"
#include "host-daemon/supervisor/api/operator_service.h"
#include "host-daemon/supervisor/checks/host_checks.h"
#include "host-daemon/supervisor/config/file_modes.h"
#include "host-daemon/supervisor/config/task_limit.h"
#include "host-daemon/supervisor/config/version.h"
#include "host-daemon/supervisor/registry/registry.h"
#include "migration/cli/usage_error.h"
#include "proto/base/settings.h"
#include "proto/base/standard_output.h"
#include "proto/base/unless_exhausted.h"

namespace gantry::supervisor {
namespace {

struct Options {
    std::string config_path = "/etc/gantry/gantryd.toml";
    std::string log_level;
    bool has_config = false;  ///< Named by whoever started it.
    bool check_only = false;
    bool print_config = false;
    bool validate = false;
    bool json = false;
    std::string root;  ///< Of the host that is looked at; tests.
};

/// Where log lines go. Its only part is exchanged while others log.
using LogSink = std::shared_ptr<spdlog::sinks::dist_sink_mt>;

/// Opens what `config` names, anew, and logs there from now on.
Result<void> apply_log_settings(const DaemonConfig& config, const LogSink& sink) {
    spdlog::sink_ptr opened;
    try {  // spdlog throws when the file cannot be opened
        if (config.log_file.empty()) {
            opened = std::make_shared<spdlog::sinks::stderr_sink_mt>();
        } else {
            opened = std::make_shared<spdlog::sinks::basic_file_sink_mt>(config.log_file);
        }
    } catch (const spdlog::spdlog_ex& error) {
        return Error{Code::kPermissionDenied, "log.file",
                     "cannot log to " + config.log_file + ": " + error.what()};
    }
    opened->set_pattern("%Y-%m-%d %H:%M:%S.%e %l %v");
    sink->set_sinks({std::move(opened)});
    spdlog::set_level(spdlog::level::from_str(config.log_level));
    return {};
}

Result<LogSink> start_logging(const DaemonConfig& config) {
    auto sink = std::make_shared<spdlog::sinks::dist_sink_mt>();
    auto logger = std::make_shared<spdlog::logger>("gantryd", sink);
    logger->flush_on(spdlog::level::info);
    spdlog::set_default_logger(std::move(logger));
    GANTRY_TRY(apply_log_settings(config, sink));
    return sink;
}

/// Each worker costs a few descriptors here; the default limit of 1024 is soon reached.
void raise_descriptor_limit() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        ::setrlimit(RLIMIT_NOFILE, &limit);
    }
}

Result<Config> read_config(const Options& options) {
    // Where nothing is configured yet, the defaults are what to begin with.
    const bool wants_defaults = options.print_config && !options.has_config &&
                                ::access(options.config_path.c_str(), F_OK) != 0 && errno == ENOENT;
    auto config = wants_defaults ? Config{} : load_config(options.config_path);
    if (config && !options.log_level.empty()) {
        config->daemon.log_level = options.log_level;
    }
    return config;
}

/// What SIGHUP asks for. A configuration with a mistake changes nothing.
void reload(const Options& options, const Config& started_with, const LogSink& sink) {
    auto config = read_config(options);
    if (!config) {
        spdlog::error("SIGHUP: nothing is changed: {} [{}]", config.error().text,
                      config.error().reason);
        return;
    }
    if (const auto applied = apply_log_settings(config->daemon, sink); !applied) {
        spdlog::error("SIGHUP: {} [{}]", applied.error().text, applied.error().reason);
        return;
    }
    spdlog::info("SIGHUP: the log is opened anew, its level is {}", config->daemon.log_level);
    config->daemon.log_level = started_with.daemon.log_level;
    config->daemon.log_file = started_with.daemon.log_file;
    if (print_config(*config) != print_config(started_with)) {
        spdlog::warn("SIGHUP: {} has other changes, which take a restart of gantryd",
                     options.config_path);
    }
}

/// Returns with the signal that ends gantryd.
int wait_for_end(const Options& options, const Config& config, const LogSink& sink,
                 const sigset_t& signals) {
    for (;;) {
        int signal_number = 0;
        ::sigwait(&signals, &signal_number);
        if (signal_number != SIGHUP) {
            return signal_number;
        }
        ::sd_notify(0, "RELOADING=1");
        reload(options, config, sink);
        ::sd_notify(0, "READY=1");
    }
}

Result<void> serve(const Options& options, const Config& config, const sigset_t& signals) {
    GANTRY_ASSIGN(const LogSink sink, start_logging(config.daemon));
    if (const auto safe = check_modes(config, options.config_path); !safe) {
        spdlog::warn("{}", safe.error().to_string());
    }
    if (const auto fits = check_tasks(config, find_task_limit()); !fits) {
        spdlog::warn("{}", fits.error().to_string());  // who comes above it is refused
    }
    GANTRY_ASSIGN(EpochStore store, EpochStore::open(config.daemon.state_directory));
    const std::unique_ptr<Hypervisor> hypervisor =
        config.vm.libvirt_uri.empty() ? make_no_hypervisor()
                                      : make_libvirt_hypervisor(config.vm.libvirt_uri);
    Registry registry(config, store, *hypervisor);
    std::optional<transport::TlsMaterial> tls;
    if (!config.peer.listen.empty()) {
        GANTRY_ASSIGN(tls, transport::load_tls(
                               {config.peer.authority, config.peer.certificate, config.peer.key}));
    }
    registry.set_tls(tls);
    GANTRY_TRY(registry.start());

    std::unique_ptr<transport::PeerServer> peers;
    if (tls) {
        GANTRY_ASSIGN(peers, transport::PeerServer::start(config.peer.listen, *tls,
                                                          {config.daemon.host_name, kGantryVersion},
                                                          registry, config.peer.allow));
        spdlog::info("listening for other hosts on {}", config.peer.listen);
    }
    GANTRY_ASSIGN(const auto operators, OperatorService::start(config.operator_, registry));
    std::unique_ptr<GuestListener> guests;
    if (!config.guest.socket.empty()) {
        GANTRY_ASSIGN(guests,
                      GuestListener::start(
                          config.guest,
                          [&](GuestRequest request, GuestLink link) {
                              return registry.open_local(std::move(request), std::move(link));
                          },
                          {[&](const MirrorName& name) { return registry.resume_guest(name); },
                           [&](const wire::VmAttachRequest& request) {
                               return registry.attach_vm(request);
                           }}));
    }
    std::unique_ptr<Metrics> metrics;
    if (!config.metrics.listen.empty()) {
        GANTRY_ASSIGN(metrics, Metrics::start(config.metrics.listen, registry));
    }
    spdlog::info("gantryd {} is ready", kGantryVersion);
    ::sd_notify(0, "READY=1");
    const int signal_number = wait_for_end(options, config, sink, signals);
    ::sd_notify(0, "STOPPING=1");
    spdlog::info("signal {}: ending; workers keep running", signal_number);
    registry.end_waits();
    guests.reset();
    registry.stop();
    return {};
}

int fail(const Error& error) {
    std::fprintf(stderr, "gantryd: %s [%s]\n", error.text.c_str(), error.reason.c_str());
    return 1;
}

/// Prints it; returns the exit status.
int print(const std::string& text) {
    const auto written = write_standard_output(text);
    return written ? 0 : fail(written.error());
}

int validate(const Options& options) {
    const auto config = read_config(options);
    const CheckList list =
        config ? check_host(*config, {options.config_path, options.root}, Depth::kHost)
               : unreadable_config(config.error(), options.config_path);
    const int printed = print(options.json ? list.json() : list.text());
    return printed != 0 || list.is_fit() ? printed : 1;
}

/// The part of the same that needs no context on a GPU and no libvirt, said shortly.
int check(const Options& options, const Config& config) {
    const CheckList list =
        check_host(config, {options.config_path, options.root}, Depth::kConfiguration);
    if (const auto found = list.result(); !found) {
        return fail({found.error().code, found.error().reason,
                     options.config_path + ": " + found.error().text});
    }
    std::string text = options.config_path + ": no mistake found\n";
    for (const Check& one : list.all()) {
        if (one.verdict == Verdict::kWarning) {
            text += fmt::format("warning: {} [{}]\n", one.text, one.reason);
        } else if (one.name == "GPU" && one.verdict == Verdict::kOk) {
            text += "GPU " + one.text + "\n";
        }
    }
    return print(text);
}

int run(const Options& options) {
    char problem[300];
    if (!check_setting_names(environ, problem, sizeof(problem))) {
        std::fprintf(stderr, "gantryd: %s [gantryd.settings]\n", problem);
        return 1;
    }
    if (options.validate) {
        return validate(options);
    }
    const auto config = read_config(options);
    if (!config) {
        return fail(config.error());
    }
    if (options.print_config) {
        return print(print_config(*config));
    }
    if (options.check_only) {
        return check(options, *config);
    }
    transport::require_tls13();
    // Before any thread is made, so that all of them leave these signals to sigwait.
    sigset_t signals;
    ::sigemptyset(&signals);
    ::sigaddset(&signals, SIGTERM);
    ::sigaddset(&signals, SIGINT);
    ::sigaddset(&signals, SIGHUP);
    ::sigprocmask(SIG_BLOCK, &signals, nullptr);
    ::signal(SIGPIPE, SIG_IGN);
    ::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of its writer, not our end
    raise_descriptor_limit();
    const auto served = unless_exhausted([&] { return serve(options, *config, signals); });
    const Result<void> outcome = served ? *served : Result<void>(served.error());
    return outcome ? 0 : fail(outcome.error());
}

}  // namespace
}  // namespace gantry::supervisor

int main(int argc, char** argv) {
    gantry::supervisor::Options options;
    CLI::App app{
        "Supervisor of a GPU host: serves VMs and programs through workers, and moves "
        "their GPU state when libvirt moves the VM."};
    const CLI::Option* config =
        app.add_option("--config", options.config_path, "configuration file")
            ->capture_default_str();
    app.add_option("--log-level", options.log_level, "instead of daemon.log_level")
        ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error"}));
    app.add_flag("--check", options.check_only,
                 "check the configuration and that this host has what it names, and end");
    app.add_flag("--validate", options.validate,
                 "check all that this host needs, GPU, libvirt and kernel too, and end; "
                 "`gantry validate`");
    app.add_flag("--json", options.json, "print what --validate finds as JSON");
    app.add_option("--root", options.root)->group("");
    app.add_flag("--print-config", options.print_config,
                 "print the effective configuration with explanations and end");
    app.set_version_flag("--version", std::string("gantryd ") + gantry::supervisor::kGantryVersion);
    try {  // CLI11 reports wrong usage by throwing
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() != 0) {
            gantry::supervisor::fail(gantry::cli::usage_error("gantryd", app, error));
            return 2;
        }
        std::ostringstream text;
        app.exit(error, text);
        return gantry::supervisor::print(text.str());
    }
    options.has_config = config->count() != 0;
    return gantry::supervisor::run(options);
}
