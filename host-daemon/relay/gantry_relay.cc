// gantry-relay: the host's end of the TCP transport.
//
// For each guest process that gantry-guest brings, it attaches to gantryd's unix socket as a local
// process would, and keeps the region it gets alike with the guest's (proto/wire/mirror). It holds
// no CUDA state and treats every byte of the guest as hostile. Whoever proves no VM's key is
// refused, unless told otherwise; hellos are read by threads of their own, within one deadline
// each; what is unproven is bounded (admission.h).
//
// A link that it does not know may be that of a guest which was moved to this host: gantryd says so
// and gives the region. A session whose worker gave it away is remembered as moved: whoever asks
// for it is told to dial again, until the link would have been given up anyway. A session that is
// over is let go within kForgetPause: its worker ends with the socket, its guest learns it by the
// link's close.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "host-daemon/relay/admission.h"
#include "host-daemon/relay/relay_session.h"
#include "proto/base/mutex.h"
#include "proto/base/random.h"
#include "proto/base/settings.h"

namespace gantry::relay {
namespace {

constexpr std::chrono::milliseconds kForgetPause{50};
/// For all of a hello.
constexpr std::chrono::milliseconds kHelloPatience{5'000};

/// The hello of a connection; false where it has not come as a whole in time.
bool read_hello(int fd, wire::LinkHello* hello) {
    const auto deadline = std::chrono::steady_clock::now() + kHelloPatience;
    auto* const bytes = reinterpret_cast<std::byte*>(hello);
    for (std::size_t have = 0; have < sizeof *hello;) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(
            deadline - std::chrono::steady_clock::now());
        pollfd entry{fd, POLLIN, 0};
        if (left.count() <= 0 || ::poll(&entry, 1, static_cast<int>(left.count())) <= 0) {
            return false;
        }
        const ssize_t got = ::recv(fd, bytes + have, sizeof *hello - have, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
            return false;
        }
        have += static_cast<std::size_t>(std::max<ssize_t>(got, 0));
    }
    return hello->magic == wire::kLinkMagic;
}

class Relay {
public:
    explicit Relay(const Settings& settings)
        : settings_(settings), forgetting_([this](const std::stop_token& stop) {
              while (!stop.stop_requested()) {
                  std::this_thread::sleep_for(kForgetPause);
                  forget_ended();
              }
          }) {}

    /// Takes one fresh connection: it is greeted by a thread of its own, of which there are as many
    /// at most as there is room for the unproven.
    void take(int fd) {
        sockaddr_storage address{};
        socklen_t bytes = sizeof address;
        Room room;
        if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &bytes) == 0) {
            room = admission_.admit(address);
        }
        if (room == nullptr) {
            ::close(fd);
            return;
        }
        try {
            std::thread([this, fd, room = std::move(room)]() mutable {
                greet(fd, std::move(room));
            }).detach();
        } catch (const std::system_error& error) {
            std::fprintf(stderr, "gantry-relay: no thread for a connection: %s\n", error.what());
            ::close(fd);
        }
    }

private:
    /// Finds or makes the session of a connection.
    void greet(int fd, Room room) {
        wire::LinkHello theirs;
        if (!read_hello(fd, &theirs)) {
            ::close(fd);
            return;
        }
        wire::LinkHello mine;
        mine.verdict = wire::LinkVerdict::kUnknown;
        std::shared_ptr<Session> session;
        if (theirs.version == wire::kLinkVersion) {
            SessionKey key{theirs.session[0], theirs.session[1]};
            session =
                key == SessionKey{0, 0} ? make(&key, std::move(room)) : find(key, &mine.verdict);
            mine.session[0] = key.first;
            mine.session[1] = key.second;
        }
        if (session == nullptr) {
            (void)wire::write_exactly(fd, &mine, sizeof mine);
            ::close(fd);
            return;
        }
        session->adopt(fd, theirs, mine);
    }

    void forget_ended() {
        std::map<SessionKey, std::shared_ptr<Session>> ended;
        const MutexLock lock(mutex_);
        for (auto one = sessions_.begin(); one != sessions_.end();) {
            const auto next = std::next(one);
            if (one->second->over() || one->second->late()) {
                ended.insert(sessions_.extract(one));
            }
            one = next;
        }
    }

