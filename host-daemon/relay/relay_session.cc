#include "host-daemon/relay/relay_session.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "proto/base/packet.h"
#include "proto/wire/wait.h"

namespace gantry::relay {
namespace {

using std::chrono::milliseconds;

/// How long the worker of a held session may be gone before gantryd has said that it died.
constexpr milliseconds kDeathNotice{1000};
constexpr milliseconds kHeldPause{1};
/// From the link's hello to the guest's first frame, however often the link is cut meanwhile.
constexpr milliseconds kAskPatience{10'000};

/// What stands for an answer that gantryd did not give.
void refuse(const Settings& settings, wire::AttachReply* reply) {
    const int error = errno;
    *reply = {};
    reply->cuda_error = 802;  // CUDA_ERROR_SYSTEM_NOT_READY
    std::snprintf(reply->text, sizeof reply->text, "gantry-relay cannot reach gantryd at %s: %s",
                  settings.daemon.c_str(), std::strerror(error));
}

void refuse_keyless(wire::AttachReply* reply) {
    reply->cuda_error = 800;  // CUDA_ERROR_NOT_PERMITTED
    std::snprintf(reply->text, sizeof reply->text, "%s",
                  "this host's gantry-relay serves VMs that prove their key: give gantry-guest "
                  "--vm and --key, or, where one tenant alone uses the host, gantry-relay "
                  "--allow-keyless [guest.keyless]");
    std::fprintf(stderr, "gantry-relay: a guest without a key was refused [guest.keyless]\n");
}

}  // namespace

wire::ResumeVerdict ask_for(const Settings& settings, const SessionKey& key, MovedGuest* guest) {
    const control::UniqueFd socket(wire::connect_unix(settings.daemon));
    wire::ResumeRequest request;
    request.session[0] = key.first;
    request.session[1] = key.second;
    const timeval patience{5, 0};
    if (!socket.valid() ||
        ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0 ||
        !wire::send_packet(socket.get(), &request, sizeof request, -1)) {
        return wire::ResumeVerdict::kNotNow;
    }
    int passed[2] = {-1, -1};
    const ReceivedPacket packet =
        receive_packet_with(socket.get(), &guest->reply, sizeof guest->reply, passed, 2);
    guest->region.reset(passed[0]);
    guest->worker.reset(passed[1]);
    if (packet.bytes != sizeof guest->reply || guest->reply.magic != wire::kResumeMagic) {
        return wire::ResumeVerdict::kNotNow;
    }
    const bool is_whole =
        guest->region.valid() && (guest->worker.valid() || guest->reply.channel_count > 1);
    return guest->reply.verdict == wire::ResumeVerdict::kAccepted && !is_whole
               ? wire::ResumeVerdict::kUnknown
               : guest->reply.verdict;
}

Session::Session(const Settings& settings, const SessionKey& key, Room room)
    : settings_(settings),
      key_(key),
      is_new_(room != nullptr),
      room_(std::move(room)),
      link_([this](std::span<const std::byte> bytes) { receive(bytes); },
            [this] { over_.store(true); }, settings.give_up_ms) {
    link_.set_ackable([this] { return ackable(); });
}

Session::~Session() {
    link_.close();
    stop_.store(true);
    if (pump_.joinable()) {
        pump_.join();
    }
    wire::unmap_region(&channel_);
    if (worker_ >= 0) {
        ::close(worker_);
    }
}

bool Session::over() const {
    return over_.load() || (moved_.load() && std::chrono::steady_clock::now() - moved_at_ >
                                                 milliseconds(settings_.give_up_ms));
}

bool Session::late() const {
    return is_new_ && !has_asked_.load() &&
           std::chrono::steady_clock::now() - begun_at_ > kAskPatience;
}

/// In this order: see words.h.
std::optional<std::uint64_t> Session::ackable() const {
    wire::MirrorWords* words = words_.load();
    if (words == nullptr) {
        return 0;
    }
    const std::uint64_t received = words->received.load(std::memory_order_seq_cst);
    return words->hold.load(std::memory_order_seq_cst) != 0 ? std::nullopt
                                                            : std::optional(received);
}

void Session::receive(std::span<const std::byte> bytes) {
    if (over_.load()) {
        return;
    }
    if (!mirror_) {
        if (!opening_.add(bytes)) {
            return;
        }
        has_asked_.store(true);
        if (!attach()) {
            over_.store(true);
            return;
        }
        room_.reset();
        bytes = opening_.rest();
    }
    if (!mirror_->receive(bytes)) {
        std::fprintf(stderr, "gantry-relay: a guest sent a malformed frame; its session ends\n");
        over_.store(true);
    }
}

bool Session::attach() {
    wire::GuestAttach guest;
    if (!opening_.read(wire::FrameKind::kAttach, &guest)) {
        return false;
    }
    wire::GuestAttached attached;
    bool mapped = false;
    if (guest.vm.names_vm()) {
        mapped = attach_vm(guest, &attached);
    } else if (settings_.allow_keyless) {
        mapped = attach_program(guest.request, &attached);
    } else {
        refuse_keyless(&attached.reply);
    }
    if (mapped) {
        mirror_.emplace(channel_, opening_.kBytes,
                        [this](std::span<const std::byte> out) { return link_.send(out); });
        wire::MirrorWords& words = wire::mirror_words(*channel_.guest_words());
        words.hold.store(0);
        words.session[0].store(key_.first, std::memory_order_relaxed);
        words.session[1].store(key_.second, std::memory_order_release);
        words_.store(&words);
    }
    if (!wire::send_opening(link_, wire::FrameKind::kAttached, attached) || !mapped) {
        return false;
    }
    return start_pump();
}

bool Session::attach_program(const wire::AttachRequest& request, wire::GuestAttached* attached) {
    wire::AttachReply& reply = attached->reply;
    int memfd = -1;
    worker_ = wire::connect_unix(settings_.daemon);
    if (worker_ < 0 || !wire::send_packet(worker_, &request, sizeof request, -1) ||
        !wire::receive_packet(worker_, &reply, sizeof reply, &memfd)) {
        refuse(settings_, &reply);
    }
    const control::UniqueFd region(memfd);
    return reply.accepted != 0 && wire::map_region(memfd, reply.region_bytes, &channel_);
}

bool Session::attach_vm(const wire::GuestAttach& guest, wire::GuestAttached* attached) {
    const control::UniqueFd socket(wire::connect_unix(settings_.daemon));
    wire::VmAttachRequest request;
    request.session[0] = key_.first;
    request.session[1] = key_.second;
    request.guest = guest;
    wire::VmAttachReply reply;
    int memfd = -1;
    if (!socket.valid() || !wire::send_packet(socket.get(), &request, sizeof request, -1) ||
        !wire::receive_packet(socket.get(), &reply, sizeof reply, &memfd)) {
        refuse(settings_, &reply.reply);
    }
    const control::UniqueFd region(memfd);
    attached->reply = reply.reply;
    attached->generation = reply.generation;
    return reply.reply.accepted != 0 && wire::map_region(memfd, reply.region_bytes, &channel_,
                                                         reply.channel_count, reply.channel_index);
}

/// The guest has gone, or its link has: a VM's channel is gantryd's to close.
void Session::leave_channel() {
    if (worker_ >= 0) {
        return;
    }
    wire::ChannelClaim& claim = channel_.guest_directory()->claims[channel_.index];
    auto state = wire::ClaimState::kOpen;
    if (!claim.state.compare_exchange_strong(state, wire::ClaimState::kClosing)) {
        state = wire::ClaimState::kClaiming;
        claim.state.compare_exchange_strong(state, wire::ClaimState::kClosing);
    }
}

bool Session::take_over(MovedGuest& guest) {
    if (!wire::map_region(guest.region.get(), guest.reply.region_bytes, &channel_,
                          guest.reply.channel_count, guest.reply.channel_index)) {
        return false;
    }
    wire::MirrorWords& words = wire::mirror_words(*channel_.guest_words());
    const auto position = wire::read_position(words);
    const std::uint64_t epoch = channel_.host_words()->epoch.load(std::memory_order_acquire);
    if (!position || epoch == 0) {
        return false;
    }
    worker_ = guest.worker.release();
    link_.take_over(position->received, epoch);
    mirror_.emplace(channel_, *position, epoch,
                    [this](std::span<const std::byte> out) { return link_.send(out); });
    words_.store(&words);
    wire::GuestAttached attached;  // The guest has its region; it only needs to see the start.
    attached.reply.accepted = 1;
    attached.reply.region_bytes = wire::single_region_bytes(channel_.layout);
    attached.generation = channel_.guest_directory()->claims[channel_.index].generation;
    if (!wire::send_opening(link_, wire::FrameKind::kAttached, attached)) {
        return false;
    }
    return start_pump();
}

bool Session::start_pump() {
    try {
        pump_ = std::jthread([this] { pump(); });
    } catch (const std::system_error& error) {
        std::fprintf(stderr, "gantry-relay: no thread for a session: %s\n", error.what());
    }
    return pump_.joinable();
}

bool Session::is_in(wire::WorkerState state) const {
    return channel_.host_words()->worker_state.load() == state;
}

bool Session::held() const {
    const wire::MirrorWords* words = words_.load();
    return words != nullptr && words->hold.load() != 0;
}

bool Session::left() const {
    return moved_.load() || (held() && is_in(wire::WorkerState::kDisowned));
}

/// A program's worker has gone while it held the session. True unless it died.
bool Session::was_given_away() {
    for (milliseconds waited{0}; waited < kDeathNotice && !stop_.load(); waited += kHeldPause) {
        if (is_in(wire::WorkerState::kDead) || is_in(wire::WorkerState::kDisowned)) {
            return is_in(wire::WorkerState::kDisowned);
        }
        std::this_thread::sleep_for(kHeldPause);
    }
    return true;
}

void Session::tell_death() {
    words_.load()->hold.store(0);
    channel_.host_words()->worker_state.store(wire::WorkerState::kDead);
    mirror_->pump();
    std::this_thread::sleep_for(milliseconds(200));
    over_.store(true);
}

void Session::pump() {
    wire::Backoff backoff;
    bool was_held = false;
    bool was_disowned = false;
    while (!stop_.load() && !over_.load()) {
        const bool is_held = held();
        if (worker_ >= 0 && backoff.affords_system_call() && wire::hung_up(worker_)) {
            if (is_held && was_given_away()) {
                moved_at_ = std::chrono::steady_clock::now();
                moved_.store(true);
                link_.cut();
            } else {
                tell_death();
            }
            break;
        }
        if (is_held && is_in(wire::WorkerState::kDead)) {
            tell_death();
            break;
        }
        if (is_held) {
            // Granted away: a guest that is here all the same must not wait for ever. It dials
            // again, and is told as long as it may be on its way that it has to wait.
            if (!was_disowned && is_in(wire::WorkerState::kDisowned)) {
                was_disowned = true;
                link_.cut();
            }
            was_held = true;
            std::this_thread::sleep_for(kHeldPause);
            continue;
        }
        if (was_held) {
            was_held = was_disowned = false;
            link_.look_at_acks();
        }
        if (mirror_->pump()) {
            backoff.reset();
        } else {
            backoff.pause();
        }
    }
    if (!moved_.load()) {
        leave_channel();
    }
}

}  // namespace gantry::relay
