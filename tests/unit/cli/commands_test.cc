// Every command against an Operator service made for the test: what is asked, what is printed in
// text and in JSON, and the exit status.
#include "migration/cli/commands.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <optional>
#include <string>

#include "migration/transport/status_map.h"
#include "proto/snapshot/object_graph.pb.h"
#include "tests/unit/cli/ran.h"

namespace gantry::cli {
namespace {

class FakeOperator final : public control::Operator::Service {
public:
    /// Every call answers this from here on.
    void refuse_with(Error error) {
        const std::lock_guard lock(mutex_);
        error_ = std::move(error);
    }
    /// The same, but for ListSessions.
    void know_only(Error error) {
        const std::lock_guard lock(mutex_);
        error_ = std::move(error);
        lists_ = true;
    }
    /// The last call.
    [[nodiscard]] std::string asked() const {
        const std::lock_guard lock(mutex_);
        return asked_;
    }

    grpc::Status answer(const std::string& what) {
        const std::lock_guard lock(mutex_);
        asked_ = what;
        return error_ ? transport::to_status(*error_) : grpc::Status::OK;
    }
    grpc::Status ListSessions(grpc::ServerContext*, const control::ListSessionsRequest* request,
                              control::ListSessionsReply* reply) override {
        reply->set_host("hosta");
        if (request->session() != "g9") {
            fill(reply->add_sessions());
        }
        const grpc::Status status = answer("list " + request->session());
        const std::lock_guard lock(mutex_);
        return lists_ ? grpc::Status::OK : status;
    }
    grpc::Status Preflight(grpc::ServerContext*, const control::PreflightRequest* request,
                           control::PreflightReply* reply) override {
        reply->set_can_move(request->target() != "too-small:1");
        return answer("preflight " + request->session() + " " + request->target());
    }
    grpc::Status Watch(grpc::ServerContext*, const control::WatchRequest* request,
                       grpc::ServerWriter<control::WatchReply>* writer) override {
        for (const double percent : {10.0, 60.0, 100.0}) {
            control::WatchReply reply;
            fill(reply.mutable_status());
            reply.mutable_status()->mutable_move()->set_percent(percent);
            writer->Write(reply);
        }
        return answer("watch " + request->session() + (request->until_ended() ? "" : " forever") +
                      (request->wait() ? " waiting" : ""));
    }
    grpc::Status Abort(grpc::ServerContext*, const control::AbortRequest* request,
                       control::AbortReply* reply) override {
        reply->set_text("aborting the move of " + request->session() + "; it goes on here");
        return answer("abort " + request->session());
    }
    grpc::Status ForceComplete(grpc::ServerContext*, const control::ForceCompleteRequest* request,
                               control::ForceCompleteReply* reply) override {
        reply->set_text("the move of " + request->session() + " may pause");
        return answer("force " + request->session());
    }
    grpc::Status Inspect(grpc::ServerContext*, const control::InspectRequest* request,
                         control::InspectReply* reply) override {
        fill(reply->mutable_status());
        for (const std::uint64_t part : {1, 2}) {
            snapshot::ObjectGraph graph;
            graph.set_part_id(part);
            reply->add_parts()->set_graph(graph.SerializeAsString());
        }
        return answer("inspect " + request->session());
    }
    grpc::Status Profile(grpc::ServerContext*, const control::ProfileRequest* request,
                         control::ProfileReply* reply) override {
        reply->set_session_id("id-1");
        control::Operation& one = *reply->add_programs()->mutable_profile()->add_operations();
        one.set_id(1);
        one.set_name("a step");
        return answer("profile " + request->session() +
                      (request->has_level() ? " " + std::to_string(request->level()) : ""));
    }
    grpc::Status Snapshot(grpc::ServerContext*, const control::SnapshotRequest* request,
                          control::SnapshotReply* reply) override {
        reply->set_bytes(3ULL << 20);
        reply->set_elapsed_us(1'500'000);
        reply->set_pause_us(37'200);
        return answer("snapshot " + request->session() + " " + request->path() +
                      (request->suspend() ? " suspended" : ""));
    }
    grpc::Status Restore(grpc::ServerContext*, const control::RestoreRequest* request,
                         control::RestoreReply* reply) override {
        reply->set_bytes(3ULL << 20);
        reply->set_elapsed_us(2'000'000);
        return answer("restore " + request->session() + " " + request->path());
    }
    grpc::Status ReplaceWorkers(grpc::ServerContext*, const control::ReplaceWorkersRequest* request,
                                control::ReplaceWorkersReply* reply) override {
        reply->add_workers()->set_pid(17);
        return answer("replace " + request->session() + " " +
                      control::MemoryWay_Name(request->way()));
    }
    grpc::Status Reassign(grpc::ServerContext*, const control::ReassignRequest* request,
                          control::ReplaceWorkersReply* reply) override {
        reply->set_device(request->device());
        return answer("reassign " + request->session() + " " + std::to_string(request->device()) +
                      " " + control::MemoryWay_Name(request->way()));
    }
    grpc::Status Pull(grpc::ServerContext*, const control::PullRequest* request,
                      control::PullReply* reply) override {
        reply->set_session_id(request->session());
        return answer("pull " + request->session() + " " + request->source() + " " +
                      request->handover_path());
    }
    grpc::Status Fenced(grpc::ServerContext*, const control::FencedRequest* request,
                        control::FencedReply*) override {
        return answer("fenced " + request->session());
    }
    grpc::Status Discard(grpc::ServerContext*, const control::DiscardRequest* request,
                         control::DiscardReply*) override {
        return answer("discard " + request->session());
    }

private:
    static void fill(control::SessionStatus* status) {
        status->set_session_id("id-1");
        status->set_vm_name("g1");
        status->set_state("running");
        status->mutable_move()->set_direction("outgoing");
        status->mutable_move()->set_phase("precopy");
    }

    mutable std::mutex mutex_;  // gRPC's threads call; guards the next three.
    std::optional<Error> error_;
    bool lists_ = false;
    std::string asked_;
};

class CliCommands : public testing::Test {
protected:
    CliCommands() : socket_(testing::TempDir() + "cli" + std::to_string(::getpid()) + ".sock") {
        std::filesystem::remove(socket_);
        grpc::ServerBuilder builder;
        builder.AddListeningPort("unix:" + socket_, grpc::InsecureServerCredentials());
        builder.RegisterService(&daemon_);
        server_ = builder.BuildAndStart();
    }
    ~CliCommands() override {
        if (server_) {
            server_->Shutdown();
        }
        std::filesystem::remove(socket_);
    }

