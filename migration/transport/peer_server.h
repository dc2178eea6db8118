// PeerServer: the `Peer` service of gantryd.proto over mutual TLS; the source's side of moves.
//
// Knows no sessions itself: everything goes to a PeerBackend, whose methods run on gRPC's threads,
// many at a time. Destruction cancels all streams and waits for them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "migration/transport/bulk_queue.h"
#include "migration/transport/links.h"
#include "migration/transport/peer_client.h"
#include "migration/transport/tls.h"

namespace gantry::transport {

class PeerBackend {
public:
    virtual ~PeerBackend() = default;
    /// Of each GPU, in the order in which a session would be given one.
    virtual Result<std::vector<engine::HostGpu>> capabilities() = 0;
    virtual Result<engine::SessionNeeds> needs(const std::string& session_id) = 0;
    /// A message of the target whose certificate has the name `peer`; answers go by `link`.
    virtual void receive(const std::string& session_id, engine::Message message,
                         const std::string& peer, std::shared_ptr<MessageLink> link) = 0;
    /// The batches of a migration to `peer` under way; nullptr when there is none such (yet).
    virtual std::shared_ptr<BulkQueue> bulk(const std::string& session_id,
                                            engine::MigrationId migration,
                                            const std::string& peer) = 0;
    /// A host called that may not; at most once a second, for the log.
    virtual void turned_away(const std::string& peer, const std::string& address) = 0;
    /// The record that `peer` has of a move to it that has ended; this host's of the same move.
    virtual Result<control::MoveRecord> share_record(const control::MoveRecord& record,
                                                     const std::string& peer) = 0;
};

class PeerServer {
public:
    /// Listens on ADDRESS:PORT (port 0: any, see port()). `allow`: names of which a caller's
    /// certificate must have one; empty: every certificate of the authority will do.
    static Result<std::unique_ptr<PeerServer>> start(const std::string& listen,
                                                     const TlsMaterial& tls, PeerIdentity self,
                                                     PeerBackend& backend,
                                                     std::vector<std::string> allow = {});
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
