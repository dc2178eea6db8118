// Two gantryds' ends on loopback: mutual TLS with right and wrong certificates, messages, bulk.
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

#include "migration/transport/message_map.h"
#include "migration/transport/peer_client.h"
#include "migration/transport/peer_server.h"
#include "migration/transport/status_map.h"
#include "proto/control/gantryd.grpc.pb.h"
#include "tests/unit/transport/peers.h"

namespace gantry::transport {
namespace {

using namespace std::chrono_literals;

TEST(PeerTls, RightCertificatesAreLetIn) {
    auto& certificates = Certificates::instance();
    Server server(certificates.material("ours", "a"));
    PeerClient client(server.address(), certificates.material("ours", "b"), {"hostb", "test"});
    const auto capabilities = client.capabilities();
    ASSERT_TRUE(capabilities.ok()) << capabilities.error().text;
    ASSERT_EQ(capabilities->size(), 2U);
    EXPECT_EQ(capabilities->front().number, 3U);  // In the host's order, and not by number.
    EXPECT_EQ(capabilities->front().capabilities.gpu_name, "fake 0");
    EXPECT_EQ(capabilities->back().number, 2U);
    EXPECT_EQ(capabilities->back().capabilities.gpu_name, "fake 1");
    EXPECT_EQ(client.needs("s").error().reason, "session.unknown");
    control::MoveRecord record;
    record.set_migration_id("ab");
    const auto shared = client.share_record(record);
    ASSERT_TRUE(shared.ok()) << shared.error().text;
    EXPECT_EQ(shared->migration_id() + " " + shared->host(), "ab hosta");
    const std::lock_guard lock(server.backend.mutex);
    EXPECT_EQ(server.backend.record_peer, "127.0.0.1/b");
}

TEST(PeerTls, OnlyAllowedNamesMayCallAtAll) {
    auto& certificates = Certificates::instance();
    const TlsMaterial b = certificates.material("ours", "b");  // CN=b, IP:127.0.0.1
    for (const std::vector<std::string>& allow :
         {std::vector<std::string>{"b"}, {"hostz", "127.0.0.1"}}) {
        const Server server(certificates.material("ours", "a"), allow);
        PeerClient client(server.address(), b, {"hostb", "test"});
        EXPECT_TRUE(client.hello().ok()) << allow.back();
    }
    Server server(certificates.material("ours", "a"), {"hosta", "127.0.0.10", "B"});
    const auto stub = control::Peer::NewStub(channel_to(server, b));
    const auto is_refused = [](const grpc::Status& status) {
        EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
        EXPECT_EQ(from_status(status).reason, "peer.not_allowed");
        EXPECT_NE(status.error_message().find("127.0.0.1/b"), std::string::npos)
            << status.error_message();
    };
    grpc::ClientContext hello;
    control::HelloReply hello_reply;
    control::HelloRequest request;
    request.set_protocol_version(kPeerProtocolVersion);
    is_refused(stub->Hello(&hello, request, &hello_reply));
    grpc::ClientContext capabilities;
    control::CapabilitiesReply capabilities_reply;
    is_refused(stub->Capabilities(&capabilities, {}, &capabilities_reply));
    grpc::ClientContext needs;
    control::NeedsReply needs_reply;
    is_refused(stub->Needs(&needs, {}, &needs_reply));
    grpc::ClientContext record;
    control::ShareRecordReply record_reply;
    is_refused(stub->ShareRecord(&record, {}, &record_reply));
    grpc::ClientContext move;
    const auto messages = stub->Move(&move);
    messages->Write(to_proto(engine::Message{{1, 2}, engine::MsgAlive{}}));
    control::EngineMessage in;
    EXPECT_FALSE(messages->Read(&in));
    is_refused(messages->Finish());
    grpc::ClientContext bulk;
    const auto blocks = stub->Bulk(&bulk);
    control::BulkDown batch;
    EXPECT_FALSE(blocks->Read(&batch));
    is_refused(blocks->Finish());
    const std::lock_guard lock(server.backend.mutex);
    EXPECT_EQ(server.backend.peer + server.backend.record_peer, "") << "nothing of it was taken";
    EXPECT_EQ(server.backend.turned_away_peer, "127.0.0.1/b");
}

TEST(PeerTls, NamesAreOneLineAndTellCertificatesApart) {
    EXPECT_EQ(peer_name({{"hostb", "10.77.0.2"}, "hostb"}), "hostb/10.77.0.2");
    EXPECT_EQ(peer_name({{}, "a\nb"}), "a?b");
    EXPECT_EQ(peer_name({{}, ""}), "?");
    EXPECT_EQ(peer_name({{}, std::string(1000, 'x')}).size(), 256U);
    EXPECT_FALSE(is_allowed({{}, ""}, {""})) << "no name is no name";
}

TEST(PeerTls, AnythingOlderThanTls13IsRefused) {
    auto& certificates = Certificates::instance();
    const Server server(certificates.material("ours", "a"));
    const auto handshake = [&](const std::string& version) {
        const std::string folder = certificates.folder();
        const std::string command = "echo | timeout 20 openssl s_client -connect " +
                                    server.address() + " -alpn h2 " + version + " -CAfile " +
                                    folder + "/ours.pem -cert " + folder + "/b.pem -key " + folder +
                                    "/b.key >/dev/null 2>&1";
        return std::system(command.c_str());  // NOLINT: fixed text, own folder
    };
    EXPECT_EQ(handshake("-tls1_3"), 0);
    EXPECT_NE(handshake("-tls1_2"), 0);
}

TEST(PeerStreams, AMessageWithoutEndIsNotTaken) {
    auto& certificates = Certificates::instance();
    Server server(certificates.material("ours", "a"));
    const auto stub =
        control::Peer::NewStub(channel_to(server, certificates.material("ours", "b")));
    grpc::ClientContext context;
    const auto stream = stub->Move(&context);
    stream->Write(
        to_proto(engine::Message{{1, 2}, engine::MsgRoundLost{1, std::string(4 << 20, 'x')}}));
    control::EngineMessage in;
    EXPECT_FALSE(stream->Read(&in));
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    const std::lock_guard lock(server.backend.mutex);
    EXPECT_EQ(server.backend.peer, "");
}

/// A host with the certificate `client` asks one with `server`, and is told what is wrong.
void expect_refused(const TlsMaterial& server, const TlsMaterial& client,
                    const std::function<std::string(const Server&)>& words) {
    const Server other(server);
    PeerClient asking(other.address(), client, {"hostb", "test"});
    const auto hello = asking.hello();
    ASSERT_FALSE(hello.ok());
    EXPECT_EQ(hello.error().reason, "certificate.invalid") << hello.error().text;
    EXPECT_NE(hello.error().text.find(words(other)), std::string::npos) << hello.error().text;
}

std::string of_the_server(const Server& server) { return "of the gantryd at " + server.address(); }

TEST(PeerTls, ClientOfAnotherAuthorityIsRefusedByName) {
    auto& certificates = Certificates::instance();
    expect_refused(certificates.material("ours", "a"), certificates.material("ours", "stranger"),
                   [](const Server&) { return "does not accept this host"; });
}

TEST(PeerTls, ServerOfAnotherAuthorityIsRefusedByName) {
    auto& certificates = Certificates::instance();
    expect_refused(certificates.material("others", "stranger"), certificates.material("ours", "b"),
                   of_the_server);
}

TEST(PeerTls, CertificateForAnotherAddressIsRefused) {
    auto& certificates = Certificates::instance();
    expect_refused(certificates.material("ours", "elsewhere"), certificates.material("ours", "b"),
                   of_the_server);
}

TEST(PeerTls, NobodyThereIsAnotherReason) {
    auto& certificates = Certificates::instance();
    PeerClient client("127.0.0.1:1", certificates.material("ours", "b"), {"hostb", "test"});
    EXPECT_EQ(client.hello().error().reason, "network.unreachable");
}

TEST(TlsFilesTest, EachMistakeNamesItsFile) {
    auto& certificates = Certificates::instance();
    TlsFiles files = certificates.files("ours", "a");
    files.key = certificates.files("ours", "b").key;
    const auto mixed = load_tls(files);
    ASSERT_FALSE(mixed.ok());
    EXPECT_EQ(mixed.error().reason, "certificate.invalid");
    EXPECT_NE(mixed.error().text.find("b.key"), std::string::npos);
    files = certificates.files("ours", "a");
    files.certificate = certificates.folder() + "/missing.pem";
    EXPECT_NE(load_tls(files).error().text.find("missing.pem"), std::string::npos);
    files.certificate = certificates.folder() + "/junk.pem";
    std::ofstream(files.certificate) << "no certificate";
    EXPECT_NE(load_tls(files).error().text.find("junk.pem"), std::string::npos);
    files.certificate = certificates.folder() + "/empty.pem";
    std::ofstream(files.certificate) << "";
    EXPECT_NE(load_tls(files).error().text.find("cannot read " + files.certificate),
              std::string::npos);
}

TEST(PeerStreams, MessagesAndBatchesCross) {
    auto& certificates = Certificates::instance();
    Server server(certificates.material("ours", "a"));
    PeerClient client(server.address(), certificates.material("ours", "b"), {"hostb", "test"});
    ASSERT_TRUE(client.hello().ok());
    std::mutex mutex;
    std::condition_variable changed;
    int grants = 0;
    std::size_t batches = 0;
    TargetLinkHandlers handlers;
    handlers.message = [&](const engine::Message& message) {
        const std::lock_guard lock(mutex);
        grants += std::holds_alternative<engine::MsgGrant>(message.body);
        changed.notify_all();
    };
    handlers.batch = [&](const control::BulkDown& batch) -> Result<void> {
        const std::lock_guard lock(mutex);
        batches += batch.blocks().content().size() == 1000;
        changed.notify_all();
        return {};
    };
    handlers.bulk_lost = [](const Error&) {};
    const auto link = client.pull("session-1", handlers);
    std::unique_lock lock(mutex);
    for (int i = 0; i < 100 && grants == 0; ++i) {  // dropped while the stream is being opened
        lock.unlock();
        link->send({{1, 2}, engine::MsgAlive{}});
        lock.lock();
        changed.wait_for(lock, 100ms);
    }
    EXPECT_GT(grants, 0);
    EXPECT_EQ(server.backend.last_session(), "session-1");
    lock.unlock();
    link->open_bulk({1, 2}, 3);
    for (std::uint64_t i = 1; i <= 50; ++i) {
        control::BulkDown batch;
        batch.set_round(1);
        batch.set_batch(i);
        batch.mutable_blocks()->set_content(std::string(1000, 'x'));
        ASSERT_TRUE(server.backend.queue->push(std::move(batch), {}, [] { return false; }));
    }
    lock.lock();
    EXPECT_TRUE(changed.wait_for(lock, 10s, [&] { return batches == 50; })) << batches;
    lock.unlock();
    for (int i = 0; i < 100 && server.backend.queue->acknowledged_bytes() < 50'000; ++i) {
        std::this_thread::sleep_for(50ms);
    }
    EXPECT_GE(server.backend.queue->acknowledged_bytes(), 50'000U);
    EXPECT_TRUE(server.backend.queue->take_unacknowledged().empty());
    server.backend.queue->close();
}

// A target says that it gives up and takes its link down at once; nobody repeats that word.
TEST(PeerStreams, LastMessageArrivesAlthoughTheLinkEnds) {
    auto& certificates = Certificates::instance();
    for (int i = 0; i < 20; ++i) {
        Server server(certificates.material("ours", "a"));
        PeerClient client(server.address(), certificates.material("ours", "b"), {"hostb", "test"});
        std::mutex mutex;
        std::condition_variable changed;
        bool is_open = false;
        TargetLinkHandlers handlers;
        handlers.message = [&](const engine::Message&) {
            const std::lock_guard lock(mutex);
            is_open = true;
            changed.notify_all();
        };
        auto link = client.pull("session-1", handlers);
        std::unique_lock lock(mutex);
        link->send({{1, 2}, engine::MsgAlive{}});
        ASSERT_TRUE(changed.wait_for(lock, 30s, [&] { return is_open; }));
        lock.unlock();
        link->send({{1, 2}, engine::MsgAbort{"migration.guest_stopped", "It has gone."}});
        link.reset();
        std::unique_lock heard(server.backend.mutex);
        EXPECT_TRUE(
            server.backend.changed.wait_for(heard, 5s, [&] { return server.backend.heard_abort; }));
    }
}

TEST(BulkQueueTest, LostStreamGivesItsBatchesBack) {
    std::uint64_t lost_round = 0;
    BulkQueue queue([&](std::uint64_t round) { lost_round = round; });
    for (std::uint64_t i = 1; i <= 3; ++i) {
        control::BulkDown batch;
        batch.set_round(7);
        batch.set_batch(i);
        ASSERT_TRUE(queue.push(std::move(batch), {{257}, {{engine::MemorySpace::kDevice, i}}},
                               [] { return false; }));
    }
    const std::uint64_t stream = queue.open_stream();
    ASSERT_NE(queue.pop(stream), nullptr);
    ASSERT_NE(queue.pop(stream), nullptr);
    queue.acknowledge(7, 1);
    queue.lose_stream(stream);
    EXPECT_EQ(lost_round, 7U);
    EXPECT_EQ(queue.pop(stream), nullptr) << "a lost stream gets nothing any more";
    EXPECT_EQ(queue.take_unacknowledged().size(), 2U) << "one on its way, one still queued";
}

TEST(BulkQueueTest, WhatWasGivenToNoStreamIsNeitherLostNorAcknowledged) {
    int losses = 0;
    BulkQueue queue([&](std::uint64_t) { ++losses; });
    control::BulkDown batch;
    batch.set_round(7);
    batch.set_batch(1);
    ASSERT_TRUE(queue.push(std::move(batch), {{257}, {}}, [] { return false; }));
    const std::uint64_t first = queue.open_stream();
    queue.lose_stream(first);
    EXPECT_EQ(losses, 0) << "another stream takes it";
    queue.acknowledge(7, 1);
    EXPECT_EQ(queue.acknowledged_bytes(), 0U) << "a lie, or a mistake";
    EXPECT_EQ(queue.take_unacknowledged().size(), 1U);
}

// Whoever is told of a loss may be gone once the queue is closed.
TEST(BulkQueueTest, CloseWaitsForWhoIsToldOfALoss) {
    std::promise<void> telling;
    std::atomic<bool> has_told{false};
    BulkQueue queue([&](std::uint64_t) {
        telling.set_value();
        std::this_thread::sleep_for(200ms);
        has_told = true;
    });
    control::BulkDown batch;
    batch.set_round(1);
    ASSERT_TRUE(queue.push(std::move(batch), {}, [] { return false; }));
    const std::uint64_t stream = queue.open_stream();
    ASSERT_NE(queue.pop(stream), nullptr);
    std::jthread loses([&] { queue.lose_stream(stream); });
    telling.get_future().wait();
    queue.close();
    EXPECT_TRUE(has_told);
}

// A host that takes connections and says nothing, as one that hangs.
TEST(PeerStreams, LinkToASilentHostEndsAtOnce) {
    const int silent = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ASSERT_EQ(::bind(silent, reinterpret_cast<const sockaddr*>(&address), size), 0);
    ASSERT_EQ(::listen(silent, 4), 0);
    ASSERT_EQ(::getsockname(silent, reinterpret_cast<sockaddr*>(&address), &size), 0);
    PeerClient client("127.0.0.1:" + std::to_string(ntohs(address.sin_port)),
                      Certificates::instance().material("ours", "b"), {"hostb", "test"});
    TargetLinkHandlers handlers;
    handlers.message = [](const engine::Message&) {};
    auto link = client.pull("s", handlers);
    std::this_thread::sleep_for(500ms);  // It has dialled, and waits.
    const auto begun = std::chrono::steady_clock::now();
    link.reset();
    EXPECT_LT(std::chrono::steady_clock::now() - begun, 5s);
    ::close(silent);
}

/// Keeps the link to answer by.
class KeepingBackend final : public PeerBackend {
public:
    Result<std::vector<engine::HostGpu>> capabilities() override {
        return std::vector<engine::HostGpu>{};
    }
    Result<engine::SessionNeeds> needs(const std::string&) override {
        return engine::SessionNeeds{};
    }
    void receive(const std::string&, engine::Message, const std::string&,
                 std::shared_ptr<MessageLink> from) override {
        link.set_value(std::move(from));
    }
    std::shared_ptr<BulkQueue> bulk(const std::string&, engine::MigrationId,
                                    const std::string&) override {
        return nullptr;
    }
    void turned_away(const std::string&, const std::string&) override {}
    Result<control::MoveRecord> share_record(const control::MoveRecord& record,
                                             const std::string&) override {
        return record;
    }
    std::promise<std::shared_ptr<MessageLink>> link;
};

TEST(PeerTls, ACertificateIsOfTheNamesAndAddressesInIt) {
    auto& certificates = Certificates::instance();
    const std::string by_address = certificates.material("ours", "a").certificate_pem;
    EXPECT_TRUE(certificate_names(by_address, "127.0.0.1"));
    EXPECT_FALSE(certificate_names(by_address, "127.0.0.2"));
    const std::string by_name = certificates.material("ours", "named").certificate_pem;
    EXPECT_TRUE(certificate_names(by_name, "host.example"));
    EXPECT_FALSE(certificate_names(by_name, "other.example"));
    EXPECT_FALSE(certificate_names(by_name, "named")) << "its subject is no name of a host";
    EXPECT_FALSE(certificate_names("no certificate", "127.0.0.1"));
}

TEST(PeerTls, AHostIsWhatStandsInBracketsOrBeforeThePort) {
    EXPECT_EQ(host_of("host.example:16700"), "host.example");
    EXPECT_EQ(host_of("[fe80::1]:16700"), "fe80::1");
    EXPECT_EQ(host_of("[half:16700"), "[half");
    EXPECT_EQ(host_of("half]:16700"), "half]");
}

// The source's machine sends while the stream of a peer that does not read comes to its end.
TEST(PeerStreams, PeerThatDoesNotReadHoldsUpNobodyWhoSends) {
    auto& certificates = Certificates::instance();
    KeepingBackend backend;
    auto server = PeerServer::start("127.0.0.1:0", certificates.material("ours", "a"),
                                    {"hosta", "test"}, backend);
    ASSERT_TRUE(server.ok()) << server.error().text;
    const TlsMaterial tls = certificates.material("ours", "b");
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = tls.authority_pem;
    options.pem_cert_chain = tls.certificate_pem;
    options.pem_private_key = tls.key_pem;
    const auto stub = control::Peer::NewStub(grpc::CreateChannel(
        "127.0.0.1:" + std::to_string((*server)->port()), grpc::SslCredentials(options)));
    grpc::ClientContext context;
    const auto stream = stub->Move(&context);
    ASSERT_TRUE(stream->Write(to_proto(engine::Message{{1, 2}, engine::MsgAlive{}})));
    const auto link = backend.link.get_future().get();
    engine::MsgComplete large;
    large.parts.resize(1);
    large.parts[0].graph = std::string(16 << 20, 'x');
    link->send({{1, 2}, large});
    ASSERT_TRUE(stream->WritesDone());
    bool is_held_up = false;
    for (int i = 0; i < 20 && !is_held_up; ++i) {
        std::this_thread::sleep_for(50ms);
        auto sent = std::async(std::launch::async, [&] {
            link->send({{1, 2}, engine::MsgAlive{}});
        });
        is_held_up = sent.wait_for(5s) != std::future_status::ready;
        if (is_held_up) {
            context.TryCancel();
        }
    }
    EXPECT_FALSE(is_held_up);
    context.TryCancel();
    (void)stream->Finish();
}

}  // namespace
}  // namespace gantry::transport
