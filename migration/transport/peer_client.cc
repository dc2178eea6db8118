#include "migration/transport/peer_client.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <atomic>
#include <thread>
#include <vector>

#include "migration/transport/message_map.h"
#include "migration/transport/status_map.h"
#include "migration/transport/stream_pump.h"
#include "proto/base/mutex.h"
#include "proto/base/unless_exhausted.h"
#include "proto/control/gantryd.grpc.pb.h"

namespace gantry::transport {
namespace {

constexpr std::chrono::seconds kCallDeadline{8};
constexpr std::chrono::seconds kRecordDeadline{2};  ///< Nobody waits for it but gantryd's end.
constexpr std::size_t kEarlyMessagesMax = 8;
constexpr std::chrono::milliseconds kRedialFirst{100};
constexpr std::chrono::milliseconds kRedialMax{2000};
constexpr std::chrono::milliseconds kFarewell{500};  ///< A link's end waits so long for its words.

std::shared_ptr<grpc::Channel> make_channel(const std::string& address, const TlsMaterial& tls) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = tls.authority_pem;
    options.pem_cert_chain = tls.certificate_pem;
    options.pem_private_key = tls.key_pem;
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);  // graphs and images; batches are small
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 5000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of our own
    return grpc::CreateCustomChannel(address, grpc::SslCredentials(options), arguments);
}

/// Sleeps in small steps, so that the end of a link is not waited for.
void nap(std::chrono::milliseconds time, const std::atomic<bool>& stopping) {
    const auto end = std::chrono::steady_clock::now() + time;
    while (!stopping && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::milliseconds{20});
    }
}

using MoveStream = grpc::ClientReaderWriter<control::EngineMessage, control::EngineMessage>;
using BulkStream = grpc::ClientReaderWriter<control::BulkUp, control::BulkDown>;

/// One of several: reads batches, applies them, acknowledges. Dials again until stopped.
class BulkReader {
public:
    BulkReader(std::string address, TlsMaterial tls, control::BulkUp first,
               const TargetLinkHandlers& handlers)
        : channel_(make_channel(address, tls)),
          first_(std::move(first)),
          handlers_(handlers),
          thread_([this] { run(); }) {}
    ~BulkReader() {
        stopping_ = true;
        {
            const MutexLock lock(mutex_);
            if (context_ != nullptr) {
                context_->TryCancel();
            }
        }
        thread_.join();
    }
    BulkReader(const BulkReader&) = delete;
    BulkReader& operator=(const BulkReader&) = delete;

private:
    void run() {
        auto wait = kRedialFirst;
        while (!stopping_) {
            if (read_stream()) {
                wait = kRedialFirst;
            }
            nap(wait, stopping_);
            wait = std::min(wait * 2, kRedialMax);
        }
    }

    /// True when at least one batch came.
    bool read_stream() {
        grpc::ClientContext context;
        {
            const MutexLock lock(mutex_);
            if (stopping_) {
                return false;  // nobody would cancel this call any more
            }
            context_ = &context;
        }
        const auto stub = control::Peer::NewStub(channel_);
        const auto stream = stub->Bulk(&context);
        bool got_batch = false;
        if (stream->Write(first_)) {
            control::BulkDown batch;
            while (!stopping_ && stream->Read(&batch)) {
                got_batch = true;
                if (handlers_.batch(batch)) {
                    control::BulkUp acknowledgement;
                    acknowledgement.set_acknowledged_round(batch.round());
                    acknowledgement.set_acknowledged_batch(batch.batch());
                    if (!stream->Write(acknowledgement)) {
                        break;
                    }
                }
            }
        }
        {
            const MutexLock lock(mutex_);
            context_ = nullptr;
        }
        context.TryCancel();
        const grpc::Status status = stream->Finish();
        if (got_batch && !stopping_) {
            handlers_.bulk_lost(from_status(status));
        }
        return got_batch;
    }

    std::shared_ptr<grpc::Channel> channel_;
    const control::BulkUp first_;
    const TargetLinkHandlers& handlers_;
    std::atomic<bool> stopping_{false};
    Mutex mutex_;
    grpc::ClientContext* context_ GANTRY_GUARDED_BY(mutex_) = nullptr;
    std::thread thread_;
};

