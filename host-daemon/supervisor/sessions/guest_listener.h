// Accepts programs of this host on a unix socket (proto/wire/attach.h), checks who they are and
// what they speak, and hands each to the registry, which starts a worker for it.
//
// What comes from the socket is hostile. One thread accepts, and waits for the first packet of each
// connection: all of it must be there kRequestTimeout after the connection was taken. Who says
// nothing costs two descriptors until then and holds nobody up: there are at most kSilentOfAUser of
// one user and kSilentMax of all, of which the oldest makes room. Who has spoken goes to the
// AttachQueue.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "host-daemon/supervisor/base/token_bucket.h"
#include "host-daemon/supervisor/sessions/attach_queue.h"
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
    static constexpr std::chrono::milliseconds kRequestTimeout{1000};
    static constexpr std::size_t kSilentOfAUser = 32;
    static constexpr std::size_t kSilentMax = 256;

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
    /// One that has connected and not said yet what it is.
    struct Caller {
        control::PacketSocket socket;
        GuestRequest request;
        std::chrono::steady_clock::time_point until;
    };

    GuestListener(const GuestConfig& config, std::optional<gid_t> group,
                  control::PacketListener listener, Open open, Relayed relayed,
                  std::unique_ptr<AttachQueue> queue);
    void accept_loop();
    void wait();
    void take_callers();
    void accept_one();
    void make_room(std::uint32_t uid);
    void hand_over(Caller caller);
    void refuse(control::PacketSocket& socket, const Error& error);
    void say(const std::string& text);
    void serve(control::PacketSocket socket, GuestRequest request, const control::Packet& packet);
    Result<void> attach(control::PacketSocket& socket, GuestRequest request,
                        const control::Packet& packet);
    Result<GuestRequest> check_user(control::PacketSocket& socket);
    [[nodiscard]] bool is_admitted(const control::PacketSocket& socket, uid_t uid, gid_t gid) const;
    Result<void> read_request(const wire::AttachRequest& request);
    Result<wire::AttachRequest> attach_request(const control::Packet& packet);
    void attach_vm(control::PacketSocket& socket, const wire::VmAttachRequest& request);
    void resume(control::PacketSocket& socket, const wire::ResumeRequest& request);

    const GuestConfig config_;
    const std::optional<gid_t> group_;
    control::PacketListener listener_;
    Open open_;
    Relayed relayed_;
    std::unique_ptr<AttachQueue> queue_;
    std::atomic<bool> stopping_{false};
    Mutex log_mutex_;
    TokenBucket lines_ GANTRY_GUARDED_BY(log_mutex_){10, 1};
    std::list<Caller> callers_;  ///< thread_; the oldest first.
    std::thread thread_;
};

}  // namespace gantry::supervisor
