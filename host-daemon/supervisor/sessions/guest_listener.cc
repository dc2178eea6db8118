#include "host-daemon/supervisor/sessions/guest_listener.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "proto/wire/mirror/words.h"

namespace gantry::supervisor {
namespace {

constexpr int kConnectionsMax = 256;
constexpr std::chrono::milliseconds kRequestTimeout{5000};
constexpr std::chrono::milliseconds kAcceptWake{200};

}  // namespace

Result<std::unique_ptr<GuestListener>> GuestListener::start(const GuestConfig& config, Open open,
                                                            Relayed relayed) {
    GANTRY_ASSIGN(control::PacketListener listener, control::PacketListener::bind(config.socket));
    // Who may use it is decided per connection, by user id.
    ::chmod(config.socket.c_str(), 0666);
    return std::unique_ptr<GuestListener>(
        new GuestListener(config, std::move(listener), std::move(open), std::move(relayed)));
}

GuestListener::GuestListener(const GuestConfig& config, control::PacketListener listener, Open open,
                             Relayed relayed)
    : config_(config),
      listener_(std::move(listener)),
      open_(std::move(open)),
      relayed_(std::move(relayed)),
      thread_([this] { accept_loop(); }) {}

GuestListener::~GuestListener() {
    stopping_ = true;
    thread_.join();
    while (connections_ > 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds{10});
    }
}

void GuestListener::accept_loop() {
    while (!stopping_) {
        auto accepted = listener_.accept(kAcceptWake);
        if (!accepted) {
            if (accepted.error().code != Code::kDeadlineExceeded) {
                spdlog::error("guest socket: {}", accepted.error().to_string());
                std::this_thread::sleep_for(kAcceptWake);
            }
            continue;
        }
        if (connections_ >= kConnectionsMax) {
            spdlog::warn("guest socket: more than {} programs attach at once, one is turned away",
                         kConnectionsMax);
            continue;  // its socket closes: the shim reports it and may try again
        }
        ++connections_;
        std::thread([this, socket = std::move(*accepted)]() mutable {
            serve(std::move(socket));
            --connections_;
        }).detach();
    }
}

void GuestListener::serve(control::PacketSocket socket) {
    const auto attached = attach(socket);
    if (attached) {
        return;
    }
    const Error& error = attached.error();
    spdlog::warn("a program was not accepted: {}", error.to_string());
    wire::AttachReply reply;
    reply.cuda_error = cuda_error_of(error);
    std::memcpy(reply.text, error.text.data(), std::min(error.text.size(), sizeof reply.text - 1));
    (void)socket.send(std::as_bytes(std::span(&reply, 1)), {});
}

Result<GuestRequest> GuestListener::check_user(control::PacketSocket& socket) {
    ucred credentials{};
    socklen_t size = sizeof credentials;
    if (::getsockopt(socket.fd(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
        return Error{Code::kUnauthenticated, "guest.credentials",
                     std::string("the kernel does not say who connects: ") + std::strerror(errno)};
    }
    const auto& allowed = config_.allow_uids;
    if (!allowed.empty() &&
        std::find(allowed.begin(), allowed.end(), static_cast<std::int64_t>(credentials.uid)) ==
            allowed.end()) {
        return Error{
            Code::kPermissionDenied, "guest.user",
            fmt::format(
                "user id {} may not use this GPU; add it to guest.allow_uids in gantryd.toml",
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
        spdlog::warn("a VM's program was not accepted: {}", error.to_string());
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

Result<void> GuestListener::attach(control::PacketSocket& socket) {
    GANTRY_ASSIGN(GuestRequest request, check_user(socket));
    GANTRY_ASSIGN(const control::Packet packet, socket.receive(kRequestTimeout));
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
