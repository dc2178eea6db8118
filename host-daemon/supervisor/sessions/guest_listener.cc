#include "host-daemon/supervisor/sessions/guest_listener.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "host-daemon/supervisor/config/accounts.h"
#include "proto/base/unless_exhausted.h"
#include "proto/wire/mirror/words.h"

namespace gantry::supervisor {
namespace {

/// How often it is looked whether gantryd ends.
constexpr std::chrono::milliseconds kAcceptWake{200};
constexpr std::size_t kGroupsMax = 1024;

/// Of what the socket's own mode has to admit; check_user() looks closer.
mode_t socket_mode(const GuestConfig& config) {
    if (config.any_user || !config.allow_uids.empty()) {
        return 0666;
    }
    return config.group.empty() ? 0600 : 0660;
}

Error system_error(const char* reason, const std::string& what) {
    return Error{Code::kUnavailable, reason, what + ": " + std::strerror(errno)};
}

}  // namespace

Result<std::unique_ptr<GuestListener>> GuestListener::start(const GuestConfig& config, Open open,
                                                            Relayed relayed) {
    std::optional<gid_t> group;
    if (!config.group.empty()) {
        GANTRY_ASSIGN(group, find_guest_group(config.group));
    }
    GANTRY_ASSIGN(std::unique_ptr<AttachQueue> queue, AttachQueue::start());
    GANTRY_ASSIGN(control::PacketListener listener, control::PacketListener::bind(config.socket));
    if (group && ::chown(config.socket.c_str(), static_cast<uid_t>(-1), *group) != 0) {
        return system_error("guest.group", "cannot give " + config.socket + " to guest.group");
    }
    if (::chmod(config.socket.c_str(), socket_mode(config)) != 0) {
        return system_error("guest.group", "cannot set the mode of " + config.socket);
    }
    return std::unique_ptr<GuestListener>(new GuestListener(
        config, group, std::move(listener), std::move(open), std::move(relayed), std::move(queue)));
}

GuestListener::GuestListener(const GuestConfig& config, std::optional<gid_t> group,
                             control::PacketListener listener, Open open, Relayed relayed,
                             std::unique_ptr<AttachQueue> queue)
    : config_(config),
      group_(group),
      listener_(std::move(listener)),
      open_(std::move(open)),
      relayed_(std::move(relayed)),
      queue_(std::move(queue)),
      thread_([this] { accept_loop(); }) {}

GuestListener::~GuestListener() {
    stopping_ = true;
    thread_.join();
    queue_->stop();
}

void GuestListener::accept_loop() {
    while (!stopping_) {
        const auto done = unless_exhausted([this] {
            wait();
            take_callers();
            accept_one();
        });
        if (!done) {  // no memory: whom it was about is gone, the others are not
            std::this_thread::sleep_for(kAcceptWake);
        }
    }
}

/// Until somebody connects or speaks, a caller's time is over, or gantryd may be ending.
void GuestListener::wait() {
    auto wake = std::chrono::steady_clock::now() + kAcceptWake;
    std::vector<pollfd> entries{{listener_.fd(), POLLIN, 0}};
    for (const Caller& caller : callers_) {
        wake = std::min(wake, caller.until);
        entries.push_back({caller.socket.fd(), POLLIN, 0});
    }
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(wake - std::chrono::steady_clock::now());
    (void)::poll(entries.data(), entries.size(),
                 static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
}

void GuestListener::take_callers() {
    const auto now = std::chrono::steady_clock::now();
    for (auto at = callers_.begin(); at != callers_.end();) {
        pollfd entry{at->socket.fd(), POLLIN, 0};
        const bool has_spoken = ::poll(&entry, 1, 0) == 1;
        if (!has_spoken && now < at->until) {
            ++at;
            continue;
        }
        Caller caller = std::move(*at);
        at = callers_.erase(at);
        if (has_spoken) {
            hand_over(std::move(caller));
        } else {
            refuse(caller.socket,
                   {Code::kDeadlineExceeded, "guest.silent",
                    fmt::format("the program sent nothing within {} ms of its connection",
                                kRequestTimeout.count())});
        }
    }
}

void GuestListener::accept_one() {
    auto accepted = listener_.accept(std::chrono::milliseconds{0});
    if (!accepted) {
        if (accepted.error().code != Code::kDeadlineExceeded) {
            say("guest socket: " + accepted.error().to_string());
            std::this_thread::sleep_for(kAcceptWake);  // no descriptor, say
        }
        return;
    }
    auto request = check_user(*accepted);
    if (!request) {
        refuse(*accepted, request.error());
        return;
    }
    make_room(request->uid);
    callers_.push_back({std::move(*accepted), std::move(*request),
                        std::chrono::steady_clock::now() + kRequestTimeout});
}

/// The oldest of that user, or of all, goes where there are too many: whoever means to be served
/// speaks at once.
void GuestListener::make_room(std::uint32_t uid) {
    const auto is_users = [uid](const Caller& caller) { return caller.request.uid == uid; };
    const auto of_user = std::count_if(callers_.begin(), callers_.end(), is_users);
    auto oldest = callers_.end();
    if (static_cast<std::size_t>(of_user) >= kSilentOfAUser) {
        oldest = std::find_if(callers_.begin(), callers_.end(), is_users);
    } else if (callers_.size() >= kSilentMax) {
        oldest = callers_.begin();
    }
    if (oldest != callers_.end()) {
        refuse(oldest->socket, {Code::kUnavailable, "guest.connections",
                                "too many programs have connected and said nothing; try again"});
        callers_.erase(oldest);
    }
}

void GuestListener::hand_over(Caller caller) {
    auto packet = caller.socket.receive(std::chrono::milliseconds{0});
    if (!packet) {
        refuse(caller.socket, packet.error());
        return;
    }
    const std::uint32_t uid = caller.request.uid;
    // What a std::function holds must be possible to copy.
    const auto held =
        std::make_shared<std::pair<Caller, control::Packet>>(std::move(caller), std::move(*packet));
    std::function<void()> job = [this, held] {
        serve(std::move(held->first.socket), std::move(held->first.request), held->second);
    };
    if (!queue_->post(uid, job)) {
        refuse(held->first.socket,
               {Code::kUnavailable, "guest.connections",
                fmt::format("{} programs of user {} wait for a worker; try again later",
                            AttachQueue::kQueuedOfAUser, uid)});
    }
}

/// A line for a program that was not accepted, but never many.
void GuestListener::say(const std::string& text) {
    const MutexLock lock(log_mutex_);
    if (!lines_.take()) {
        return;
    }
    if (const std::uint64_t left_out = lines_.take_refused(); left_out != 0) {
        spdlog::warn("guest socket: {} lines were left out here", left_out);
    }
    spdlog::warn("{}", text);
}

void GuestListener::refuse(control::PacketSocket& socket, const Error& error) {
    say("a program was not accepted: " + error.to_string());
    wire::AttachReply reply;
    reply.cuda_error = cuda_error_of(error);
    std::memcpy(reply.text, error.text.data(), std::min(error.text.size(), sizeof reply.text - 1));
    (void)socket.send(std::as_bytes(std::span(&reply, 1)), {});
}

void GuestListener::serve(control::PacketSocket socket, GuestRequest request,
                          const control::Packet& packet) {
    auto attached = unless_exhausted([&] { return attach(socket, std::move(request), packet); });
    const Result<void> outcome = attached ? std::move(*attached) : Result<void>(attached.error());
    if (!outcome) {
        refuse(socket, outcome.error());
    }
}

/// With allow_uids those and guest.group's members; else gantryd's own user and root as well.
bool GuestListener::is_admitted(const control::PacketSocket& socket, uid_t uid, gid_t gid) const {
    if (config_.any_user) {
        return true;
    }
    const auto& allowed = config_.allow_uids;
    if (std::find(allowed.begin(), allowed.end(), static_cast<std::int64_t>(uid)) !=
            allowed.end() ||
        (allowed.empty() && (uid == 0 || uid == ::geteuid()))) {
        return true;
    }
    if (!group_) {
        return false;
    }
    std::array<gid_t, kGroupsMax> groups{};
    socklen_t bytes = sizeof groups;
    if (::getsockopt(socket.fd(), SOL_SOCKET, SO_PEERGROUPS, groups.data(), &bytes) != 0) {
        bytes = 0;
    }
    const auto others = std::span(groups).first(bytes / sizeof(gid_t));
    return gid == *group_ || std::find(others.begin(), others.end(), *group_) != others.end();
}

Result<GuestRequest> GuestListener::check_user(control::PacketSocket& socket) {
    ucred credentials{};
    socklen_t size = sizeof credentials;
    if (::getsockopt(socket.fd(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
        return Error{Code::kUnauthenticated, "guest.credentials",
                     std::string("the kernel does not say who connects: ") + std::strerror(errno)};
    }
    if (!is_admitted(socket, credentials.uid, credentials.gid)) {
        return Error{Code::kPermissionDenied, "guest.user",
                     fmt::format("user id {} may not use this GPU; in gantryd.toml add it to "
                                 "guest.allow_uids, or name a group of it as guest.group",
                                 credentials.uid)};
    }
    control::UniqueFd process{static_cast<int>(::syscall(SYS_pidfd_open, credentials.pid, 0))};
    return GuestRequest{static_cast<std::uint32_t>(credentials.pid), credentials.uid, 0,
                        std::move(process)};
}

Result<void> GuestListener::read_request(const wire::AttachRequest& request) {
    if (request.magic != wire::kRegionMagic) {
        return Error{Code::kInvalidArgument, "guest.request",
                     "the program's first packet is no attach request"};
    }
    if (request.wire_version != wire::kWireVersion) {
        return Error{Code::kFailedPrecondition, "version.wire",
                     fmt::format("this gantryd speaks wire version {}, the program's libcuda.so.1 "
                                 "version {}; install the same Gantry version on both sides",
                                 wire::kWireVersion, request.wire_version)};
    }
    return {};
}

Result<wire::AttachRequest> GuestListener::attach_request(const control::Packet& packet) {
    wire::AttachRequest request;
    if (packet.bytes.size() < offsetof(wire::AttachRequest, table_hash)) {
        return Error{Code::kInvalidArgument, "guest.request",
                     "the program's first packet is no attach request"};
    }
    std::memcpy(&request, packet.bytes.data(), std::min(packet.bytes.size(), sizeof request));
    GANTRY_TRY(read_request(request));
    if (packet.bytes.size() != sizeof request) {
        return Error{Code::kInvalidArgument, "guest.request", "the attach request is cut short"};
    }
    return request;
}

void GuestListener::resume(control::PacketSocket& socket, const wire::ResumeRequest& request) {
    wire::ResumeReply reply;
    auto guest = relayed_.resume({request.session[0], request.session[1]});
    if (!guest) {
        const bool is_later = guest.error().code == Code::kUnavailable;
        reply.verdict = is_later ? wire::ResumeVerdict::kNotNow : wire::ResumeVerdict::kUnknown;
        (void)socket.send(std::as_bytes(std::span(&reply, 1)), {});
        return;
    }
    reply.verdict = wire::ResumeVerdict::kAccepted;
    reply.region_bytes = guest->region_bytes;
    reply.channel_count = guest->channel_count;
    reply.channel_index = guest->channel_index;
    const int fds[] = {guest->region.get(), guest->guest_end.get()};
    const std::size_t count = guest->guest_end.valid() ? 2 : 1;
    (void)socket.send(std::as_bytes(std::span(&reply, 1)), std::span(fds, count));
}

void GuestListener::attach_vm(control::PacketSocket& socket, const wire::VmAttachRequest& request) {
    wire::VmAttachReply reply;
    auto checked = read_request(request.guest.request);
    auto guest = checked ? relayed_.attach_vm(request) : Result<RelayedGuest>(checked.error());
    wire::ChannelLayout layout{};
    if (!guest || !wire::compute_layout(guest->region_bytes, guest->channel_count,
                                        guest->channel_index, &layout)) {
        const Error error =
            guest ? Error{Code::kInternal, "region.layout", "no such channel"} : guest.error();
        say("a VM's program was not accepted: " + error.to_string());
        reply.reply.cuda_error = cuda_error_of(error);
        std::memcpy(reply.reply.text, error.text.data(),
                    std::min(error.text.size(), sizeof reply.reply.text - 1));
        (void)socket.send(std::as_bytes(std::span(&reply, 1)), {});
        return;
    }
    reply.reply.accepted = 1;
    reply.reply.region_bytes = wire::single_region_bytes(layout);
    reply.generation = guest->generation;
    reply.region_bytes = guest->region_bytes;
    reply.channel_count = guest->channel_count;
    reply.channel_index = guest->channel_index;
    const int fd = guest->region.get();
    (void)socket.send(std::as_bytes(std::span(&reply, 1)), {&fd, 1});
}

Result<void> GuestListener::attach(control::PacketSocket& socket, GuestRequest request,
                                   const control::Packet& packet) {
    wire::ResumeRequest resumption;
    wire::VmAttachRequest of_vm;
    if (packet.bytes.size() == sizeof resumption) {
        std::memcpy(&resumption, packet.bytes.data(), sizeof resumption);
    } else if (packet.bytes.size() == sizeof of_vm) {
        std::memcpy(&of_vm, packet.bytes.data(), sizeof of_vm);
    }
    const bool is_resumption = packet.bytes.size() == sizeof resumption &&
                               resumption.magic == wire::kResumeMagic &&
                               resumption.wire_version == wire::kWireVersion;
    if (is_resumption) {
        resume(socket, resumption);
        return {};
    }
    if (packet.bytes.size() == sizeof of_vm && of_vm.magic == wire::kVmAttachMagic) {
        attach_vm(socket, of_vm);
        return {};
    }
    GANTRY_ASSIGN(const wire::AttachRequest attach, attach_request(packet));
    request.table_hash = attach.table_hash;
    GuestLink link;
    GANTRY_ASSIGN(link.region,
                  Region::create_local(static_cast<std::uint64_t>(config_.region_mib) << 20));
    control::UniqueFd region_fd{::fcntl(link.region.fd(), F_DUPFD_CLOEXEC, 0)};
    link.socket.reset(::fcntl(socket.fd(), F_DUPFD_CLOEXEC, 0));
    if (!region_fd.valid() || !link.socket.valid()) {
        return Error{Code::kResourceExhausted, "guest.descriptors",
                     std::string("gantryd has no descriptor left: ") + std::strerror(errno)};
    }
    const std::uint64_t region_bytes = link.region.bytes();
    GANTRY_TRY(open_(std::move(request), std::move(link)));
    wire::AttachReply reply;
    reply.accepted = 1;
    reply.region_bytes = region_bytes;
    const int fd = region_fd.get();
    // A guest that has gone meanwhile is noticed by its worker, which holds the same socket.
    (void)socket.send(std::as_bytes(std::span(&reply, 1)), {&fd, 1});
    return {};
}

}  // namespace gantry::supervisor
