#include "host-daemon/supervisor/sessions/handover.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cstring>

namespace gantry::supervisor {
namespace {

constexpr std::uint32_t kMagic = 0x564F4847;  // "GHOV"
constexpr std::chrono::milliseconds kWake{200};
constexpr std::chrono::milliseconds kPatience{10'000};

struct RequestPacket {
    std::uint32_t magic = kMagic;
    std::uint32_t version = 1;
    std::uint64_t epoch = 0;
    char session_id[72] = {};
};

struct ReplyPacket {
    std::uint32_t magic = kMagic;
    std::uint32_t code = 0;  // gantry::Code
    std::uint64_t region_bytes = 0;
    char reason[64] = {};
    char text[256] = {};
};

void copy_text(const std::string& from, std::span<char> to) {
    std::memcpy(to.data(), from.data(), std::min(from.size(), to.size() - 1));
}

Error failed(const std::string& text) {
    return Error{Code::kUnavailable, "handover.failed",
                 "the program's memory could not be taken over from the other gantryd: " + text};
}

}  // namespace

Result<std::unique_ptr<HandoverServer>> HandoverServer::start(const std::string& path, Give give) {
    GANTRY_ASSIGN(control::PacketListener listener, control::PacketListener::bind(path));
    return std::unique_ptr<HandoverServer>(
        new HandoverServer(std::move(listener), std::move(give)));
}

HandoverServer::HandoverServer(control::PacketListener listener, Give give)
    : listener_(std::move(listener)), give_(std::move(give)), thread_([this] { serve(); }) {}

HandoverServer::~HandoverServer() {
    stopping_ = true;
    thread_.join();
}

void HandoverServer::serve() {
    while (!stopping_) {
        auto socket = listener_.accept(kWake);
        if (!socket) {
            continue;
        }
        const auto packet = socket->receive(kPatience);
        RequestPacket request;
        if (!packet || packet->bytes.size() != sizeof request) {
            continue;
        }
        std::memcpy(&request, packet->bytes.data(), sizeof request);
        request.session_id[sizeof request.session_id - 1] = '\0';
        if (request.magic != kMagic || request.version != 1 || !is_session_id(request.session_id)) {
            continue;
        }
        ReplyPacket reply;
        auto link = give_({request.session_id, request.epoch});
        if (!link) {
            spdlog::warn("handover of {}: {}", request.session_id, link.error().to_string());
            reply.code = static_cast<std::uint32_t>(link.error().code);
            copy_text(link.error().reason, reply.reason);
            copy_text(link.error().text, reply.text);
            (void)socket->send(std::as_bytes(std::span(&reply, 1)), {});
            continue;
        }
        reply.region_bytes = link->region.bytes();
        const int fds[] = {link->region.fd(), link->socket.get()};
        const std::size_t count = link->socket.valid() ? 2 : 1;
        (void)socket->send(std::as_bytes(std::span(&reply, 1)), std::span(fds, count));
    }
}

Result<GuestLink> fetch_guest(const std::string& path, const HandoverRequest& request) {
    GANTRY_ASSIGN(control::PacketSocket socket, control::PacketSocket::connect(path));
    RequestPacket out;
    out.epoch = request.epoch;
    copy_text(request.session_id, out.session_id);
    GANTRY_TRY(socket.send(std::as_bytes(std::span(&out, 1)), {}));
    GANTRY_ASSIGN(control::Packet packet, socket.receive(kPatience));
    ReplyPacket reply;
    if (packet.bytes.size() != sizeof reply) {
        return failed(fmt::format("a reply of {} bytes", packet.bytes.size()));
    }
    std::memcpy(&reply, packet.bytes.data(), sizeof reply);
    if (reply.code != 0 || packet.descriptors.empty()) {
        reply.text[sizeof reply.text - 1] = '\0';
        return failed(reply.code != 0 ? reply.text : "it sent no region");
    }
    GuestLink link;
    link.region = Region::adopt(std::move(packet.descriptors[0]), reply.region_bytes);
    if (packet.descriptors.size() > 1) {
        link.socket = std::move(packet.descriptors[1]);
    }
    return link;
}

}  // namespace gantry::supervisor
