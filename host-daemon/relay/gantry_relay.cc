// gantry-relay: the host's end of the TCP transport.
//
// For each guest process that gantry-guest brings, it attaches to gantryd's unix socket as a local
// process would, and keeps the region it gets alike with the guest's (proto/wire/mirror). It holds
// no CUDA state and treats every byte of the guest as hostile; gantryd and worker do not know it.
#include <fcntl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "proto/wire/mirror/endpoint.h"
#include "proto/wire/mirror/link.h"
#include "proto/wire/wait.h"

namespace gantry::relay {
namespace {

struct Settings {
    std::string listen;
    std::string daemon = wire::kDefaultGuestSocket;
    std::uint64_t give_up_ms = 60'000;
};

using SessionKey = std::pair<std::uint64_t, std::uint64_t>;

/// One guest process: its link, and the socket and region of its worker.
class Session {
public:
    explicit Session(const Settings& settings)
        : settings_(settings),
          link_([this](std::span<const std::byte> bytes) { receive(bytes); },
                [this] { over_.store(true); }, settings.give_up_ms) {}
    ~Session() {
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
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    void adopt(int fd, const wire::LinkHello& theirs, const wire::LinkHello& mine) {
        link_.adopt(fd, theirs, mine);
    }
    [[nodiscard]] bool over() const { return over_.load(); }

private:
    void receive(std::span<const std::byte> bytes) {
        if (over_.load()) {
            return;
        }
        if (!mirror_) {
            if (!opening_.add(bytes)) {
                return;
            }
            if (!attach()) {
                over_.store(true);
                return;
            }
            bytes = opening_.rest();
        }
        if (!mirror_->receive(bytes)) {
            std::fprintf(stderr,
                         "gantry-relay: a guest sent a malformed frame; its session ends\n");
            over_.store(true);
        }
    }

    bool attach() {
        wire::AttachRequest request;
        if (!opening_.read(wire::FrameKind::kAttach, &request)) {
            return false;
        }
        wire::AttachReply reply;
        int memfd = -1;
        worker_ = wire::connect_unix(settings_.daemon);
        if (worker_ < 0 || !wire::send_packet(worker_, &request, sizeof request, -1) ||
            !wire::receive_packet(worker_, &reply, sizeof reply, &memfd)) {
            reply = {};
            reply.cuda_error = 802;  // CUDA_ERROR_SYSTEM_NOT_READY
            std::snprintf(reply.text, sizeof reply.text,
                          "gantry-relay cannot reach gantryd at %s: %s", settings_.daemon.c_str(),
                          std::strerror(errno));
        }
        const bool mapped =
            reply.accepted != 0 && wire::map_region(memfd, reply.region_bytes, &channel_);
        if (memfd >= 0) {
            ::close(memfd);
        }
        if (!wire::send_opening(link_, wire::FrameKind::kAttached, reply) || !mapped) {
            return false;
        }
        mirror_.emplace(channel_,
                        [this](std::span<const std::byte> out) { return link_.send(out); });
        pump_ = std::jthread([this] { pump(); });
        return true;
    }

    void pump() {
        wire::Backoff backoff;
        while (!stop_.load() && !over_.load()) {
            if (wire::hung_up(worker_)) {
                channel_.host_words()->worker_state.store(wire::WorkerState::kDead);
                mirror_->pump();
                std::this_thread::sleep_for(std::chrono::milliseconds(200));
                over_.store(true);
                break;
            }
            if (mirror_->pump()) {
                backoff.reset();
            } else {
                backoff.pause();
            }
        }
    }

    Settings settings_;
    wire::OpeningFrame<wire::AttachRequest> opening_;
    wire::MappedChannel channel_;
    std::optional<wire::HostMirror> mirror_;
    int worker_ = -1;
    std::atomic<bool> over_{false};
    std::atomic<bool> stop_{false};
    std::jthread pump_;
    wire::ResumableLink link_;
};

class Relay {
public:
    explicit Relay(const Settings& settings) : settings_(settings) {}

    /// Serves one fresh connection: finds or makes its session.
    void greet(int fd) {
        const timeval patience{5, 0};
        ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        wire::LinkHello theirs;
        if (!wire::read_exactly(fd, &theirs, sizeof theirs) || theirs.magic != wire::kLinkMagic) {
            ::close(fd);
            return;
        }
        const timeval forever{0, 0};
        ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &forever, sizeof forever);
        std::shared_ptr<Session> session;
        wire::LinkHello mine;
        {
            const std::lock_guard lock(mutex_);
            SessionKey key{theirs.session[0], theirs.session[1]};
            if (key == SessionKey{0, 0} && theirs.version == wire::kLinkVersion) {
                std::uint64_t token[2];
                if (::getrandom(token, sizeof token, 0) == sizeof token) {
                    key = {token[0], token[1]};
                    sessions_[key] = std::make_shared<Session>(settings_);
                }
            }
            const auto found = sessions_.find(key);
            if (found != sessions_.end() && !found->second->over()) {
                session = found->second;
            }
            mine.session[0] = key.first;
            mine.session[1] = key.second;
        }
        if (session == nullptr || theirs.version != wire::kLinkVersion) {
            mine.refused = 1;
            (void)wire::write_exactly(fd, &mine, sizeof mine);
            ::close(fd);
            return;
        }
        session->adopt(fd, theirs, mine);
    }

    void forget_ended() {
        std::map<SessionKey, std::shared_ptr<Session>> ended;
        const std::lock_guard lock(mutex_);
        for (auto one = sessions_.begin(); one != sessions_.end();) {
            const auto next = std::next(one);
            if (one->second->over()) {
                ended.insert(sessions_.extract(one));
            }
            one = next;
        }
    }

private:
    Settings settings_;
    std::mutex mutex_;
    std::map<SessionKey, std::shared_ptr<Session>> sessions_;
};

int main_of(int argc, char** argv) {
    Settings settings;
    std::string problem = wire::read_options(argc, argv, {{"listen", &settings.listen},
                                                          {"daemon", &settings.daemon},
                                                          {"give-up-ms", nullptr,
                                                           &settings.give_up_ms}});
    if (problem.empty() && settings.listen.find(':') == std::string::npos) {
        problem = "--listen needs ADDRESS:PORT, got '" + settings.listen + "'";
    }
    if (!problem.empty()) {
        std::fprintf(stderr,
                     "gantry-relay: %s\n"
                     "usage: gantry-relay --listen ADDRESS:PORT [--daemon SOCKET] "
                     "[--give-up-ms N]\n",
                     problem.c_str());
        return 2;
    }
    const int listener = wire::listen_tcp(settings.listen);
    if (listener < 0) {
        std::fprintf(stderr, "gantry-relay: cannot listen on %s: %s\n", settings.listen.c_str(),
                     std::strerror(errno));
        return 1;
    }
    std::printf("gantry-relay: listening on port %u\n", wire::local_port(listener));
    std::fflush(stdout);
    Relay relay(settings);
    wire::accept_forever("gantry-relay", listener, [&relay](int fd) {
        relay.forget_ended();
        relay.greet(fd);
    });
    return 1;
}

}  // namespace
}  // namespace gantry::relay

int main(int argc, char** argv) { return gantry::relay::main_of(argc, argv); }