class GrpcTargetLink final : public TargetLink {
public:
    GrpcTargetLink(std::string address, TlsMaterial tls, std::string session_id,
                   TargetLinkHandlers handlers)
        : address_(std::move(address)),
          tls_(std::move(tls)),
          session_id_(std::move(session_id)),
          handlers_(std::move(handlers)),
          channel_(make_channel(address_, tls_)),
          thread_([this] { run(); }) {}

    /// The last message may say that the migration has ended, and nobody would repeat it.
    ~GrpcTargetLink() override {
        stopping_ = true;
        {
            MutexLock lock(mutex_);
            if (pump_ != nullptr) {
                pump_->finish();
                stream_ended_.wait_for(
                    lock, kFarewell, [this]() GANTRY_REQUIRES(mutex_) { return pump_ == nullptr; });
            }
            if (context_ != nullptr) {
                context_->TryCancel();
            }
        }
        thread_.join();
        bulk_.clear();
    }

    void send(const engine::Message& message) override {
        control::EngineMessage out = to_proto(message);
        out.set_session_id(session_id_);
        const MutexLock lock(mutex_);
        if (pump_ != nullptr) {
            pump_->send(std::move(out));
        } else if (early_.size() < kEarlyMessagesMax) {
            early_.push_back(std::move(out));  // the stream is being opened: saves a repetition
        }
    }

    void open_bulk(engine::MigrationId migration, int stream_count) override {
        bulk_.clear();
        for (int i = 0; i < stream_count; ++i) {
            control::BulkUp first;
            *first.mutable_migration() = to_proto(migration);
            first.set_session_id(session_id_);
            first.set_stream_index(static_cast<std::uint32_t>(i));
            first.set_stream_count(static_cast<std::uint32_t>(stream_count));
            // With fewer, where the system makes no more threads.
            (void)unless_exhausted([&] {
                bulk_.push_back(
                    std::make_unique<BulkReader>(address_, tls_, std::move(first), handlers_));
            });
        }
    }

private:
    using Pump = StreamPump<MoveStream, control::EngineMessage>;

    void run() {
        auto wait = kRedialFirst;
        while (!stopping_) {
            wait = read_stream() ? kRedialFirst : std::min(wait * 2, kRedialMax);
            nap(wait, stopping_);
        }
    }

    bool read_stream() {
        grpc::ClientContext context;
        {
            const MutexLock lock(mutex_);
            if (stopping_) {
                return false;  // nobody would cancel this call any more
            }
            context_ = &context;
        }
        const auto stub = control::Peer::NewStub(channel_);
        const auto stream = stub->Move(&context);  // Waits for the peer, if that is silent.
        const auto pump = unless_exhausted([&] { return std::make_unique<Pump>(stream.get()); });
        if (!pump) {  // another try follows
            {
                const MutexLock lock(mutex_);
                context_ = nullptr;
            }
            context.TryCancel();
            (void)stream->Finish();
            return false;
        }
        {
            const MutexLock lock(mutex_);
            pump_ = pump->get();
            for (control::EngineMessage& message : early_) {
                pump_->send(std::move(message));
            }
            early_.clear();
        }
        bool got_message = false;
        control::EngineMessage in;
        while (stream->Read(&in)) {
            got_message = true;
            auto message = from_proto(in);
            if (message && !stopping_) {
                handlers_.message(std::move(*message));
            }
        }
        {
            const MutexLock lock(mutex_);
            context_ = nullptr;
            pump_ = nullptr;
            stream_ended_.notify_all();
        }
        context.TryCancel();
        (*pump)->stop();
        (void)stream->Finish();
        return got_message;
    }

    const std::string address_;
    const TlsMaterial tls_;
    const std::string session_id_;
    const TargetLinkHandlers handlers_;
    std::shared_ptr<grpc::Channel> channel_;
    std::atomic<bool> stopping_{false};
    Mutex mutex_;
    CondVar stream_ended_;
    grpc::ClientContext* context_ GANTRY_GUARDED_BY(mutex_) = nullptr;
    Pump* pump_ GANTRY_GUARDED_BY(mutex_) = nullptr;
    std::vector<control::EngineMessage> early_ GANTRY_GUARDED_BY(mutex_);
    std::vector<std::unique_ptr<BulkReader>> bulk_;
    std::thread thread_;
};

}  // namespace

