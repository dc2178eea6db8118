// One guest process of gantry-relay's: its link, and the socket and region of its worker.
//
// Threads: the link's and the pump's own; adopt() and the questions from any. Failure: a session
// ends by itself, over(), when its guest or its worker has gone for good.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "host-daemon/relay/admission.h"
#include "proto/control/unique_fd.h"
#include "proto/wire/mirror/endpoint.h"

namespace gantry::relay {

struct Settings {
    std::string listen;
    std::string daemon = wire::kDefaultGuestSocket;
    std::uint64_t give_up_ms = 60'000;
    /// Serves also programs that prove no VM's key, as programs of this host.
    bool allow_keyless = false;
};

using SessionKey = std::pair<std::uint64_t, std::uint64_t>;

/// What gantryd gives for a guest that was moved to this host.
struct MovedGuest {
    wire::ResumeReply reply;
    control::UniqueFd region;
    control::UniqueFd worker;  ///< The guest's end of the worker's socket; none of a VM's.
};

/// Asks gantryd for the guest of a link; kNotNow when gantryd cannot be reached.
wire::ResumeVerdict ask_for(const Settings& settings, const SessionKey& key, MovedGuest* guest);

class Session {
public:
    /// `room`: of a new session, held until gantryd has given it a region.
    Session(const Settings& settings, const SessionKey& key, Room room = nullptr);
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    /// Before the first adopt(), for a guest that another host's relay served.
    bool take_over(MovedGuest& guest);
    void adopt(int fd, const wire::LinkHello& theirs, const wire::LinkHello& mine) {
        link_.adopt(fd, theirs, mine);
    }
    [[nodiscard]] bool over() const;
    /// Its guest has not even asked for a region, for longer than that may take.
    [[nodiscard]] bool late() const;
    /// Its worker has given it away: this is only the memory of it.
    [[nodiscard]] bool moved() const { return moved_.load(); }
    /// Its worker is frozen: whether the guest is to be served here, gantryd knows.
    [[nodiscard]] bool held() const;
    /// Its worker has given it away, or is about to.
    [[nodiscard]] bool left() const;

private:
    void receive(std::span<const std::byte> bytes);
    bool attach();
    bool attach_program(const wire::AttachRequest& request, wire::GuestAttached* attached);
    bool attach_vm(const wire::GuestAttach& guest, wire::GuestAttached* attached);
    void leave_channel();
    [[nodiscard]] std::optional<std::uint64_t> ackable() const;
    bool start_pump();
    void pump();
    [[nodiscard]] bool is_in(wire::WorkerState state) const;
    [[nodiscard]] bool was_given_away();
    void tell_death();

    const Settings settings_;
    const SessionKey key_;
    wire::OpeningFrame<wire::GuestAttach> opening_;
    wire::MappedChannel channel_;
    std::optional<wire::HostMirror> mirror_;
    int worker_ = -1;  ///< None for a VM: gantryd looks at the channel's claim instead.
    std::atomic<wire::MirrorWords*> words_{nullptr};  ///< Once the region is mapped.
    const bool is_new_;
    Room room_;  ///< The link's thread's, once there is one.
    std::atomic<bool> has_asked_{false};
    const std::chrono::steady_clock::time_point begun_at_ = std::chrono::steady_clock::now();
    std::atomic<bool> over_{false};
    std::atomic<bool> moved_{false};
    std::chrono::steady_clock::time_point moved_at_;  ///< Before moved_ is set.
    std::atomic<bool> stop_{false};
    std::jthread pump_;
    wire::ResumableLink link_;
};

}  // namespace gantry::relay
