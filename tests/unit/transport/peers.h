// Two hosts on loopback for tests: their certificates, a server and what stands behind it.
#pragma once

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "migration/transport/peer_client.h"
#include "migration/transport/peer_server.h"
#include "migration/transport/tls.h"

namespace gantry::transport {

/// Certificates of two authorities, made once for all tests with the openssl command.
class Certificates {
public:
    static Certificates& instance() {
        static Certificates certificates;
        return certificates;
    }
    TlsFiles files(const std::string& authority, const std::string& host) const {
        return {folder_ + "/" + authority + ".pem", folder_ + "/" + host + ".pem",
                folder_ + "/" + host + ".key"};
    }
    TlsMaterial material(const std::string& authority, const std::string& host) const {
        auto loaded = load_tls(files(authority, host));
        EXPECT_TRUE(loaded.ok()) << loaded.error().text;
        return *loaded;
    }
    const std::string& folder() const { return folder_; }

private:
    Certificates() {
        require_tls13();  // Before the first channel.
        std::string pattern = testing::TempDir() + "tlsXXXXXX";
        folder_ = ::mkdtemp(pattern.data());
        const std::string script = "cd " + folder_ + R"( && exec 2>/dev/null
authority() { openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout $1.key \
    -out $1.pem -days 2 -subj "/CN=$1"; }
host() { openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout $2.key -out $2.csr \
    -subj "/CN=$2" && printf "subjectAltName=$3\n" >ext &&
    openssl x509 -req -in $2.csr -CA $1.pem -CAkey $1.key -CAcreateserial -days 2 -extfile ext \
    -out $2.pem; }
authority ours && authority others && host ours a IP:127.0.0.1 && host ours b IP:127.0.0.1 &&
host others stranger IP:127.0.0.1 && host ours elsewhere IP:192.0.2.1 &&
host ours named DNS:host.example)";
        EXPECT_EQ(std::system(script.c_str()), 0);  // NOLINT: fixed text, own folder
    }
    ~Certificates() { std::filesystem::remove_all(folder_); }
    std::string folder_;
};

class FakeBackend final : public PeerBackend {
public:
    Result<std::vector<engine::HostGpu>> capabilities() override {
        if (trouble) {
            return *trouble;
        }
        std::vector<engine::HostGpu> out(2);
        for (std::uint32_t i = 0; i < out.size(); ++i) {
            out[i].number = 3 - i;
            out[i].capabilities.gpu_name = "fake " + std::to_string(i);
        }
        return out;
    }
    Result<engine::SessionNeeds> needs(const std::string& session_id) override {
        return Error{Code::kNotFound, "session.unknown", "no session " + session_id};
    }
    void receive(const std::string& session_id, engine::Message message, const std::string& from,
                 std::shared_ptr<MessageLink> link) override {
        {
            const std::lock_guard lock(mutex);
            session = session_id;
            peer = from;
            heard_abort |= std::holds_alternative<engine::MsgAbort>(message.body);
            changed.notify_all();
        }
        link->send({message.migration, engine::MsgGrant{{}, Epoch{5}}});
    }
    std::shared_ptr<BulkQueue> bulk(const std::string&, engine::MigrationId,
                                    const std::string& from) override {
        const std::lock_guard lock(mutex);
        bulk_peer = from;
        return queue;
    }
    void turned_away(const std::string& name, const std::string&) override {
        const std::lock_guard lock(mutex);
        turned_away_peer = name;
    }
    Result<control::MoveRecord> share_record(const control::MoveRecord& record,
                                             const std::string& from) override {
        const std::lock_guard lock(mutex);
        record_peer = from;
        control::MoveRecord own = record;
        own.set_host("hosta");
        return own;
    }
    std::string last_session() {
        const std::lock_guard lock(mutex);
        return session;
    }
    std::optional<Error> trouble;  // Of its GPU. Set before anybody asks.
    std::mutex mutex;              // Guards what follows, but `queue`: gRPC's threads write it.
    std::condition_variable changed;
    std::string session;
    std::string peer;
    std::string bulk_peer;
    std::string turned_away_peer;
    std::string record_peer;
    bool heard_abort = false;
    std::shared_ptr<BulkQueue> queue = std::make_shared<BulkQueue>([](std::uint64_t) {});
};

struct Server {
    explicit Server(const TlsMaterial& tls, std::vector<std::string> allow = {}) {
        auto started =
            PeerServer::start("127.0.0.1:0", tls, {"hosta", "test"}, backend, std::move(allow));
        EXPECT_TRUE(started.ok()) << started.error().text;
        server = std::move(*started);
    }
    std::string address() const { return "127.0.0.1:" + std::to_string(server->port()); }
    FakeBackend backend;
    std::unique_ptr<PeerServer> server;
};

inline std::shared_ptr<grpc::Channel> channel_to(const Server& server, const TlsMaterial& tls) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = tls.authority_pem;
    options.pem_cert_chain = tls.certificate_pem;
    options.pem_private_key = tls.key_pem;
    return grpc::CreateChannel(server.address(), grpc::SslCredentials(options));
}

}  // namespace gantry::transport
