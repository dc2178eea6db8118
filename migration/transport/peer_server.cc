#include "migration/transport/peer_server.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <optional>
#include <thread>

#include "migration/transport/message_map.h"
#include "migration/transport/status_map.h"
#include "migration/transport/stream_pump.h"
#include "proto/base/unless_exhausted.h"
#include "proto/control/gantryd.grpc.pb.h"

namespace gantry::transport {
namespace {

constexpr std::chrono::seconds kBulkWait{5};
constexpr std::chrono::seconds kTurnedAwayTold{1};
/// What a target sends is small: its capabilities, acknowledgements.
constexpr int kMessageBytesMax = 1 << 20;

std::string text_of(const grpc::string_ref& text) { return {text.data(), text.size()}; }

CertificateNames names_of(const grpc::ServerContext& context) {
    CertificateNames names;
    const auto auth = context.auth_context();
    for (const auto& one : auth->FindPropertyValues(GRPC_X509_SAN_PROPERTY_NAME)) {
        names.alternative.push_back(text_of(one));
    }
    for (const auto& one : auth->FindPropertyValues(GRPC_X509_CN_PROPERTY_NAME)) {
        names.common = text_of(one);
    }
    return names;
}

using MoveStream = grpc::ServerReaderWriter<control::EngineMessage, control::EngineMessage>;
using BulkStream = grpc::ServerReaderWriter<control::BulkDown, control::BulkUp>;
using Pump = StreamPump<MoveStream, control::EngineMessage>;

/// Answers on one Move stream; harmless once the stream has ended.
class ServerMessageLink final : public MessageLink {
public:
    explicit ServerMessageLink(MoveStream* stream) : pump_(std::make_unique<Pump>(stream)) {}
    void send(const engine::Message& message) override {
        const MutexLock lock(mutex_);
        if (pump_) {
            pump_->send(to_proto(message));
        }
    }
    /// Waits for the message that is being written, as long as the peer does not read: unlocked,
    /// since the session's machine sends meanwhile.
    void end() {
        std::unique_ptr<Pump> ended;
        const MutexLock lock(mutex_);
        ended = std::move(pump_);
    }

private:
    Mutex mutex_;
    std::unique_ptr<Pump> pump_ GANTRY_GUARDED_BY(mutex_);
};

class PeerService final : public control::Peer::Service {
public:
    PeerService(PeerIdentity self, PeerBackend& backend, std::vector<std::string> allow)
        : self_(std::move(self)), backend_(backend), allow_(std::move(allow)) {}

    grpc::Status Hello(grpc::ServerContext* context, const control::HelloRequest* request,
                       control::HelloReply* reply) override {
        if (const auto caller = admit(*context); !caller) {
            return to_status(caller.error());
        }
        if (request->protocol_version() != kPeerProtocolVersion) {
            return to_status({Code::kFailedPrecondition, "version.peer",
                              "gantryd " + self_.gantry_version + " on " + self_.host +
                                  " speaks peer protocol " + std::to_string(kPeerProtocolVersion) +
                                  ", the one on " + request->host() + " (" +
                                  request->gantry_version() + ") " +
                                  std::to_string(request->protocol_version()) +
                                  "; install the same release on both"});
        }
        reply->set_protocol_version(kPeerProtocolVersion);
        reply->set_gantry_version(self_.gantry_version);
        reply->set_host(self_.host);
        reply->set_engine_protocol_version(engine::kEngineProtocolVersion);
        return grpc::Status::OK;
    }

    grpc::Status Capabilities(grpc::ServerContext* context, const control::CapabilitiesRequest*,
                              control::CapabilitiesReply* reply) override {
        if (const auto caller = admit(*context); !caller) {
            return to_status(caller.error());
        }
        auto capabilities = backend_.capabilities();
        if (!capabilities) {
            return to_status(capabilities.error());
        }
        for (const engine::HostGpu& gpu : *capabilities) {
            control::HostGpu& out = *reply->add_gpus();
            out.set_number(gpu.number.value_or(0));
            *out.mutable_capabilities() = to_proto(gpu.capabilities);
        }
        if (!capabilities->empty()) {  // For an older release, which knows of one.
            *reply->mutable_capabilities() = to_proto(capabilities->front().capabilities);
        }
        return grpc::Status::OK;
    }

    grpc::Status Needs(grpc::ServerContext* context, const control::NeedsRequest* request,
                       control::NeedsReply* reply) override {
        if (const auto caller = admit(*context); !caller) {
            return to_status(caller.error());
        }
        auto needs = backend_.needs(request->session_id());
        if (!needs) {
            return to_status(needs.error());
        }
        *reply->mutable_needs() = to_proto(*needs);
        return grpc::Status::OK;
    }

    grpc::Status ShareRecord(grpc::ServerContext* context,
                             const control::ShareRecordRequest* request,
                             control::ShareRecordReply* reply) override {
        const auto caller = admit(*context);
        if (!caller) {
            return to_status(caller.error());
        }
        auto own = backend_.share_record(request->record(), *caller);
        if (!own) {
            return to_status(own.error());
        }
        *reply->mutable_record() = std::move(*own);
        return grpc::Status::OK;
    }

