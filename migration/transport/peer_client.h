// PeerClient: this host's way to one other gantryd: questions, and the target's side of a move.
//
// Every method first makes sure that the peer is reachable, accepts our certificate and shows one
// of our authority, and speaks our protocol version; each failure has its own reason
// (`network.unreachable`, `certificate.invalid`, `version.peer`). Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "migration/engine/gpu_choice.h"
#include "migration/transport/links.h"
#include "migration/transport/tls.h"

namespace gantry::transport {

struct PeerIdentity {
    std::string host;  ///< This host, as the other's log shall call it.
    std::string gantry_version;
};

class PeerClient {
public:
    PeerClient(std::string address, TlsMaterial tls, PeerIdentity self);
    ~PeerClient();
    PeerClient(const PeerClient&) = delete;
    PeerClient& operator=(const PeerClient&) = delete;

    Result<void> hello();
    /// Of each GPU of that host, in the order in which a session would be given one; of one, the
    /// best, where the host has an older release.
    Result<std::vector<engine::HostGpu>> capabilities();
    Result<engine::SessionNeeds> needs(const std::string& session_id);
    /// After a move from there to here: hands this host's record over. The source's.
    Result<control::MoveRecord> share_record(const control::MoveRecord& record);
    /// After a successful hello(): the streams of a move of `session_id` from there to here.
    std::unique_ptr<TargetLink> pull(const std::string& session_id, TargetLinkHandlers handlers);

private:
    class Impl;
    std::shared_ptr<Impl> impl_;
};

}  // namespace gantry::transport
