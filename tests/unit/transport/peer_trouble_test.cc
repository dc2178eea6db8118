// Links between hosts of which one breaks off, refuses, says too little or nothing at all.
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <thread>

#include "migration/transport/message_map.h"
#include "migration/transport/status_map.h"
#include "migration/transport/stream_pump.h"
#include "proto/control/gantryd.grpc.pb.h"
#include "tests/unit/transport/peers.h"

namespace gantry::transport {
namespace {

using namespace std::chrono_literals;

control::BulkUp first_word_of_bulk() {
    control::BulkUp first;
    *first.mutable_migration() = to_proto(engine::MigrationId{1, 2});
    first.set_session_id("session-1");
    first.set_stream_count(1);
    return first;
}

TEST(PeerTrouble, AHostThatCannotSayWhatItsGpuIsSaysWhy) {
    auto& certificates = Certificates::instance();
    Server server(certificates.material("ours", "a"));
    server.backend.trouble = Error{Code::kUnavailable, "gpu.gone", "the GPU fell off the bus"};
    PeerClient client(server.address(), certificates.material("ours", "b"), {"hostb", "test"});
    const auto capabilities = client.capabilities();
    ASSERT_FALSE(capabilities.ok());
    EXPECT_EQ(capabilities.error().reason, "gpu.gone");
}

TEST(PeerTrouble, ABulkStreamBeginsWithItsMigration) {
    auto& certificates = Certificates::instance();
    Server server(certificates.material("ours", "a"));
    const auto stub =
        control::Peer::NewStub(channel_to(server, certificates.material("ours", "b")));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + 20s);
    const auto stream = stub->Bulk(&context);
    ASSERT_TRUE(stream->Write(control::BulkUp{}));
    control::BulkDown batch;
    EXPECT_FALSE(stream->Read(&batch));
    EXPECT_EQ(from_status(stream->Finish()).reason, "stream.first");
}

TEST(PeerTrouble, ABulkStreamEndsWithItsTarget) {
    auto& certificates = Certificates::instance();
    Server server(certificates.material("ours", "a"));
    const auto stub =
        control::Peer::NewStub(channel_to(server, certificates.material("ours", "b")));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + 20s);
    const auto stream = stub->Bulk(&context);
    ASSERT_TRUE(stream->Write(first_word_of_bulk()));
    ASSERT_TRUE(stream->WritesDone());  // While the source has nothing to send.
    control::BulkDown batch;
    EXPECT_FALSE(stream->Read(&batch));
    EXPECT_NE(stream->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    server.backend.queue->close();  // Else the server would wait for a stream that goes on.
}

TEST(PeerTrouble, ATargetIsToldThatAStreamWithBatchesBroke) {
    auto& certificates = Certificates::instance();
    Server server(certificates.material("ours", "a"));
    PeerClient client(server.address(), certificates.material("ours", "b"), {"hostb", "test"});
    std::atomic<int> batches{0};
    std::promise<void> lost;
    std::atomic<bool> is_told{false};
    TargetLinkHandlers handlers;
    handlers.message = [](const engine::Message&) {};
    handlers.batch = [&](const control::BulkDown&) -> Result<void> {
        ++batches;
        return {};
    };
    handlers.bulk_lost = [&](const Error&) {
        if (!is_told.exchange(true)) {
            lost.set_value();
        }
    };
    const auto link = client.pull("session-1", handlers);
    link->open_bulk({1, 2}, 1);
    control::BulkDown batch;
    batch.set_round(1);
    batch.set_batch(1);
    ASSERT_TRUE(server.backend.queue->push(std::move(batch), {}, [] { return false; }));
    for (int i = 0; i < 1000 && batches == 0; ++i) {
        std::this_thread::sleep_for(20ms);
    }
    ASSERT_EQ(batches, 1);
    EXPECT_FALSE(is_told);
    server.backend.queue->close();  // Its stream ends.
    EXPECT_EQ(lost.get_future().wait_for(20s), std::future_status::ready);
}

/// A host that ends every stream as soon as it is opened.
class ShortService final : public control::Peer::Service {
public:
    grpc::Status Move(
        grpc::ServerContext*,
        grpc::ServerReaderWriter<control::EngineMessage, control::EngineMessage>*) override {
        ++opened;
        return {grpc::StatusCode::UNAVAILABLE, "shutting down"};
    }
    std::atomic<int> opened{0};
};

TEST(PeerTrouble, AHostThatEndsEveryStreamIsDialledMoreAndMoreRarely) {
    auto& certificates = Certificates::instance();
    const TlsMaterial tls = certificates.material("ours", "a");
    grpc::SslServerCredentialsOptions options;
    options.pem_root_certs = tls.authority_pem;
    options.pem_key_cert_pairs.push_back({tls.key_pem, tls.certificate_pem});
    ShortService service;
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(options), &port);
    builder.RegisterService(&service);
    const auto server = builder.BuildAndStart();
    ASSERT_NE(server, nullptr);
    PeerClient client("127.0.0.1:" + std::to_string(port), certificates.material("ours", "b"),
                      {"hostb", "test"});
    TargetLinkHandlers handlers;
    handlers.message = [](const engine::Message&) {};
    auto link = client.pull("session-1", handlers);
    for (int i = 0; i < 1000 && service.opened < 2; ++i) {
        std::this_thread::sleep_for(20ms);
    }
    ASSERT_GE(service.opened, 2);
    const int before = service.opened;  // 200 ms after the first.
    std::this_thread::sleep_for(2s);    // The next follow after 400, 800 and 1600 ms.
    EXPECT_LE(service.opened - before, 3);
    link.reset();
}