    grpc::Status Move(grpc::ServerContext* context, MoveStream* stream) override {
        const auto caller = admit(*context);
        if (!caller) {
            return to_status(caller.error());
        }
        const auto link = std::make_shared<ServerMessageLink>(stream);
        control::EngineMessage in;
        Result<void> outcome;
        while (outcome && stream->Read(&in)) {
            auto message = from_proto(in);
            if (message) {
                backend_.receive(in.session_id(), std::move(*message), *caller, link);
            } else {
                outcome = message.error();
            }
        }
        link->end();
        return outcome ? grpc::Status::OK : to_status(outcome.error());
    }

    grpc::Status Bulk(grpc::ServerContext* context, BulkStream* stream) override {
        const auto caller = admit(*context);
        if (!caller) {
            return to_status(caller.error());
        }
        control::BulkUp first;
        if (!stream->Read(&first) || !first.has_migration()) {
            return to_status({Code::kInvalidArgument, "stream.first",
                              "a bulk stream must begin with its migration"});
        }
        const auto queue = wait_for_queue(context, first, *caller);
        if (!queue) {
            return to_status(
                {Code::kNotFound, "stream.unknown", "no such migration is under way here"});
        }
        const std::uint64_t id = queue->open_stream();
        auto reader = unless_exhausted([&] {
            return std::thread([&] {
                control::BulkUp up;
                while (stream->Read(&up)) {
                    queue->acknowledge(up.acknowledged_round(), up.acknowledged_batch());
                }
                queue->lose_stream(id);
            });
        });
        if (!reader) {
            queue->lose_stream(id);
            return to_status(reader.error());
        }
        while (const auto batch = queue->pop(id)) {
            if (!stream->Write(*batch)) {
                break;
            }
        }
        queue->lose_stream(id);
        context->TryCancel();  // ends the reader, which may wait for a peer that has gone silent
        reader->join();
        return grpc::Status::OK;
    }

private:
    /// The caller's name, if it may call at all.
    Result<std::string> admit(const grpc::ServerContext& context) {
        const CertificateNames names = names_of(context);
        std::string name = peer_name(names);
        if (is_allowed(names, allow_)) {
            return name;
        }
        const auto now = std::chrono::steady_clock::now();
        const MutexLock lock(mutex_);
        if (!told_at_ || now - *told_at_ > kTurnedAwayTold) {
            told_at_ = now;
            backend_.turned_away(name, context.peer());
        }
        return Error{Code::kPermissionDenied, "peer.not_allowed",
                     self_.host + " lets no host with the certificate of " + name +
                         " call; peer.allow in its gantryd.toml lists the names that may"};
    }

    std::shared_ptr<BulkQueue> wait_for_queue(grpc::ServerContext* context,
                                              const control::BulkUp& first,
                                              const std::string& caller) {
        const auto end = std::chrono::steady_clock::now() + kBulkWait;
        while (!context->IsCancelled() && std::chrono::steady_clock::now() < end) {
            if (auto queue =
                    backend_.bulk(first.session_id(), from_proto(first.migration()), caller)) {
                return queue;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds{20});
        }
        return nullptr;
    }

    const PeerIdentity self_;
    PeerBackend& backend_;
    const std::vector<std::string> allow_;
    Mutex mutex_;
    std::optional<std::chrono::steady_clock::time_point> told_at_ GANTRY_GUARDED_BY(mutex_);
};

}  // namespace

class PeerServer::Impl {
public:
    Impl(PeerIdentity self, PeerBackend& backend, std::vector<std::string> allow)
        : service(std::move(self), backend, std::move(allow)) {}
    PeerService service;
    std::unique_ptr<grpc::Server> server;
    int port = 0;
};

PeerServer::PeerServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

PeerServer::~PeerServer() {
    // A deadline in the past: streams are cancelled, not waited for.
    impl_->server->Shutdown(std::chrono::system_clock::now());
    impl_->server->Wait();
}

int PeerServer::port() const { return impl_->port; }

Result<std::unique_ptr<PeerServer>> PeerServer::start(const std::string& listen,
                                                      const TlsMaterial& tls, PeerIdentity self,
                                                      PeerBackend& backend,
                                                      std::vector<std::string> allow) {
    auto impl = std::make_unique<Impl>(std::move(self), backend, std::move(allow));
    grpc::SslServerCredentialsOptions options(
        GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    options.pem_root_certs = tls.authority_pem;
    options.pem_key_cert_pairs.push_back({tls.key_pem, tls.certificate_pem});
    grpc::ServerBuilder builder;
    builder.AddListeningPort(listen, grpc::SslServerCredentials(options), &impl->port);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // two daemons must not share a port
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 5000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
    builder.SetMaxReceiveMessageSize(kMessageBytesMax);
    builder.RegisterService(&impl->service);
    impl->server = builder.BuildAndStart();
    if (!impl->server || impl->port == 0) {
        return Error{Code::kUnavailable, "peer.listen",
                     "cannot listen on " + listen +
                         " for other hosts; is the port free and the address this host's? "
                         "(peer.listen)"};
    }
    return std::unique_ptr<PeerServer>(new PeerServer(std::move(impl)));
}

}  // namespace gantry::transport