    std::shared_ptr<Session> make(SessionKey* key, Room room) {
        const auto [low, high] = random_bits();
        *key = {low, high};
        auto session = std::make_shared<Session>(settings_, *key, std::move(room));
        const MutexLock lock(mutex_);
        sessions_[*key] = session;
        return session;
    }

    std::shared_ptr<Session> find(const SessionKey& key, wire::LinkVerdict* verdict) {
        std::shared_ptr<Session> known;
        {
            const MutexLock lock(mutex_);
            const auto found = sessions_.find(key);
            if (found != sessions_.end() && !found->second->over()) {
                known = found->second;
            }
        }
        if (known != nullptr && !known->moved() && !known->held()) {
            return known;
        }
        MovedGuest guest;
        const wire::ResumeVerdict answer = ask_for(settings_, key, &guest);
        if (answer != wire::ResumeVerdict::kAccepted && known != nullptr && !known->left()) {
            return known;  // Frozen, and perhaps not for good.
        }
        if (answer != wire::ResumeVerdict::kAccepted) {
            const bool may_come = known != nullptr || answer == wire::ResumeVerdict::kNotNow;
            *verdict = may_come ? wire::LinkVerdict::kNotNow : wire::LinkVerdict::kUnknown;
            return nullptr;
        }
        auto session = std::make_shared<Session>(settings_, key);
        if (!session->take_over(guest)) {
            *verdict = wire::LinkVerdict::kNotNow;
            return nullptr;
        }
        std::shared_ptr<Session> old;
        const MutexLock lock(mutex_);
        old = std::exchange(sessions_[key], session);
        return session;
    }

    Settings settings_;
    Admission admission_;
    Mutex mutex_;
    std::map<SessionKey, std::shared_ptr<Session>> sessions_ GANTRY_GUARDED_BY(mutex_);
    std::jthread forgetting_;  // Last: it uses everything above.
};

std::string help(const Settings& defaults) {
    return "usage: gantry-relay --listen ADDRESS:PORT [--daemon SOCKET] [--give-up-ms N] "
           "[--allow-keyless]\n"
           "The host's end of what gantry-guest brings over TCP.\n"
           "  --listen ADDRESS:PORT  where gantry-guest reaches this host\n"
           "  --daemon SOCKET        gantryd's socket for programs (" +
           defaults.daemon +
           ")\n"
           "  --give-up-ms N         how long a link that was cut may stay away (" +
           std::to_string(defaults.give_up_ms) +
           ")\n"
           "  --allow-keyless        serve programs that prove no VM's key, too: whoever reaches "
           "the address has the GPU\n";
}

int main_of(int argc, char** argv) {
    if (wire::asks_for_help(argc, argv)) {
        return wire::print_help("gantry-relay", help({}));
    }
    char unknown[300];
    if (!check_setting_names(environ, unknown, sizeof unknown)) {
        std::fprintf(stderr, "gantry-relay: %s\n", unknown);
        return 2;
    }
    Settings settings;
    std::string problem =
        wire::read_options(argc, argv,
                           {{"listen", &settings.listen},
                            {"daemon", &settings.daemon},
                            {"give-up-ms", nullptr, &settings.give_up_ms},
                            {"allow-keyless", nullptr, nullptr, &settings.allow_keyless}});
    if (problem.empty() && settings.listen.find(':') == std::string::npos) {
        problem = "--listen needs ADDRESS:PORT, got '" + settings.listen + "'";
    }
    if (!problem.empty()) {
        return wire::refuse_arguments("gantry-relay", problem);
    }
    wire::raise_descriptor_limit();
    const int listener = wire::listen_tcp(settings.listen);
    if (listener < 0) {
        std::fprintf(stderr, "gantry-relay: cannot listen on %s: %s\n", settings.listen.c_str(),
                     std::strerror(errno));
        return 1;
    }
    std::printf("gantry-relay: listening on port %u\n", wire::local_port(listener));
    std::fflush(stdout);
    Relay relay(settings);
    wire::accept_forever("gantry-relay", listener, [&relay](int fd) { relay.take(fd); });
    return 1;
}

}  // namespace
}  // namespace gantry::relay

int main(int argc, char** argv) { return gantry::relay::main_of(argc, argv); }
