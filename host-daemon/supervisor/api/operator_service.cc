#include "host-daemon/supervisor/api/operator_service.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "host-daemon/supervisor/config/accounts.h"
#include "host-daemon/supervisor/moves/move_history.h"
#include "migration/transport/status_map.h"
#include "proto/control/gantryd.grpc.pb.h"

namespace gantry::supervisor {
namespace {

constexpr std::chrono::milliseconds kWatchInterval{200};
constexpr int kMessageBytesMax = 8 << 20;  ///< A domain's XML is the largest thing that is asked.

grpc::Status finish(const Result<void>& result) {
    return result ? grpc::Status::OK : transport::to_status(result.error());
}

template <typename Reply>
grpc::Status finish(Result<Reply> result, Reply* reply) {
    if (!result) {
        return transport::to_status(result.error());
    }
    *reply = std::move(*result);
    return grpc::Status::OK;
}

Error not_here(const std::string& name, bool was_here) {
    if (was_here) {
        return {Code::kNotFound, "session.ended", "'" + name + "' has ended without a move"};
    }
    return {Code::kNotFound, "session.unknown",
            "no session or VM '" + name +
                "' on this host; `gantry status` lists them, and "
                "`gantry watch --wait` waits for one to come"};
}

class Service final : public control::Operator::Service {
public:
    explicit Service(Registry& registry) : registry_(registry) {}

    grpc::Status Admit(grpc::ServerContext*, const control::AdmitRequest* request,
                       control::AdmitReply* reply) override {
        return finish(registry_.admit(*request), reply);
    }
    grpc::Status Released(grpc::ServerContext*, const control::ReleasedRequest* request,
                          control::ReleasedReply*) override {
        registry_.released(*request);
        return grpc::Status::OK;
    }
    grpc::Status Starting(grpc::ServerContext*, const control::StartingRequest* request,
                          control::StartingReply* reply) override {
        return finish(registry_.starting(*request), reply);
    }
    grpc::Status Preflight(grpc::ServerContext*, const control::PreflightRequest* request,
                           control::PreflightReply* reply) override {
        return finish(registry_.preflight(*request), reply);
    }
    grpc::Status ListSessions(grpc::ServerContext*, const control::ListSessionsRequest* request,
                              control::ListSessionsReply* reply) override {
        *reply = registry_.list(request->session());
        if (reply->sessions_size() == 0 && !request->session().empty()) {
            if (auto ended = registry_.status().ended(request->session())) {
                *reply->add_sessions() = std::move(*ended);
            }
        }
        return grpc::Status::OK;
    }
    grpc::Status MoveRecords(grpc::ServerContext*, const control::MoveRecordsRequest* request,
                             control::MoveRecordsReply* reply) override {
        return finish(registry_.records().find(request->session(), request->migration_id()), reply);
    }
    grpc::Status Abort(grpc::ServerContext*, const control::AbortRequest* request,
                       control::AbortReply* reply) override {
        auto aborted = registry_.abort(request->session());
        if (!aborted) {
            return transport::to_status(aborted.error());
        }
        reply->set_text(*aborted);
        return grpc::Status::OK;
    }
    grpc::Status ForceComplete(grpc::ServerContext*, const control::ForceCompleteRequest* request,
                               control::ForceCompleteReply* reply) override {
        auto forced = registry_.force_complete(request->session());
        if (!forced) {
            return transport::to_status(forced.error());
        }
        reply->set_text(*forced);
        return grpc::Status::OK;
    }
    grpc::Status Fenced(grpc::ServerContext*, const control::FencedRequest* request,
                        control::FencedReply*) override {
        return finish(registry_.fenced(request->session()));
    }
    grpc::Status Discard(grpc::ServerContext*, const control::DiscardRequest* request,
                         control::DiscardReply*) override {
        return finish(registry_.discard(request->session()));
    }
    grpc::Status Inspect(grpc::ServerContext*, const control::InspectRequest* request,
                         control::InspectReply* reply) override {
        return finish(registry_.inspect(request->session()), reply);
    }
    grpc::Status Profile(grpc::ServerContext*, const control::ProfileRequest* request,
                         control::ProfileReply* reply) override {
        return finish(registry_.profile(*request), reply);
    }
    grpc::Status Account(grpc::ServerContext*, const control::AccountRequest* request,
                         control::AccountReply* reply) override {
        return finish(registry_.account(request->session()), reply);
    }
    grpc::Status Sched(grpc::ServerContext*, const control::SchedRequest* request,
                       control::SchedReply* reply) override {
        return finish(registry_.sched(*request), reply);
    }
    grpc::Status Pull(grpc::ServerContext*, const control::PullRequest* request,
                      control::PullReply* reply) override {
        reply->set_session_id(request->session());
        return finish(registry_.pull(*request));
    }
    grpc::Status Snapshot(grpc::ServerContext* context, const control::SnapshotRequest* request,
                          control::SnapshotReply* reply) override {
        return finish(registry_.snapshot(*request, [context] { return context->IsCancelled(); }),
                      reply);
    }
    grpc::Status Restore(grpc::ServerContext*, const control::RestoreRequest* request,
                         control::RestoreReply* reply) override {
        return finish(registry_.restore(*request), reply);
    }
    grpc::Status ReplaceWorkers(grpc::ServerContext*, const control::ReplaceWorkersRequest* request,
                                control::ReplaceWorkersReply* reply) override {
        return finish(registry_.replace_workers(*request), reply);
    }
    grpc::Status Reassign(grpc::ServerContext*, const control::ReassignRequest* request,
                          control::ReplaceWorkersReply* reply) override {
        return finish(registry_.reassign(*request), reply);
    }

