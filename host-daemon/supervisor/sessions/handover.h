// Handing a local guest's descriptors from one gantryd to another on the same machine.
//
// A VM's region travels with the VM; a local program's region is a memfd that only its worker
// holds. When its session has been granted to another gantryd of this machine, that one fetches
// region and socket here, by a unix socket that only gantryd's own user may open, with the token of
// the grant. Threads: the server has one; fetch() may be called from any.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "host-daemon/supervisor/sessions/session.h"

namespace gantry::supervisor {

/// What the grant's winner asks for.
struct HandoverRequest {
    std::string session_id;
    std::uint64_t epoch = 0;
};

class HandoverServer {
public:
    using Give = std::function<Result<GuestLink>(const HandoverRequest&)>;
    static Result<std::unique_ptr<HandoverServer>> start(const std::string& path, Give give);
    ~HandoverServer();
    HandoverServer(const HandoverServer&) = delete;
    HandoverServer& operator=(const HandoverServer&) = delete;

private:
    HandoverServer(control::PacketListener listener, Give give);
    void serve();

    control::PacketListener listener_;
    Give give_;
    std::atomic<bool> stopping_{false};
    std::thread thread_;
};

Result<GuestLink> fetch_guest(const std::string& path, const HandoverRequest& request);

}  // namespace gantry::supervisor
