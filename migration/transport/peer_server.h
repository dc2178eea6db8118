// PeerServer: the `Peer` service of gantryd.proto over mutual TLS; the source's side of moves.
//
// Knows no sessions itself: everything goes to a PeerBackend, whose methods run on gRPC's threads,
// many at a time. Destruction cancels all streams and waits for them.
#pragma once

#include <memory>
#include <string>

#include "migration/transport/bulk_queue.h"
#include "migration/transport/links.h"
#include "migration/transport/peer_client.h"
#include "migration/transport/tls.h"

namespace gantry::transport {

class PeerBackend {
public:
    virtual ~PeerBackend() = default;
    virtual Result<engine::TargetCapabilities> capabilities() = 0;
    virtual Result<engine::SessionNeeds> needs(const std::string& session_id) = 0;
    /// A target's message; answers go by `link`.
    virtual void receive(const std::string& session_id, engine::Message message,
                         std::shared_ptr<MessageLink> link) = 0;
    /// The batches of a migration under way; nullptr when there is none such (yet).
    virtual std::shared_ptr<BulkQueue> bulk(const std::string& session_id,
                                            engine::MigrationId migration) = 0;
};

class PeerServer {
public:
    /// Listens on ADDRESS:PORT (port 0: any, see port()).
    static Result<std::unique_ptr<PeerServer>> start(const std::string& listen,
                                                     const TlsMaterial& tls, PeerIdentity self,
                                                     PeerBackend& backend);
    ~PeerServer();
    PeerServer(const PeerServer&) = delete;
    PeerServer& operator=(const PeerServer&) = delete;
    [[nodiscard]] int port() const;

private:
    class Impl;
    explicit PeerServer(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace gantry::transport