    template <typename Command>
    Ran run(Form form, Command command) {
        return capture([&] { return command(Context{socket_, form}); });
    }

    const std::string socket_;
    FakeOperator daemon_;
    std::unique_ptr<grpc::Server> server_;
};

using Run = std::function<int(const Context&)>;

struct Named {
    const char* name;
    Run run;
    std::string asks;
};

std::vector<Named> all_commands() {
    return {
        {"status", [](const Context& c) { return run_status(c, "g1"); }, "list g1"},
        {"preflight", [](const Context& c) { return run_preflight(c, "g1", "b:1"); },
         "preflight g1 b:1"},
        {"watch", [](const Context& c) { return run_watch(c, "g1", {}); }, "watch g1"},
        {"watch", [](const Context& c) { return run_watch(c, "g1", {.wait = true}); },
         "watch g1 waiting"},
        {"abort", [](const Context& c) { return run_abort(c, "g1"); }, "abort g1"},
        {"force-complete", [](const Context& c) { return run_force_complete(c, "g1"); },
         "force g1"},
        {"inspect", [](const Context& c) { return run_inspect(c, "g1"); }, "inspect g1"},
        {"profile", [](const Context& c) { return run_profile(c, "g1", {}); }, "profile g1"},
        {"profile --level", [](const Context& c) { return run_profile(c, "g1", {.level = 0}); },
         "profile g1 0"},
        {"snapshot", [](const Context& c) { return run_snapshot(c, "g1", "/tmp/x", false); },
         "snapshot g1 /tmp/x"},
        {"suspend", [](const Context& c) { return run_snapshot(c, "g1", "/tmp/x", true); },
         "snapshot g1 /tmp/x suspended"},
        {"restore", [](const Context& c) { return run_restore(c, "g1", "/tmp/x"); },
         "restore g1 /tmp/x"},
        {"replace-worker",
         [](const Context& c) { return run_replace_worker(c, "g1", MemoryWay::kBest); },
         "replace g1 MEMORY_WAY_HAND_OVER"},
        {"replace-worker --copy",
         [](const Context& c) { return run_replace_worker(c, "g1", MemoryWay::kPeer); },
         "replace g1 MEMORY_WAY_PEER"},
        {"reassign", [](const Context& c) { return run_reassign(c, "g1", 3, MemoryWay::kBest); },
         "reassign g1 3 MEMORY_WAY_PEER"},
        {"reassign --staged",
         [](const Context& c) { return run_reassign(c, "g1", 3, MemoryWay::kStaged); },
         "reassign g1 3 MEMORY_WAY_STAGED"},
        {"pull", [](const Context& c) { return run_pull(c, "s", "a:1", "/run/h"); },
         "pull s a:1 /run/h"},
        {"fenced", [](const Context& c) { return run_fenced(c, "g1"); }, "fenced g1"},
        {"discard", [](const Context& c) { return run_discard(c, "g1"); }, "discard g1"},
    };
}

TEST_F(CliCommands, EachAsksTheDaemonAndPrintsEitherForm) {
    for (const Named& command : all_commands()) {
        SCOPED_TRACE(command.name);
        const Ran text = run(Form::kText, command.run);
        EXPECT_EQ(text.status, kDone) << text.err;
        EXPECT_EQ(daemon_.asked(), command.asks);
        EXPECT_FALSE(text.out.empty());
        const Ran json = run(Form::kJson, command.run);
        EXPECT_EQ(json.status, kDone);
        // `watch` prints an object a change.
        ASSERT_EQ(json.json().size(), command.name == std::string("watch") ? 3U : 1U) << json.out;
        for (const nlohmann::json& one : json.json()) {
            EXPECT_TRUE(one.is_object());
        }
        EXPECT_EQ(json.err, "");
    }
}

TEST_F(CliCommands, EachSaysThatItCouldNotPrint) {
    for (const Named& command : all_commands()) {
        SCOPED_TRACE(command.name);
        for (const Form form : {Form::kText, Form::kJson}) {
            const Ran ran = run_unheard([&] { return command.run(Context{socket_, form}); });
            EXPECT_EQ(ran.status, kRefused);
            EXPECT_NE(ran.err.find("cannot write standard output: No space left on device"),
                      std::string::npos)
                << ran.err;
            EXPECT_NE(ran.err.find("command.output"), std::string::npos) << ran.err;
        }
    }
}

TEST_F(CliCommands, EachPassesARefusalOn) {
    daemon_.refuse_with({Code::kFailedPrecondition, "migration.committed", "too late"});
    for (const Named& command : all_commands()) {
        SCOPED_TRACE(command.name);
        const Ran text = run(Form::kText, command.run);
        EXPECT_EQ(text.status, kRefused);
        EXPECT_EQ(text.err, "gantry: too late [migration.committed]\n");
        const Ran json = run(Form::kJson, command.run);
        EXPECT_EQ(json.status, kRefused);
        const auto errors = Ran::lines(json.err);
        ASSERT_EQ(errors.size(), 1U);
        EXPECT_EQ(errors[0]["error"]["reason"], "migration.committed");
    }
}

TEST_F(CliCommands, EachSaysThatNoDaemonAnswersAndWhatToDo) {
    server_->Shutdown();
    server_.reset();
    for (const Named& command : all_commands()) {
        SCOPED_TRACE(command.name);
        const Ran ran = run(Form::kText, command.run);
        EXPECT_EQ(ran.status, kUnreachable);
        EXPECT_NE(ran.err.find("no gantryd answers on " + socket_), std::string::npos);
        EXPECT_NE(ran.err.find("--socket"), std::string::npos);
        EXPECT_NE(ran.err.find("[daemon.unreachable]"), std::string::npos);
    }
}

TEST_F(CliCommands, InspectPrintsASessionAndItsGraphsAsOneObject) {
    for (const Form form : {Form::kText, Form::kJson}) {
        const Ran ran = run(form, [](const Context& c) { return run_inspect(c, "g1"); });
        ASSERT_EQ(ran.json().size(), 1U) << ran.out;
        const nlohmann::json json = ran.json()[0];
        EXPECT_EQ(json.size(), 2U);
        EXPECT_EQ(json["status"]["vm_name"], "g1");
        ASSERT_EQ(json["graphs"].size(), 2U);
        EXPECT_EQ(json["graphs"][1]["part_id"], "2");
        EXPECT_EQ(std::count(ran.out.begin(), ran.out.end(), '\n') == 1, form == Form::kJson);
    }
}

TEST_F(CliCommands, ProfileWritesTheFilesThatAreNamedAndSaysWhichItCannot) {
    const std::string html = testing::TempDir() + "profile" + std::to_string(::getpid()) + ".html";
    const std::string chrome = html + ".json";
    const std::string svg = html + ".svg";
    const auto read = [](const std::string& path) {
        std::ifstream file(path);
        return std::string(std::istreambuf_iterator<char>(file), {});
    };
    const auto both = [&](const Context& c) {
        return run_profile(c, "g1", {.svg = svg, .html = html, .chrome = chrome});
    };
    const Ran text = run(Form::kText, both);
    EXPECT_EQ(text.status, kDone) << text.err;
    EXPECT_EQ(text.out, "");
    EXPECT_NE(read(html).find("a step"), std::string::npos);
    EXPECT_TRUE(nlohmann::json::accept(read(chrome)));
    EXPECT_EQ(read(svg).rfind("<svg ", 0), 0U);
    EXPECT_NE(read(svg).find("a step"), std::string::npos);
    std::filesystem::remove(chrome);
    // As JSON the reply is printed all the same.
    const Ran json = run(Form::kJson, both);
    ASSERT_EQ(json.json().size(), 1U) << json.out;
    EXPECT_EQ(json.json()[0]["programs"][0]["profile"]["operations"][0]["name"], "a step");
    EXPECT_TRUE(std::filesystem::exists(chrome));
    for (const std::string& path : {html, chrome, svg}) {
        std::filesystem::remove(path);
    }
    const Ran nowhere = run(Form::kText, [&](const Context& c) {
        return run_profile(c, "g1", {.html = html + "/no/such/folder"});
    });
    EXPECT_EQ(nowhere.status, kRefused);
    EXPECT_NE(nowhere.err.find(html + "/no/such/folder"), std::string::npos) << nowhere.err;
}

TEST_F(CliCommands, WatchWritesALineForEveryChange) {
    const auto follow = [](const Context& c) { return run_watch(c, "", {.until_ended = false}); };
    const Ran text = run(Form::kText, follow);
    EXPECT_EQ(daemon_.asked(), "watch  forever");
    EXPECT_EQ(std::count(text.out.begin(), text.out.end(), '\n'), 3);
    const Ran json = run(Form::kJson, follow);
    EXPECT_EQ(std::count(json.out.begin(), json.out.end(), '\n'), 3);  // one object a line
    EXPECT_EQ(json.json()[1]["status"]["move"]["percent"], 60.0);
}

TEST_F(CliCommands, PreflightThatRefusesIsAFailure) {
    const Ran ran =
        run(Form::kText, [](const Context& c) { return run_preflight(c, "g1", "too-small:1"); });
    EXPECT_EQ(ran.status, kRefused);
    EXPECT_NE(ran.out.find("Migration: refused"), std::string::npos);
}

TEST_F(CliCommands, APortMayBeLeftOut) {
    for (const auto& [given, asked] :
         std::vector<std::pair<std::string, std::string>>{{"hostb", "hostb:7700"},
                                                          {"hostb:1", "hostb:1"},
                                                          {"[fe80::1]", "[fe80::1]:7700"},
                                                          {"", ""}}) {
        run(Form::kText, [&](const Context& c) { return run_preflight(c, "g1", given); });
        EXPECT_EQ(daemon_.asked(), "preflight g1 " + asked);
        run(Form::kText, [&](const Context& c) { return run_pull(c, "s", given, "h"); });
        EXPECT_EQ(daemon_.asked(), "pull s " + asked + " h");
    }
}

TEST_F(CliCommands, AMisspeltSessionIsNamedWithTheNearest) {
    const Ran ran = run(Form::kText, [](const Context& c) { return run_status(c, "g9"); });
    EXPECT_EQ(ran.err, "gantry: no session or VM 'g9' on this host [session.unknown]\n")
        << "one letter of two is another name";
    daemon_.know_only({Code::kNotFound, "session.unknown", "no session or VM 'idd-1'"});
    const Ran abort = run(Form::kText, [](const Context& c) { return run_abort(c, "idd-1"); });
    EXPECT_EQ(abort.status, kNotFound);
    EXPECT_EQ(abort.err,
              "gantry: no session or VM 'idd-1'; did you mean 'id-1'? [session.unknown]\n");
}

TEST_F(CliCommands, SnapshotAndRestoreSayHowLongTheyTook) {
    const Ran saved =
        run(Form::kText, [](const Context& c) { return run_snapshot(c, "g1", "/tmp/x", false); });
    EXPECT_EQ(saved.out, "g1 saved to /tmp/x: 3.0 MiB in 1.5 s, pause 37.2 ms\n");
    const Ran restored =
        run(Form::kText, [](const Context& c) { return run_restore(c, "g1", "/tmp/x"); });
    EXPECT_EQ(restored.out, "g1 goes on from /tmp/x: 3.0 MiB in 2.0 s\n");
}

TEST_F(CliCommands, AnUnknownSessionHasAStatusOfItsOwn) {
    const Ran ran = run(Form::kText, [](const Context& c) { return run_status(c, "g9"); });
    EXPECT_EQ(ran.status, kNotFound);
    EXPECT_NE(ran.err.find("no session or VM 'g9' on this host"), std::string::npos);
}

}  // namespace
}  // namespace gantry::cli
