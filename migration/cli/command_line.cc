#include "migration/cli/command_line.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "migration/cli/commands.h"
#include "migration/cli/usage_error.h"
#include "proto/base/settings.h"
#include "proto/base/standard_output.h"

namespace gantry::cli {
namespace {

constexpr char kReleased[] = "released";
constexpr char kFooter[] =
    "Exit status: 0 done; 1 refused or failed, the reason is on standard error; 2 wrong usage;\n"
    "3 no gantryd answers; 4 no such session, VM or file.";
constexpr char kCommandFooter[] =
    "The options of `gantry` itself may stand here, too: --json, --socket.";

struct Arguments {
    Context context{"/run/gantry/operator.sock", Form::kText};
    bool json = false;
    std::string session;
    std::string help_of;
    std::string config;
    std::string target;
    std::string path;
    std::string source;
    std::string handover;
    std::string cause = "-";
    std::string migration_id;
    TimelineFiles timeline;
    ProfileWish profile;
    NewAuthority authority{"."};
    NewHost host{".", "", "", {}};
    bool once = false;
    bool forever = false;
    bool wait = false;
    bool suspend = false;
    bool copy = false;
    bool staged = false;
    std::uint32_t device = 0;
    SchedChange sched;

    [[nodiscard]] MemoryWay memory_way() const {
        return staged ? MemoryWay::kStaged : copy ? MemoryWay::kPeer : MemoryWay::kBest;
    }
};

class Command {
public:
    Command(CLI::App& app, Arguments& arguments) : app_(app), arguments_(arguments) {}

    /// Adds a command that runs `action`.
    CLI::App* add(const char* name, const char* help, std::function<int()> action) {
        return add_to(app_, name, help, std::move(action));
    }
    CLI::App* add_to(CLI::App& parent, const char* name, const char* help,
                     std::function<int()> action) {
        CLI::App* command = parent.add_subcommand(name, help);
        command->fallthrough();  // --json may stand behind the command
        command->footer(kCommandFooter);
        command->callback([this, command, action = std::move(action)] {
            arguments_.context.form = arguments_.json ? Form::kJson : Form::kText;
            status = may_run(*command) ? action() : kUsage;
        });
        return command;
    }

    int status = kDone;

private:
    /// False, having said why, where the environment holds a misspelt setting. Not asked of what
    /// only lets go: libvirt's hook tells it once.
    bool may_run(const CLI::App& command) const {
        char problem[300];
        if (command.get_name() == kReleased ||
            check_setting_names(environ, problem, sizeof(problem))) {
            return true;
        }
        const Error error{Code::kInvalidArgument, "command.settings", problem};
        std::fputs((arguments_.json ? error_json(error) : error_text(error)).c_str(), stderr);
        return false;
    }

