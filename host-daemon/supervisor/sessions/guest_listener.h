// Accepts programs of this host on a unix socket (proto/wire/attach.h), checks who they are and
// what they speak, and hands each to the registry, which starts a worker for it.
//
// What comes from the socket is hostile. Each connection is served by a thread of its own, at most
// kConnectionsMax at a time, and for at most kRequestTimeout until it has said what it is.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "host-daemon/supervisor/sessions/session.h"
#include "proto/wire/attach.h"

namespace gantry::supervisor {

struct GuestRequest {
    std::uint32_t pid = 0;  ///< As the kernel says, not the guest.
    std::uint32_t uid = 0;
    std::uint64_t table_hash = 0;
    control::UniqueFd process;  ///< A pidfd; none where the process is not of this PID namespace.
};

class GuestListener {
public:
    /// Opens a session for the guest; the link's region has been made, its socket is the guest's.
    using Open = std::function<Result<void>(GuestRequest, GuestLink)>;

    /// Finds the guest of a link that gantry-relay does not know. kUnavailable: ask again.
    using Resume = std::function<Result<RelayedGuest>(const MirrorName&)>;

    /// Gives a process of a VM over TCP its channel.
    using AttachVm = std::function<Result<RelayedGuest>(const wire::VmAttachRequest&)>;
    struct Relayed {
        Resume resume;
        AttachVm attach_vm;
    };

    static Result<std::unique_ptr<GuestListener>> start(const GuestConfig& config, Open open,
                                                        Relayed relayed);
    ~GuestListener();
    GuestListener(const GuestListener&) = delete;
    GuestListener& operator=(const GuestListener&) = delete;

private:
    GuestListener(const GuestConfig& config, control::PacketListener listener, Open open,
                  Relayed relayed);
    void accept_loop();
    void serve(control::PacketSocket socket);
    Result<void> attach(control::PacketSocket& socket);
    Result<GuestRequest> check_user(control::PacketSocket& socket);
    Result<void> read_request(const wire::AttachRequest& request);
    Result<wire::AttachRequest> attach_request(const control::Packet& packet);
    void attach_vm(control::PacketSocket& socket, const wire::VmAttachRequest& request);
    void resume(control::PacketSocket& socket, const wire::ResumeRequest& request);

    const GuestConfig config_;
    control::PacketListener listener_;
    Open open_;
    Relayed relayed_;
    std::atomic<bool> stopping_{false};
    std::atomic<int> connections_{0};
    std::thread thread_;
};

}  // namespace gantry::supervisor