class PeerClient::Impl {
public:
    Impl(std::string address, TlsMaterial tls, PeerIdentity self)
        : address_(std::move(address)), tls_(std::move(tls)), self_(std::move(self)) {}

    Result<void> hello(control::Peer::Stub& stub) {
        control::HelloRequest request;
        request.set_protocol_version(kPeerProtocolVersion);
        request.set_gantry_version(self_.gantry_version);
        request.set_host(self_.host);
        control::HelloReply reply;
        const grpc::Status status = call(
            [&](grpc::ClientContext* context) { return stub.Hello(context, request, &reply); });
        if (!status.ok()) {
            const Error error = from_status(status);
            // gRPC folds every trouble of a connection into one code: find out which it is.
            return error.reason == "grpc.transport" ? diagnose_tls(tls_, address_) : error;
        }
        if (reply.protocol_version() != kPeerProtocolVersion) {
            return Error{Code::kFailedPrecondition, "version.peer",
                         "gantryd " + reply.gantry_version() + " at " + address_ +
                             " speaks peer protocol " + std::to_string(reply.protocol_version()) +
                             ", this one (" + self_.gantry_version + ") " +
                             std::to_string(kPeerProtocolVersion) +
                             "; install the same release on both"};
        }
        return {};
    }

    template <typename Call>
    grpc::Status call(Call&& make_call) {
        grpc::ClientContext context;
        context.set_deadline(std::chrono::system_clock::now() + kCallDeadline);
        return make_call(&context);
    }

    Result<std::unique_ptr<control::Peer::Stub>> connect() {
        auto stub = control::Peer::NewStub(make_channel(address_, tls_));
        GANTRY_TRY(hello(*stub));
        return stub;
    }

    const std::string address_;
    const TlsMaterial tls_;
    const PeerIdentity self_;
};

PeerClient::PeerClient(std::string address, TlsMaterial tls, PeerIdentity self)
    : impl_(std::make_shared<Impl>(std::move(address), std::move(tls), std::move(self))) {}
PeerClient::~PeerClient() = default;

Result<void> PeerClient::hello() {
    GANTRY_TRY(impl_->connect());
    return {};
}

Result<std::vector<engine::HostGpu>> PeerClient::capabilities() {
    GANTRY_ASSIGN(const auto stub, impl_->connect());
    control::CapabilitiesReply reply;
    const grpc::Status status = impl_->call(
        [&](grpc::ClientContext* context) { return stub->Capabilities(context, {}, &reply); });
    if (!status.ok()) {
        return from_status(status);
    }
    std::vector<engine::HostGpu> out;
    for (const control::HostGpu& gpu : reply.gpus()) {
        out.push_back({gpu.number(), from_proto(gpu.capabilities())});
    }
    if (out.empty()) {
        out.push_back({std::nullopt, from_proto(reply.capabilities())});
    }
    return out;
}

Result<engine::SessionNeeds> PeerClient::needs(const std::string& session_id) {
    GANTRY_ASSIGN(const auto stub, impl_->connect());
    control::NeedsRequest request;
    request.set_session_id(session_id);
    control::NeedsReply reply;
    const grpc::Status status = impl_->call(
        [&](grpc::ClientContext* context) { return stub->Needs(context, request, &reply); });
    if (!status.ok()) {
        return from_status(status);
    }
    return from_proto(reply.needs());
}

Result<control::MoveRecord> PeerClient::share_record(const control::MoveRecord& record) {
    const auto stub = control::Peer::NewStub(make_channel(impl_->address_, impl_->tls_));
    control::ShareRecordRequest request;
    *request.mutable_record() = record;
    control::ShareRecordReply reply;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kRecordDeadline);
    if (const auto status = stub->ShareRecord(&context, request, &reply); !status.ok()) {
        return from_status(status);
    }
    return std::move(*reply.mutable_record());
}

std::unique_ptr<TargetLink> PeerClient::pull(const std::string& session_id,
                                             TargetLinkHandlers handlers) {
    return std::make_unique<GrpcTargetLink>(impl_->address_, impl_->tls_, session_id,
                                            std::move(handlers));
}

}  // namespace gantry::transport