    CLI::App& app_;
    Arguments& arguments_;
};

void add_commands(Command& commands, Arguments& a) {
    const auto session = [&](CLI::App* command, bool is_required) {
        auto* option = command->add_option("session", a.session, "VM name, VM uuid or session id");
        option->required(is_required);
    };
    session(commands.add("status", "List sessions, their programs and moves under way",
                         [&] { return run_status(a.context, a.session); }),
            false);
    commands
        .add("top",
             "Follow VMs, their programs, GPU memory, calls a second and moves, once a second",
             [&] { return run_top(a.context, a.once); })
        ->add_flag("--once", a.once, "print once, after a second, and end");
    auto* preflight = commands.add("preflight", "Say whether a session could move, and why not",
                                   [&] { return run_preflight(a.context, a.session, a.target); });
    session(preflight, true);
    preflight->add_option("target", a.target,
                          "ADDRESS[:PORT] of the other host's gantryd, port 7700 if left out; "
                          "without it: this host");
    auto* watch = commands.add("watch", "Follow a move until it has ended", [&] {
        return run_watch(a.context, a.session, {!a.forever, a.wait});
    });
    session(watch, false);
    watch->add_flag("--forever", a.forever, "go on after the move has ended");
    watch->add_flag("--wait", a.wait,
                    "wait for a session that is not here, such as one that moves to this host");
    auto* timeline = commands.add(
        "timeline",
        "Show a session's last move stamp by stamp, on both hosts: libvirt's job, GPU rounds, "
        "pause, grant, first answer; printed, or as a picture",
        [&] { return run_timeline(a.context, a.session, a.migration_id, a.timeline); });
    session(timeline, true);
    timeline->add_option("--migration", a.migration_id, "id of another move than the last");
    timeline->add_option("--svg", a.timeline.svg, "file for a picture");
    timeline->add_option("--html", a.timeline.html,
                         "file for a page with the picture and every stamp; needs no network");
    timeline->add_option("--chrome", a.timeline.chrome,
                         "file for Perfetto or chrome://tracing, as JSON");
    session(commands.add("abort", "Abort a move under way; the session stays where it is",
                         [&] { return run_abort(a.context, a.session); }),
            true);
    commands
        .add("validate",
             "Check all that this host needs to serve and move sessions: configuration, "
             "certificates, GPU, driver, libvirt, hook, kernel, clock; needs no gantryd that runs",
             [&] { return run_validate(a.context, a.config); })
        ->add_option("--config", a.config, "gantryd's configuration file, if not the usual one");
    session(commands.add("force-complete",
                         "Let a move go on although its pause is longer than "
                         "migration.downtime_max_ms allows, once; at its source",
                         [&] { return run_force_complete(a.context, a.session); }),
            true);
    commands
        .add("inspect",
             "Print a session's graph of live objects as JSON, or what is in a snapshot file; "
             "that file is read whole and checked, and needs no gantryd",
             [&] { return run_inspect(a.context, a.session); })
        ->add_option("session", a.session,
                     "VM name, VM uuid or session id; or a file: what has a slash, ends in .gsnap "
                     "or is there under this name")
        ->required();
    session(
        commands.add("account", "Print a session's GPU time and launches, by program and kernel",
                     [&] { return run_account(a.context, a.session); }),
        true);
    auto* profile = commands.add(
        "profile",
        "Print where the time of a session's programs goes, by operation (NVTX range): program, "
        "shim, transport, scheduler, GPU, both, moves",
        [&] { return run_profile(a.context, a.session, a.profile); });
    session(profile, true);
    profile
        ->add_option("--level", a.profile.level,
                     "from now on: 0 nothing is noted, 1 totals, 2 also when each operation was")
        ->check(CLI::Range(0, 2));
    profile->add_option("--svg", a.profile.svg, "file for the page's pictures alone");
    profile->add_option(
        "--html", a.profile.html,
        "file for a page with flames and, of level 2, a timeline; needs no network");
    profile->add_option("--chrome", a.profile.chrome,
                        "file for Perfetto or chrome://tracing, as JSON; of level 2");
    auto* snapshot =
        commands.add("snapshot", "Save a session to a file; it goes on afterwards",
                     [&] { return run_snapshot(a.context, a.session, a.path, a.suspend); });
    session(snapshot, true);
    snapshot->add_option("file", a.path, "file to write")->required();
    snapshot->add_flag("--suspend", a.suspend,
                       "give the GPU back: the programs' GPU calls wait until `gantry restore`");
    auto* restore = commands.add("restore", "Go on with a suspended session from its file",
                                 [&] { return run_restore(a.context, a.session, a.path); });
    session(restore, true);
    restore->add_option("file", a.path, "file that `gantry snapshot --suspend` wrote")->required();
    auto* replace =
        commands.add("replace-worker",
                     "Replace the workers of a session by fresh ones under its programs; device "
                     "memory stays where it is",
                     [&] { return run_replace_worker(a.context, a.session, a.memory_way()); });
    session(replace, true);
    auto* reassign =
        commands.add("reassign", "Move a session to another GPU of its host while its programs run",
                     [&] { return run_reassign(a.context, a.session, a.device, a.memory_way()); });
    session(reassign, true);
    reassign
        ->add_option("--device", a.device,
                     "number of the GPU, as the driver counts them and as in worker.device")
        ->required();
    replace->add_flag("--copy", a.copy,
                      "copy device memory, from device to device where the driver can");
    for (CLI::App* command : {replace, reassign}) {
        command->add_flag("--staged", a.staged, "copy device memory by way of host memory");
    }
    auto* pull = commands.add(
        "pull", "Take over the session of a program that is not a VM's from another gantryd",
        [&] { return run_pull(a.context, a.session, a.source, a.handover); });
    session(pull, true);
    pull->add_option("--from", a.source,
                     "ADDRESS[:PORT] of the gantryd that serves it, port 7700 if left out")
        ->required();
    pull->add_option("--handover", a.handover,
                     "its RUN_DIRECTORY/handover.sock, for a program that shares memory with it");
    session(
        commands.add("fenced", "Confirm that the source host of an arrival is down and stays down",
                     [&] { return run_fenced(a.context, a.session); }),
        true);
    session(commands.add("discard", "Let go the state that is kept for a target",
                         [&] { return run_discard(a.context, a.session); }),
            true);
}

void add_help(CLI::App& app, Command& commands, Arguments& a) {
    commands
        .add("help", "Print the help of a command",
             [&app, &a] {
                 const auto names = usage_detail::commands_of(app);
                 if (!a.help_of.empty() && std::ranges::count(names, a.help_of) == 0) {
                     const Error wrong{Code::kInvalidArgument, "command.usage",
                                       "there is no command '" + a.help_of + "'" +
                                           did_you_mean(a.help_of, names) +
                                           "; see `gantry --help`"};
                     std::fputs((a.json ? error_json(wrong) : error_text(wrong)).c_str(), stderr);
                     return static_cast<int>(kUsage);
                 }
                 std::vector<const char*> words{"gantry"};
                 if (!a.help_of.empty()) {
                     words.push_back(a.help_of.c_str());
                 }
                 words.push_back(a.json ? "--json" : "--help");
                 words.push_back("--help");
                 return run_command_line(static_cast<int>(words.size()), words.data());
             })
        ->add_option("command", a.help_of, "name of the command; left out: of all");
}

void add_sched(CLI::App& app, Command& commands, Arguments& a) {
    using What = SchedChange::What;
    CLI::App* sched = app.add_subcommand("sched", "Who may use a GPU that several sessions share");
    sched->require_subcommand(1);
    sched->fallthrough();
    const auto run = [&a](What what) {
        a.sched.what = what;
        return run_sched(a.context, a.sched);
    };
    commands.add_to(*sched, "status", "Print whose turn it is, and what each session had",
                    [run] { return run(What::kNothing); });
    commands.add_to(*sched, "on", "Arbitrate GPUs (again)", [run] { return run(What::kOn); });
    commands.add_to(*sched, "off", "Let every program launch at will",
                    [run] { return run(What::kOff); });
    auto* set = commands.add_to(*sched, "set", "Give a session another share, until it ends",
                                [run] { return run(What::kShare); });
    set->add_option("session", a.sched.session, "VM name, VM uuid or session id")->required();
    set->add_option("--priority", a.sched.priority, "0 to 9: the higher one goes first")
        ->capture_default_str();
    set->add_option("--weight", a.sched.weight, "1 to 1000: parts of the time among equals")
        ->capture_default_str();
}

void add_hooks(CLI::App& app, Command& commands, Arguments& a) {
    CLI::App* hook = app.add_subcommand("hook", "For libvirt's hook script; XML on standard input");
    hook->require_subcommand(1);
    hook->fallthrough();
    commands
        .add_to(*hook, "migrate-begin", "May this VM come here?",
                [&a] { return run_hook_migrate_begin(a.context, a.session); })
        ->add_option("vm", a.session, "name of the VM")
        ->required();
    commands
        .add_to(*hook, "restore-begin", "This VM is about to go on from saved memory",
                [&a] { return run_hook_restore(a.context, a.session, false); })
        ->add_option("vm", a.session, "name of the VM")
        ->required();
    commands
        .add_to(*hook, "started", "This VM's memory is there, and it is about to run",
                [&a] { return run_hook_restore(a.context, a.session, true); })
        ->add_option("vm", a.session, "name of the VM")
        ->required();
    auto* released = commands.add_to(*hook, kReleased, "This VM is not here any more", [&a] {
        return run_hook_released(a.context, a.session, a.cause);
    });
    released->add_option("vm", a.session, "name of the VM")->required();
    released->add_option("cause", a.cause, "libvirt's fourth argument");
}

void add_pki(CLI::App& app, Command& commands, Arguments& a) {
    constexpr int kDaysMax = 36500;
    CLI::App* pki = app.add_subcommand("pki", "Certificates of hosts; needs no gantryd");
    pki->require_subcommand(1);
    pki->fallthrough();
    auto* init = commands.add_to(*pki, "init", "Make an authority: ca.pem, and its key ca.key",
                                 [&a] { return run_pki_init(a.context, a.authority); });
    init->add_option("--out", a.authority.folder, "folder for both")->capture_default_str();
    init->add_option("--name", a.authority.name, "what it is called")->capture_default_str();
    init->add_option("--days", a.authority.days, "so long it is good")
        ->check(CLI::Range(1, kDaysMax))
        ->capture_default_str();
    auto* issue = commands.add_to(
        *pki, "issue", "Make a host's certificate, its key, and a copy of the authority", [&a] {
            if (a.host.folder.empty()) {
                a.host.folder = a.host.name;
            }
            return run_pki_issue(a.context, a.host);
        });
    issue->add_option("host", a.host.name, "name or address by which other hosts reach it")
        ->required();
    issue->add_option("--address", a.host.others, "a further name or address of it; repeatable");
    issue->add_option("--ca", a.host.authority, "folder of ca.pem and ca.key")
        ->capture_default_str();
    issue->add_option("--out", a.host.folder, "folder for the files; left out: one of its name");
    issue->add_option("--days", a.host.days, "so long it is good")
        ->check(CLI::Range(1, kDaysMax))
        ->capture_default_str();
}

/// --help, which is text in either form, --version, or wrong usage.
int end_of_parse(const CLI::App& app, const CLI::ParseError& error, bool is_json) {
    const auto say = [is_json](const Error& wrong, int status) {
        std::fputs((is_json ? error_json(wrong) : error_text(wrong)).c_str(), stderr);
        return status;
    };
    if (error.get_exit_code() != 0) {
        return say(usage_error("gantry", app, error), kUsage);
    }
    std::ostringstream text;
    if (is_json && dynamic_cast<const CLI::CallForVersion*>(&error) != nullptr) {
        text << json_text({{"version", GANTRY_VERSION}}, false);
    } else {
        app.exit(error, text);
    }
    const auto written = write_standard_output(text.str());
    return written ? kDone : say(written.error(), kRefused);
}

}  // namespace

int run_command_line(int argc, const char* const* argv) {
    Arguments arguments;
    CLI::App app{"GPU sessions of VMs and programs, and their moves between hosts"};
    app.footer(kFooter);
    app.add_option("--socket", arguments.context.socket, "gantryd's operator socket")
        ->capture_default_str();
    app.add_flag("--json", arguments.json,
                 "print JSON instead of text; errors too, on standard error");
    app.set_version_flag("--version", "gantry " GANTRY_VERSION);
    app.require_subcommand(1);
    Command commands(app, arguments);
    add_commands(commands, arguments);
    add_sched(app, commands, arguments);
    add_pki(app, commands, arguments);
    add_hooks(app, commands, arguments);
    add_help(app, commands, arguments);
    try {  // CLI11 reports wrong usage by throwing
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        // What stands behind the mistake has not been read.
        const auto given = std::span(argv, static_cast<std::size_t>(argc));
        return end_of_parse(app, error, std::ranges::count(given, std::string("--json")) != 0);
    }
    return commands.status;
}

}  // namespace gantry::cli
