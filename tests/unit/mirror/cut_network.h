// A TCP path that is cut again and again: forwards connections to a port and drops each after a
// random number of bytes, so that the cuts fall anywhere in a message and a slow build of the test
// still gets on between two of them.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "proto/wire/mirror/endpoint.h"

namespace gantry::wire {

class CutNetwork {
public:
    /// A connection lives for `bytes_min` to `bytes_max` bytes, both directions together.
    CutNetwork(std::uint16_t target, std::size_t bytes_min, std::size_t bytes_max)
        : target_(target), life_bytes_(bytes_min, bytes_max) {
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
            std::size_t left_bytes = life_bytes_(random_);
            while (near >= 0 && far >= 0 && !stop.stop_requested() && left_bytes != 0) {
                pollfd both[2] = {{near, POLLIN, 0}, {far, POLLIN, 0}};
                ::poll(both, 2, 2);
                bool over = false;
                for (int i = 0; i < 2; ++i) {
                    if (both[i].revents == 0) {
                        continue;
                    }
                    const ssize_t got = ::recv(both[i].fd, buffer.data(),
                                               std::min(buffer.size(), left_bytes), MSG_DONTWAIT);
                    over = over || got == 0 ||
                           (got > 0 && !write_exactly(both[1 - i].fd, buffer.data(),
                                                      static_cast<std::size_t>(got)));
                    left_bytes -= got > 0 ? static_cast<std::size_t>(got) : 0;
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
    std::mt19937_64 random_{7};
    std::uniform_int_distribution<std::size_t> life_bytes_;
    std::atomic<int> cuts_{0};
    std::jthread thread_;
};

}  // namespace gantry::wire
