// A TCP path that is cut again and again: forwards connections to a port and drops them on demand.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "proto/wire/mirror/endpoint.h"

namespace gantry::wire {

class CutNetwork {
public:
    explicit CutNetwork(std::uint16_t target) : target_(target) {
        listener_ = listen_tcp("127.0.0.1:0");
        port_ = local_port(listener_);
        thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
    }
    ~CutNetwork() {
        thread_.request_stop();
        thread_.join();
        ::close(listener_);
    }
    [[nodiscard]] std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
    void cut() { cut_.store(true); }
    [[nodiscard]] int cuts() const { return cuts_.load(); }

private:
    void run(const std::stop_token& stop) {
        std::vector<char> buffer(1 << 16);
        while (!stop.stop_requested()) {
            pollfd entry{listener_, POLLIN, 0};
            if (::poll(&entry, 1, 5) != 1) {
                continue;
            }
            const int near = ::accept(listener_, nullptr, nullptr);
            const int far = connect_tcp("127.0.0.1:" + std::to_string(target_));
            cut_.store(false);
            while (near >= 0 && far >= 0 && !stop.stop_requested() && !cut_.load()) {
                pollfd both[2] = {{near, POLLIN, 0}, {far, POLLIN, 0}};
                ::poll(both, 2, 2);
                bool over = false;
                for (int i = 0; i < 2; ++i) {
                    if (both[i].revents == 0) {
                        continue;
                    }
                    const ssize_t got =
                        ::recv(both[i].fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
                    over = over || got == 0 ||
                           (got > 0 && !write_exactly(both[1 - i].fd, buffer.data(),
                                                      static_cast<std::size_t>(got)));
                }
                if (over) {
                    break;
                }
            }
            ::close(near);
            ::close(far);
            ++cuts_;
        }
    }

    std::uint16_t target_;
    std::uint16_t port_ = 0;
    int listener_ = -1;
    std::atomic<bool> cut_{false};
    std::atomic<int> cuts_{0};
    std::jthread thread_;
};

}  // namespace gantry::wire
