#include "migration/cli/commands.h"

#include <fmt/format.h>
#include <grpcpp/client_context.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <vector>

#include "migration/cli/profile_forms.h"
#include "migration/cli/snapshot_file.h"
#include "migration/cli/timeline_forms.h"
#include "migration/cli/top.h"
#include "proto/base/did_you_mean.h"
#include "proto/base/standard_output.h"
#include "proto/snapshot/object_graph.pb.h"

namespace gantry::cli {
namespace {

/// A VM without this in its XML is none of our business, and needs no gantryd to know that.
constexpr char kNeedsNamespace[] = "urn:gantry:vm:1";
constexpr std::size_t kXmlBytesMax = 4U << 20;
constexpr std::chrono::seconds kQuick{30};
/// The engine has a bound of its own, well below this.
constexpr std::chrono::seconds kHookDeadline{600};

void set_deadline(grpc::ClientContext& rpc, std::chrono::seconds deadline) {
    rpc.set_deadline(std::chrono::system_clock::now() + deadline);
}

std::string read_standard_input() {
    std::string text;
    std::array<char, 65536> buffer;
    while (text.size() <= kXmlBytesMax &&
           (std::cin.read(buffer.data(), buffer.size()) || std::cin.gcount() > 0)) {
        text.append(buffer.data(), static_cast<std::size_t>(std::cin.gcount()));
    }
    return text;
}

bool is_unanswered(const Error& error) {
    return error.reason == "daemon.unreachable" || error.reason == "daemon.denied";
}

/// What `session` may have meant, if it is not here.
std::string nearest_session(const Context& context, const std::string& session) {
    Client client(context.socket);
    grpc::ClientContext rpc;
    set_deadline(rpc, kQuick);
    control::ListSessionsReply reply;
    if (!client.stub().ListSessions(&rpc, {}, &reply).ok()) {
        return "";
    }
    std::vector<std::string> names;
    for (const control::SessionStatus& one : reply.sessions()) {
        names.push_back(one.session_id());
        names.push_back(one.vm_name());
    }
    return did_you_mean(session, names);
}

/// Says why on standard error, as JSON if wanted; returns the exit status that belongs to it.
/// `session`: what the command was asked about.
int fail(const Context& context, Error error, const std::string& session = "") {
    if (error.reason == "session.unknown" && !session.empty()) {
        error.text += nearest_session(context, session);
    }
    std::fputs((context.form == Form::kJson ? error_json(error) : error_text(error)).c_str(),
               stderr);
    if (is_unanswered(error)) {
        return kUnreachable;
    }
    return error.code == Code::kNotFound ? kNotFound : kRefused;
}

using Stub = control::Operator::Stub;

/// Asks gantryd; an error says why there is no reply.
template <typename Request, typename Reply>
Result<void> ask(const Context& context,
                 grpc::Status (Stub::*call)(grpc::ClientContext*, const Request&, Reply*),
                 const Request& request, Reply* reply,
                 std::optional<std::chrono::seconds> deadline = kQuick) {
    Client client(context.socket);
    grpc::ClientContext rpc;
    if (deadline) {
        set_deadline(rpc, *deadline);
    }
    const grpc::Status status = (client.stub().*call)(&rpc, request, reply);
    return status.ok() ? Result<void>() : client.explain(status);
}

/// Prints it; returns the exit status, which is `status` if that worked.
int print(const Context& context, const std::string& text, int status = kDone) {
    const auto written = write_standard_output(text);
    return written ? status : fail(context, written.error());
}

/// Prints the reply in either form.
template <typename Reply>
int show(const Context& context, const Reply& reply, const std::string& text, int status = kDone) {
    return print(context, context.form == Form::kJson ? to_json(reply, true) : text, status);
}

control::MemoryWay to_proto(MemoryWay way, control::MemoryWay usual) {
    switch (way) {
        case MemoryWay::kPeer: return control::MEMORY_WAY_PEER;
        case MemoryWay::kStaged: return control::MEMORY_WAY_STAGED;
        default: return usual;
    }
}

double seconds(std::uint64_t us) { return static_cast<double>(us) / 1e6; }

/// A gantryd's address, whose port may be left out.
std::string with_port(const std::string& address) {
    constexpr char kUsualPort[] = ":7700";
    const bool has_none = address.find(':') == std::string::npos || address.ends_with("]");
    return address.empty() || !has_none ? address : address + kUsualPort;
}

std::string host_name() {
    char name[256] = "";
    ::gethostname(name, sizeof(name) - 1);
    return name;
}

Result<void> write_file(const std::string& path, const std::string& text) {
    std::ofstream file(path, std::ios::trunc | std::ios::binary);
    file << text;
    file.close();
    if (!file) {
        return Error{Code::kUnavailable, "command.output",
                     "cannot write " + path + ": " + std::strerror(errno) +
                         "; name a file in a folder that you may write"};
    }
    return {};
}

std::string absolute(const std::string& path) {
    std::error_code ignored;
    const auto full = std::filesystem::absolute(path, ignored);
    return ignored ? path : full.string();
}

}  // namespace

int run_status(const Context& context, const std::string& session) {
    control::ListSessionsRequest request;
    request.set_session(session);
    control::ListSessionsReply reply;
    if (const auto asked = ask(context, &Stub::ListSessions, request, &reply); !asked) {
        return fail(context, asked.error(), session);
    }
    if (!session.empty() && reply.sessions_size() == 0) {
        return fail(
            context,
            {Code::kNotFound, "session.unknown", "no session or VM '" + session + "' on this host"},
            session);
    }
    return show(context, reply, status_text(reply));
}

int run_top(const Context& context, bool once) {
    constexpr std::chrono::seconds kBetween{1};
    constexpr char kClear[] = "\033[H\033[J";
    control::ListSessionsReply before;
    std::chrono::steady_clock::time_point read_at;
    for (bool is_first = true;; is_first = false) {
        control::ListSessionsReply now;
        if (const auto asked = ask(context, &Stub::ListSessions, {}, &now); !asked) {
            return fail(context, asked.error());
        }
        const auto at = std::chrono::steady_clock::now();
        if (!is_first) {
            const TopReadings readings{before, now,
                                       std::chrono::duration<double>(at - read_at).count()};
            const std::string text = context.form == Form::kJson
                                         ? json_text(top_json(readings), once)
                                         : (once ? "" : kClear) + top_text(readings);
            if (const int printed = print(context, text); printed != kDone || once) {
                return printed;
            }
        }
        before = std::move(now);
        read_at = at;
        std::this_thread::sleep_for(kBetween);
    }
}

int run_preflight(const Context& context, const std::string& session, const std::string& target) {
    control::PreflightRequest request;
    request.set_session(session);
    request.set_target(with_port(target));
    control::PreflightReply reply;
    if (const auto asked = ask(context, &Stub::Preflight, request, &reply); !asked) {
        return fail(context, asked.error(), session);
    }
    return show(context, reply, preflight_text(reply), reply.can_move() ? kDone : kRefused);
}

int run_watch(const Context& context, const std::string& session, Watching watching) {
    Client client(context.socket);
    grpc::ClientContext rpc;
    control::WatchRequest request;
    request.set_session(session);
    request.set_until_ended(watching.until_ended);
    request.set_wait(watching.wait);
    const auto reader = client.stub().Watch(&rpc, request);
    control::WatchReply reply;
    while (reader->Read(&reply)) {
        const int printed =
            print(context, context.form == Form::kJson ? to_json(reply, false)
                                                       : watch_line(reply.status()) + "\n");
        if (printed != kDone) {
            rpc.TryCancel();
            (void)reader->Finish();
            return printed;
        }
    }
    const auto status = reader->Finish();
    return status.ok() ? kDone : fail(context, client.explain(status), session);
}

namespace {

/// Writes each form whose file is named; without any, or as JSON, `reply` is shown.
template <typename Seen, std::size_t kForms>
int write_forms(
    const Context& context, const Seen& seen,
    const std::array<std::pair<const std::string*, std::string (*)(const Seen&)>, kForms>& forms,
    const google::protobuf::Message& reply, std::string (*text)(const Seen&)) {
    bool is_written = false;
    for (const auto& [path, form] : forms) {
        if (path->empty()) {
            continue;
        }
        if (const auto written = write_file(*path, form(seen)); !written) {
            return fail(context, written.error());
        }
        is_written = true;
    }
    if (is_written && context.form == Form::kText) {
        return kDone;
    }
    return show(context, reply, text(seen));
}

}  // namespace

int run_timeline(const Context& context, const std::string& session,
                 const std::string& migration_id, const TimelineFiles& files) {
    control::MoveRecordsRequest request;
    request.set_session(session);
    request.set_migration_id(migration_id);
    control::MoveRecordsReply reply;
    if (const auto asked = ask(context, &Stub::MoveRecords, request, &reply); !asked) {
        return fail(context, asked.error(), session);
    }
    const Timeline timeline = make_timeline(reply);
    return write_forms(
        context, timeline,
        std::array{std::pair{&files.svg, &timeline_svg}, std::pair{&files.html, &timeline_html},
                   std::pair{&files.chrome, &timeline_chrome}},
        reply, &timeline_text);
}

int run_abort(const Context& context, const std::string& session) {
    control::AbortRequest request;
    request.set_session(session);
    control::AbortReply reply;
    if (const auto asked = ask(context, &Stub::Abort, request, &reply); !asked) {
        return fail(context, asked.error(), session);
    }
    return show(context, reply, reply.text() + "\n");
}

int run_validate(const Context& context, const std::string& config) {
    std::error_code ignored;
    const auto own = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
    std::vector<std::string> words{"gantryd", "--validate"};
    if (context.form == Form::kJson) {
        words.emplace_back("--json");
    }
    if (!config.empty()) {
        words.insert(words.end(), {"--config", config});
    }
    std::vector<char*> arguments;
    for (std::string& word : words) {
        arguments.push_back(word.data());
    }
    arguments.push_back(nullptr);
    for (const std::string& program :
         {(own / "gantryd").string(), std::string("/usr/sbin/gantryd"), std::string("gantryd")}) {
        ::execvp(program.c_str(), arguments.data());
    }
    return fail(context, {Code::kNotFound, "daemon.absent",
                          "there is no gantryd to ask: install gantry-host on this host"});
}

int run_force_complete(const Context& context, const std::string& session) {
    control::ForceCompleteRequest request;
    request.set_session(session);
    control::ForceCompleteReply reply;
    if (const auto asked = ask(context, &Stub::ForceComplete, request, &reply); !asked) {
        return fail(context, asked.error(), session);
    }
    return show(context, reply, reply.text() + "\n");
}

int run_inspect(const Context& context, const std::string& session) {
    if (names_snapshot_file(session)) {
        const auto text =
            context.form == Form::kJson ? snapshot_file_json(session) : snapshot_file_text(session);
        return text.ok() ? print(context, *text) : fail(context, text.error());
    }
    control::InspectRequest request;
    request.set_session(session);
    control::InspectReply reply;
    if (const auto asked = ask(context, &Stub::Inspect, request, &reply); !asked) {
        return fail(context, asked.error(), session);
    }
    // A graph has no other form than its fields: both forms print JSON, the text form indented.
    std::vector<snapshot::ObjectGraph> graphs(static_cast<std::size_t>(reply.parts_size()));
    for (std::size_t i = 0; i < graphs.size(); ++i) {
        if (!graphs[i].ParseFromString(reply.parts(static_cast<int>(i)).graph())) {
            return fail(context,
                        {Code::kDataLoss, "snapshot.graph", "a worker sent a damaged graph"});
        }
    }
    return print(context, inspection_json(reply.status(), graphs, context.form == Form::kText));
}

int run_account(const Context& context, const std::string& session) {
    control::AccountRequest request;
    request.set_session(session);
    control::AccountReply reply;
    if (const auto asked = ask(context, &Stub::Account, request, &reply); !asked) {
        return fail(context, asked.error(), session);
    }
    return show(context, reply, account_text(reply));
}

int run_profile(const Context& context, const std::string& session, const ProfileWish& wish) {
    control::ProfileRequest request;
    request.set_session(session);
    if (wish.level) {
        request.set_level(*wish.level);
    }
    control::ProfileReply reply;
    if (const auto asked = ask(context, &Stub::Profile, request, &reply); !asked) {
        return fail(context, asked.error(), session);
    }
    return write_forms(
        context, reply,
        std::array{std::pair{&wish.svg, &profile_svg}, std::pair{&wish.html, &profile_html},
                   std::pair{&wish.chrome, &profile_chrome}},
        reply, &profile_text);
}

int run_sched(const Context& context, const SchedChange& change) {
    control::SchedRequest request;
    if (change.what == SchedChange::What::kShare) {
        request.set_session(change.session);
        request.mutable_share()->set_priority(change.priority);
        request.mutable_share()->set_weight(change.weight);
    } else if (change.what != SchedChange::What::kNothing) {
        request.set_enabled(change.what == SchedChange::What::kOn);
    }
    control::SchedReply reply;
    if (const auto asked = ask(context, &Stub::Sched, request, &reply); !asked) {
        return fail(context, asked.error(), change.session);
    }
    return show(context, reply, sched_text(reply));
}

int run_snapshot(const Context& context, const std::string& session, const std::string& path,
                 bool suspend) {
    control::SnapshotRequest request;
    request.set_session(session);
    request.set_path(absolute(path));
    request.set_suspend(suspend);
    control::SnapshotReply reply;
    if (const auto asked = ask(context, &Stub::Snapshot, request, &reply, std::nullopt); !asked) {
        return fail(context, asked.error(), session);
    }
    return show(context, reply,
                session + (suspend ? " suspended into " : " saved to ") + path + ": " +
                    bytes_text(reply.bytes()) +
                    fmt::format(" in {:.1f} s, pause {:.1f} ms\n", seconds(reply.elapsed_us()),
                                1000.0 * seconds(reply.pause_us())));
}

int run_restore(const Context& context, const std::string& session, const std::string& path) {
    control::RestoreRequest request;
    request.set_session(session);
    request.set_path(absolute(path));
    control::RestoreReply reply;
    if (const auto asked = ask(context, &Stub::Restore, request, &reply, std::nullopt); !asked) {
        return fail(context, asked.error(), session);
    }
    return show(context, reply,
                session + " goes on from " + path + ": " + bytes_text(reply.bytes()) +
                    fmt::format(" in {:.1f} s\n", seconds(reply.elapsed_us())));
}

int run_replace_worker(const Context& context, const std::string& session, MemoryWay way) {
    control::ReplaceWorkersRequest request;
    request.set_session(session);
    request.set_way(to_proto(way, control::MEMORY_WAY_HAND_OVER));
    control::ReplaceWorkersReply reply;
    if (const auto asked = ask(context, &Stub::ReplaceWorkers, request, &reply, std::nullopt);
        !asked) {
        return fail(context, asked.error(), session);
    }
    return show(context, reply, replacement_text(reply));
}

int run_reassign(const Context& context, const std::string& session, std::uint32_t device,
                 MemoryWay way) {
    control::ReassignRequest request;
    request.set_session(session);
    request.set_device(device);
    request.set_way(to_proto(way, control::MEMORY_WAY_PEER));
    control::ReplaceWorkersReply reply;
    if (const auto asked = ask(context, &Stub::Reassign, request, &reply, std::nullopt); !asked) {
        return fail(context, asked.error(), session);
    }
    const std::string name = reply.device_name().empty() ? "" : ", " + reply.device_name();
    return show(context, reply,
                replacement_text(reply) +
                    fmt::format("{} is on device {}{}\n", session, reply.device(), name));
}

int run_pull(const Context& context, const std::string& session, const std::string& source,
             const std::string& handover) {
    control::PullRequest request;
    request.set_session(session);
    request.set_source(with_port(source));
    request.set_handover_path(handover);
    control::PullReply reply;
    if (const auto asked = ask(context, &Stub::Pull, request, &reply, std::nullopt); !asked) {
        return fail(context, asked.error(), session);
    }
    return show(context, reply, session + " is served here now\n");
}

int run_pki_init(const Context& context, const NewAuthority& wanted) {
    if (const auto made = make_authority(wanted); !made) {
        return fail(context, made.error());
    }
    if (context.form == Form::kJson) {
        return print(context, json_text({{"certificate", wanted.folder + "/ca.pem"},
                                         {"key", wanted.folder + "/ca.key"}},
                                        true));
    }
    return print(context, fmt::format("{0}/ca.pem: the authority, for every host\n"
                                      "{0}/ca.key: its key; keep it off the hosts\n",
                                      wanted.folder));
}

int run_pki_issue(const Context& context, const NewHost& wanted) {
    const auto names = issue_certificate(wanted);
    if (!names) {
        return fail(context, names.error());
    }
    if (context.form == Form::kJson) {
        return print(context, json_text({{"names", *names},
                                         {"certificate", wanted.folder + "/host.pem"},
                                         {"key", wanted.folder + "/host.key"}},
                                        true));
    }
    return print(context, fmt::format("{0}: ca.pem, host.pem and host.key for {1}\n"
                                      "copy them to /etc/gantry/tls of that host\n",
                                      wanted.folder, *names));
}

int run_fenced(const Context& context, const std::string& session) {
    control::FencedRequest request;
    request.set_session(session);
    control::FencedReply reply;
    if (const auto asked = ask(context, &Stub::Fenced, request, &reply); !asked) {
        return fail(context, asked.error(), session);
    }
    return show(context, reply, session + ": its source host counts as fenced\n");
}

int run_discard(const Context& context, const std::string& session) {
    control::DiscardRequest request;
    request.set_session(session);
    control::DiscardReply reply;
    if (const auto asked = ask(context, &Stub::Discard, request, &reply); !asked) {
        return fail(context, asked.error(), session);
    }
    return show(context, reply, session + ": the state kept here is let go\n");
}

int run_hook_migrate_begin(const Context& context, const std::string& vm_name) {
    const std::string xml = read_standard_input();
    if (xml.find(kNeedsNamespace) == std::string::npos) {
        return kDone;
    }
    control::AdmitRequest request;
    request.set_vm_name(vm_name);
    request.set_domain_xml(xml);
    control::AdmitReply reply;
    if (const auto asked = ask(context, &Stub::Admit, request, &reply, kHookDeadline); !asked) {
        Error error = asked.error();
        if (is_unanswered(error)) {  // Read in virsh's error, on another host.
            error.text = "on the target " + host_name() + ", " + error.text;
        }
        fail(context, error);
        return kRefused;  // libvirt knows only yes and no
    }
    return kDone;
}

int run_hook_restore(const Context& context, const std::string& vm_name, bool is_loaded) {
    const std::string xml = read_standard_input();
    if (xml.find(kNeedsNamespace) == std::string::npos) {
        return kDone;
    }
    control::StartingRequest request;
    request.set_vm_name(vm_name);
    request.set_step(is_loaded ? control::StartingRequest::STEP_STARTED
                               : control::StartingRequest::STEP_RESTORE);
    request.set_domain_xml(xml);
    control::StartingReply reply;
    if (const auto asked = ask(context, &Stub::Starting, request, &reply, kHookDeadline); !asked) {
        const Error error = asked.error();
        fail(context, error);
        // A VM that boots needs no gantryd; one that is restored was admitted by it a moment ago.
        return is_loaded && is_unanswered(error) ? kDone : kRefused;
    }
    return kDone;
}

int run_hook_released(const Context& context, const std::string& vm_name,
                      const std::string& cause) {
    const std::string xml = read_standard_input();
    if (xml.find(kNeedsNamespace) == std::string::npos) {
        return kDone;
    }
    control::ReleasedRequest request;
    request.set_vm_name(vm_name);
    request.set_cause(cause);
    request.set_domain_xml(xml);
    control::ReleasedReply reply;
    const auto asked = ask(context, &Stub::Released, request, &reply);
    return asked ? kDone : fail(context, asked.error());
}

}  // namespace gantry::cli
