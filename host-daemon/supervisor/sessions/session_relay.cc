// Session: guests over TCP that were moved here. What the source's relay and worker shared has not
// come along: the region is made anew, and whoever names the guest's link gets it.
#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "host-daemon/supervisor/sessions/session.h"

namespace gantry::supervisor {
namespace {

/// As long as gantry-guest dials.
constexpr std::chrono::seconds kRelayPatience{60};

}  // namespace

Result<void> Session::make_link() {
    GuestLink link;
    GANTRY_ASSIGN(link.region, Region::create_local(info_.region_bytes));
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        return Error{Code::kResourceExhausted, "guest.descriptors",
                     std::string("cannot make a socket pair: ") + std::strerror(errno)};
    }
    link.socket.reset(ends[0]);
    set_link(std::move(link));
    const MutexLock lock(mutex_);
    guest_end_.reset(ends[1]);
    guest_end_made_ = std::chrono::steady_clock::now();
    return {};
}

Result<RelayedGuest> Session::relayed(std::uint32_t channel) {
    wire::ChannelLayout layout{};
    RelayedGuest guest;
    guest.region.reset(::fcntl(region_->fd(), F_DUPFD_CLOEXEC, 0));
    if (!guest.region.valid() ||
        !wire::compute_layout(region_->bytes(), channel_count_, channel, &layout)) {
        return Error{Code::kUnavailable, "guest.descriptors",
                     std::string("gantryd has no descriptor left: ") + std::strerror(errno)};
    }
    guest.region_bytes = region_->bytes();
    guest.channel_count = channel_count_;
    guest.channel_index = channel;
    return guest;
}

Result<RelayedGuest> Session::give_channel(std::uint32_t pid) {
    GANTRY_TRY(open_region());
    const MutexLock lock(mutex_);
    GANTRY_ASSIGN(const auto claims, region_->claims(channel_count_));
    for (const Claim& claim : claims) {
        const bool is_left = claim.state == wire::ClaimState::kClosing &&
                             !workers_.find(part_of({claim.channel, claim.generation}));
        if (claim.state != wire::ClaimState::kFree && !is_left) {
            continue;
        }
        const Claim fresh{claim.channel, wire::ClaimState::kClaiming, pid,
                          wire::next_generation(claim.generation)};
        GANTRY_TRY(region_->reserve(channel_count_, fresh));
        GANTRY_ASSIGN(RelayedGuest guest, relayed(claim.channel));
        guest.generation = fresh.generation;
        return guest;
    }
    return Error{Code::kResourceExhausted, "region.full",
                 fmt::format("all {} channels of the VM are in use by other CUDA processes",
                             channel_count_)};
}

Result<RelayedGuest> Session::meet_relay(const MirrorName& name) {
    const bool serves = this->serves();
    const MutexLock lock(mutex_);
    const Error unknown{Code::kNotFound, "guest.unknown", "no guest of this link is here"};
    for (std::uint32_t channel = 0; region_ && channel < channel_count_; ++channel) {
        GANTRY_ASSIGN(const auto own, region_->mirror_name(channel_count_, channel));
        if (own != name) {
            continue;
        }
        if (!serves) {
            return Error{Code::kUnavailable, "guest.not_served",
                         "session " + info_.id + " is not served here now"};
        }
        const bool is_program = info_.kind == SessionKind::kLocal;
        if (is_program && !guest_end_.valid()) {
            return unknown;  // Its relay has it, or had it.
        }
        GANTRY_ASSIGN(RelayedGuest guest, relayed(channel));
        guest.guest_end = std::move(guest_end_);
        spdlog::info("session {}: its guest has come", info_.id);
        return guest;
    }
    return unknown;
}

bool Session::awaits_relay() {
    const MutexLock lock(mutex_);
    if (guest_end_.valid() && std::chrono::steady_clock::now() - guest_end_made_ > kRelayPatience) {
        spdlog::warn("session {}: its guest did not come", info_.id);
        guest_end_.reset();
    }
    return guest_end_.valid();
}

}  // namespace gantry::supervisor