    grpc::Status Watch(grpc::ServerContext* context, const control::WatchRequest* request,
                       grpc::ServerWriter<control::WatchReply>* writer) override {
        WatchFilter filter;
        const std::uint64_t begun = registry_.status().history_serial();
        bool has_moved = false;
        bool was_here = false;
        while (!context->IsCancelled()) {
            has_moved = has_moved || registry_.status().has_ended(request->session(), begun);
            const control::ListSessionsReply list = registry_.list(request->session(), begun);
            bool moving = false;
            for (const control::SessionStatus& status : list.sessions()) {
                moving = moving || is_moving(status);
                has_moved = has_moved || is_moving(status);
                if (auto changed = filter.next(status)) {
                    control::WatchReply reply;
                    *reply.mutable_status() = std::move(*changed);
                    if (!writer->Write(reply)) {
                        return grpc::Status::OK;
                    }
                }
            }
            if (request->until_ended() && has_moved && !moving) {
                return grpc::Status::OK;
            }
            was_here = was_here || list.sessions_size() != 0;
            const bool is_gone = list.sessions_size() == 0 && !request->session().empty();
            if (is_gone && !was_here && !request->wait() && request->until_ended()) {
                if (auto ended = registry_.status().ended(request->session())) {
                    control::WatchReply reply;
                    *reply.mutable_status() = std::move(*ended);
                    writer->Write(reply);
                    return grpc::Status::OK;
                }
            }
            if (is_gone && (was_here || !request->wait())) {
                return transport::to_status(not_here(request->session(), was_here));
            }
            std::this_thread::sleep_for(kWatchInterval);
        }
        return grpc::Status::OK;
    }

private:
    Registry& registry_;
};

Result<void> restrict_socket(const OperatorConfig& config) {
    if (config.group.empty()) {
        ::chmod(config.socket.c_str(), 0600);
        return {};
    }
    GANTRY_ASSIGN(const gid_t group, find_operator_group(config.group));
    if (::chown(config.socket.c_str(), static_cast<uid_t>(-1), group) != 0 ||
        ::chmod(config.socket.c_str(), 0660) != 0) {
        return Error{Code::kFailedPrecondition, "operator.group",
                     "operator.group '" + config.group + "' cannot be given " + config.socket +
                         ": " + std::strerror(errno) +
                         "; run gantryd as root or as a member of the group"};
    }
    return {};
}

}  // namespace

class OperatorService::Impl {
public:
    explicit Impl(Registry& registry) : service(registry) {}
    Service service;
    std::unique_ptr<grpc::Server> server;
};

OperatorService::OperatorService(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

OperatorService::~OperatorService() {
    impl_->server->Shutdown(std::chrono::system_clock::now());
    impl_->server->Wait();
}

Result<std::unique_ptr<OperatorService>> OperatorService::start(const OperatorConfig& config,
                                                                Registry& registry) {
    if (config.socket.empty() || config.socket.size() >= sizeof(sockaddr_un::sun_path)) {
        return Error{
            Code::kInvalidArgument, "operator.socket",
            "operator.socket must be a path of 1 to 107 characters: '" + config.socket + "'"};
    }
    ::unlink(config.socket.c_str());
    auto impl = std::make_unique<Impl>(registry);
    grpc::ServerBuilder builder;
    int port = 0;
    const mode_t before = ::umask(0177);  // nobody else may connect before its mode is set
    builder.AddListeningPort("unix:" + config.socket, grpc::InsecureServerCredentials(), &port);
    builder.SetMaxReceiveMessageSize(kMessageBytesMax);
    builder.RegisterService(&impl->service);
    impl->server = builder.BuildAndStart();
    ::umask(before);
    if (!impl->server) {
        return Error{Code::kUnavailable, "operator.listen",
                     "cannot listen on " + config.socket + " (operator.socket)"};
    }
    GANTRY_TRY(restrict_socket(config));
    return std::unique_ptr<OperatorService>(new OperatorService(std::move(impl)));
}

}  // namespace gantry::supervisor