/// Takes one connection on loopback, and does `meet` with it.
class OneCaller {
public:
    explicit OneCaller(std::function<void(int)> meet) {
        listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof address;
        EXPECT_EQ(::bind(listener_, reinterpret_cast<const sockaddr*>(&address), size), 0);
        EXPECT_EQ(::listen(listener_, 1), 0);
        EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
        address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
        thread_ = std::thread([this, meet = std::move(meet)] {
            meet(::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
        });
    }
    ~OneCaller() {
        thread_.join();
        ::close(listener_);
    }
    OneCaller(const OneCaller&) = delete;
    OneCaller& operator=(const OneCaller&) = delete;
    [[nodiscard]] const std::string& address() const { return address_; }

private:
    int listener_;
    std::string address_;
    std::thread thread_;
};

TEST(PeerTrouble, WhoAsksWhatIsWrongWithAPeerHangsUp) {
    const TlsMaterial tls = Certificates::instance().material("ours", "b");
    bool has_hung_up = false;
    {
        const OneCaller caller([&](int fd) {
            const timeval patience{10, 0};
            ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
            const std::string answer = "HTTP/1.0 400 Bad Request\r\n\r\n";
            EXPECT_EQ(::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL),
                      static_cast<ssize_t>(answer.size()));
            char text[512];
            ssize_t got = 0;
            do {
                got = ::recv(fd, text, sizeof text, 0);
            } while (got > 0);
            has_hung_up = got == 0 || errno == ECONNRESET;
            ::close(fd);
        });
        EXPECT_EQ(diagnose_tls(tls, caller.address()).reason, "certificate.invalid");
    }
    EXPECT_TRUE(has_hung_up);
}

TEST(PeerTrouble, WhatWasWrongBeforeIsNotWhatIsWrongWithAPeer) {
    const TlsMaterial tls = Certificates::instance().material("ours", "b");
    const OneCaller caller([](int fd) {
        char text[16];
        EXPECT_GT(::recv(fd, text, sizeof text, 0), 0);
        const linger at_once{1, 0};  // It is reset: nobody gives a reason.
        ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        ::close(fd);
    });
    EXPECT_FALSE(certificate_names("no certificate", "127.0.0.1"));
    const Error error = diagnose_tls(tls, caller.address());
    EXPECT_NE(error.text.find("broke the TLS handshake off"), std::string::npos) << error.text;
    EXPECT_EQ(error.text.find("PEM"), std::string::npos) << error.text;
}

/// A stream that breaks with its first message.
struct BrokenStream {
    using Message = std::shared_ptr<int>;
    bool Write(const Message&) { return false; }  // NOLINT: gRPC's name
};

TEST(PeerTrouble, NothingIsKeptForAStreamThatBroke) {
    BrokenStream stream;
    StreamPump<BrokenStream, BrokenStream::Message> pump(&stream);
    pump.send(std::make_shared<int>(1));
    bool is_dropped = false;
    for (int i = 0; i < 500 && !is_dropped; ++i) {  // The pump's thread may be late.
        const auto message = std::make_shared<int>(2);
        pump.send(message);
        is_dropped = message.use_count() == 1;
        std::this_thread::sleep_for(10ms);
    }
    EXPECT_TRUE(is_dropped);
}

}  // namespace
}  // namespace gantry::transport
