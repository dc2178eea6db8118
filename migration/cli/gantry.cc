// gantry: the operator's command. Every command asks the gantryd of this host; words and forms are
// virsh's where it has any.
#include <CLI/CLI.hpp>
#include <functional>

#include "migration/cli/commands.h"

namespace gantry::cli {
namespace {

constexpr char kFooter[] =
    "Exit status: 0 done; 1 refused or failed, the reason is on standard error; 2 wrong usage;\n"
    "3 no gantryd answers; 4 no such session, VM or file.";

struct Arguments {
    Context context{"/run/gantry/operator.sock", Form::kText};
    bool json = false;
    std::string session;
    std::string target;
    std::string path;
    std::string source;
    std::string handover;
    std::string cause = "-";
    bool forever = false;
    bool suspend = false;
};

class Command {
public:
    Command(CLI::App& app, Arguments& arguments) : app_(app), arguments_(arguments) {}

    /// Adds a command that runs `action`.
    CLI::App* add(const char* name, const char* help, std::function<int()> action) {
        CLI::App* command = app_.add_subcommand(name, help);
        command->fallthrough();  // --json may stand behind the command
        command->callback([this, action = std::move(action)] {
            arguments_.context.form = arguments_.json ? Form::kJson : Form::kText;
            status = action();
        });
        return command;
    }

    int status = kDone;

private:
    CLI::App& app_;
    Arguments& arguments_;
};

void add_commands(Command& commands, Arguments& a) {
    const auto session = [&](CLI::App* command, bool is_required) {
        auto* option = command->add_option("session", a.session,
                                           "VM name, VM uuid or session id");
        option->required(is_required);
    };
    session(commands.add("status", "List sessions, their programs and moves under way",
                         [&] { return run_status(a.context, a.session); }),
            false);
    auto* preflight = commands.add("preflight", "Say whether a session could move, and why not",
                                   [&] { return run_preflight(a.context, a.session, a.target); });
    session(preflight, true);
    preflight->add_option("target", a.target,
                          "ADDRESS:PORT of the other host's gantryd; left out: this host");
    auto* watch = commands.add("watch", "Follow a move until it has ended",
                               [&] { return run_watch(a.context, a.session, !a.forever); });
    session(watch, false);
    watch->add_flag("--forever", a.forever, "go on after the move has ended");
    session(commands.add("abort", "Abort a move under way; the session stays where it is",
                         [&] { return run_abort(a.context, a.session); }),
            true);
    session(commands.add("inspect", "Print the graph of live objects as JSON",
                         [&] { return run_inspect(a.context, a.session); }),
            true);
    auto* snapshot = commands.add(
        "snapshot", "Save a session to a file; it goes on afterwards",
        [&] { return run_snapshot(a.context, a.session, a.path, a.suspend); });
    session(snapshot, true);
    snapshot->add_option("file", a.path, "file to write")->required();
    snapshot->add_flag("--suspend", a.suspend,
                       "give the GPU back: the programs' GPU calls wait until `gantry restore`");
    auto* restore = commands.add("restore", "Go on with a suspended session from its file",
                                 [&] { return run_restore(a.context, a.session, a.path); });
    session(restore, true);
    restore->add_option("file", a.path, "file that `gantry snapshot --suspend` wrote")
        ->required();
    session(commands.add("replace-worker",
                         "Replace the workers of a session by fresh ones under its programs; "
                         "device memory stays where it is",
                         [&] { return run_replace_worker(a.context, a.session); }),
            true);
    auto* pull = commands.add(
        "pull", "Take over the session of a program that is not a VM's from another gantryd",
        [&] { return run_pull(a.context, a.session, a.source, a.handover); });
    session(pull, true);
    pull->add_option("--from", a.source, "ADDRESS:PORT of the gantryd that serves it")->required();
    pull->add_option("--handover", a.handover,
                     "its RUN_DIRECTORY/handover.sock, for a program that shares memory with it");
    session(commands.add("fenced",
                         "Confirm that the source host of an arrival is down and stays down",
                         [&] { return run_fenced(a.context, a.session); }),
            true);
    session(commands.add("discard", "Let go the state that is kept for a target",
                         [&] { return run_discard(a.context, a.session); }),
            true);
}

void add_hooks(CLI::App& app, Command& commands, Arguments& a) {
    CLI::App* hook = app.add_subcommand("hook", "For libvirt's hook script; XML on standard input");
    hook->require_subcommand(1);
    Command* owner = &commands;
    auto* begin = hook->add_subcommand("migrate-begin", "May this VM come here?");
    begin->add_option("vm", a.session, "name of the VM")->required();
    begin->callback([owner, &a] { owner->status = run_hook_migrate_begin(a.context, a.session); });
    auto* released = hook->add_subcommand("released", "This VM is not here any more");
    released->add_option("vm", a.session, "name of the VM")->required();
    released->add_option("cause", a.cause, "libvirt's fourth argument");
    released->callback(
        [owner, &a] { owner->status = run_hook_released(a.context, a.session, a.cause); });
    hook->fallthrough();
}

}  // namespace
}  // namespace gantry::cli

int main(int argc, char** argv) {
    gantry::cli::Arguments arguments;
    CLI::App app{"GPU sessions of VMs and programs, and their moves between hosts"};
    app.footer(gantry::cli::kFooter);
    app.add_option("--socket", arguments.context.socket, "gantryd's operator socket")
        ->capture_default_str();
    app.add_flag("--json", arguments.json,
                 "print JSON instead of text; errors too, on standard error");
    app.set_version_flag("--version", "gantry " GANTRY_VERSION);
    app.require_subcommand(1);
    gantry::cli::Command commands(app, arguments);
    gantry::cli::add_commands(commands, arguments);
    gantry::cli::add_hooks(app, commands, arguments);
    try {  // CLI11 reports wrong usage by throwing
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? gantry::cli::kDone : gantry::cli::kUsage;
    }
    return commands.status;
}
