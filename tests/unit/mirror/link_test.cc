#include "proto/wire/mirror/link.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <memory>

#include "tests/unit/mirror/cut_network.h"

namespace gantry::wire {
namespace {

using std::chrono::milliseconds;

/// Checks that numbers arrive 0, 1, 2, ... with nothing lost or repeated.
class Counter {
public:
    void take(std::span<const std::byte> bytes) {
        held_.insert(held_.end(), bytes.begin(), bytes.end());
        std::size_t used = 0;
        for (; held_.size() - used >= 8; used += 8) {
            std::uint64_t number = 0;
            std::memcpy(&number, held_.data() + used, 8);
            if (number != next_) {
                wrong_.store(true);
            }
            ++next_;
        }
        held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(used));
        count_.store(next_);
    }
    [[nodiscard]] std::uint64_t count() const { return count_.load(); }
    [[nodiscard]] bool wrong() const { return wrong_.load(); }

private:
    std::vector<std::byte> held_;
    std::uint64_t next_ = 0;
    std::atomic<std::uint64_t> count_{0};
    std::atomic<bool> wrong_{false};
};

void send_numbers(ResumableLink& link, std::uint64_t count) {
    std::vector<std::uint64_t> batch;
    for (std::uint64_t i = 0; i < count;) {
        batch.clear();
        for (std::uint64_t j = 0; j < 1 + i % 700 && i < count; ++j) {
            batch.push_back(i++);
        }
        link.send(std::as_bytes(std::span(batch)));
    }
}

/// Accepts connections for one link, as gantry-relay does.
class Acceptor {
public:
    explicit Acceptor(ResumableLink& link) : listener_(listen_tcp("127.0.0.1:0")) {
        thread_ = std::jthread([this, &link](const std::stop_token& stop) {
            while (!stop.stop_requested()) {
                pollfd entry{listener_, POLLIN, 0};
                if (::poll(&entry, 1, 5) != 1) {
                    continue;
                }
                const int fd = ::accept(listener_, nullptr, nullptr);
                LinkHello theirs;
                if (!read_exactly(fd, &theirs, sizeof theirs)) {
                    ::close(fd);
                    continue;
                }
                LinkHello mine;
                mine.session[0] = 7;
                link.adopt(fd, theirs, mine);
            }
        });
    }
    ~Acceptor() {
        thread_.request_stop();
        thread_.join();
        ::close(listener_);
    }
    [[nodiscard]] std::uint16_t port() const { return local_port(listener_); }

private:
    int listener_;
    std::jthread thread_;
};

/// While the thread waits in a system call.
void interrupt(std::thread& thread) {
    for (int i = 0; i < 20; ++i) {
        std::this_thread::sleep_for(milliseconds(1));
        ::pthread_kill(thread.native_handle(), SIGUSR1);
    }
}

TEST(Exactly, ASignalIsNotTheEndOfTheConnection) {
    struct sigaction handled {};
    struct sigaction before {};
    handled.sa_handler = [](int) {};  // Without SA_RESTART: the call ends with EINTR.
    ::sigaction(SIGUSR1, &handled, &before);
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    const std::vector<std::byte> sent(4 << 20, std::byte{7});  // More than the socket holds.
    std::vector<std::byte> got(sent.size());
    std::atomic<int> good{0};
    std::thread writer([&] { good += write_exactly(ends[0], sent.data(), sent.size()); });
    interrupt(writer);
    EXPECT_TRUE(read_exactly(ends[1], got.data(), got.size()));
    writer.join();
    std::thread reader([&] { good += read_exactly(ends[1], got.data(), 1); });
    interrupt(reader);
    EXPECT_TRUE(write_exactly(ends[0], sent.data(), 1));
    reader.join();
    EXPECT_EQ(good.load(), 2);
    EXPECT_EQ(got, sent);
    ::sigaction(SIGUSR1, &before, nullptr);
    ::close(ends[0]);
    ::close(ends[1]);
}

TEST(ResumableLink, LosesAndRepeatsNothingOverACutNetwork) {
    constexpr std::uint64_t kNumbers = 1'500'000;
    Counter at_host, at_guest;
    ResumableLink host([&](std::span<const std::byte> b) { at_host.take(b); }, {}, 10'000);
    ResumableLink guest([&](std::span<const std::byte> b) { at_guest.take(b); }, {}, 10'000);
    Acceptor acceptor(host);
    // More than a packet each way, or no connection would live long enough for one.
    CutNetwork network(acceptor.port(), 3 * kMaxPacketBytes / 2, 5 * kMaxPacketBytes);
    guest.start_dialing([&] { return connect_tcp(network.address()); });
    std::jthread up([&] { send_numbers(guest, kNumbers); });
    std::jthread down([&] { send_numbers(host, kNumbers); });
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while ((at_host.count() < kNumbers || at_guest.count() < kNumbers) &&
           std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(milliseconds(4));
    }
    EXPECT_EQ(at_host.count(), kNumbers);
    EXPECT_EQ(at_guest.count(), kNumbers);
    EXPECT_FALSE(at_host.wrong());
    EXPECT_FALSE(at_guest.wrong());
    EXPECT_GT(network.cuts(), 3);
    guest.close();
    host.close();
}

TEST(ResumableLink, ACloseIsNoCut) {
    std::atomic<std::uint64_t> taken{0};
    std::atomic<bool> is_closed{false};
    ResumableLink host([&](std::span<const std::byte> b) { taken += b.size(); },
                       [&] { is_closed.store(true); }, 60'000);
    ResumableLink guest([](std::span<const std::byte>) {}, {}, 60'000);
    Acceptor acceptor(host);
    CutNetwork network(acceptor.port(), 1 << 20, 1 << 20);
    guest.start_dialing([&] { return connect_tcp(network.address()); });
    const std::byte byte{1};
    guest.send(std::span(&byte, 1));
    const auto wait_for = [](const auto& what) {
        for (int i = 0; i < 10'000 && !what(); ++i) {
            std::this_thread::sleep_for(milliseconds(1));
        }
        return what();
    };
    ASSERT_TRUE(wait_for([&] { return taken.load() == 1; }));
    guest.close();
    EXPECT_TRUE(wait_for([&] { return is_closed.load(); }));
}

TEST(ResumableLink, GivesUpWhenNobodyAnswers) {
    std::atomic<bool> closed{false};
    ResumableLink link([](std::span<const std::byte>) {}, [&] { closed.store(true); }, 50);
    link.start_dialing([] { return -1; });
    const std::byte byte{1};
    link.send(std::span(&byte, 1));
    for (int i = 0; i < 2000 && !closed.load(); ++i) {
        std::this_thread::sleep_for(milliseconds(1));
    }
    EXPECT_TRUE(closed.load());
    EXPECT_FALSE(link.send(std::span(&byte, 1)));
}

}  // namespace
}  // namespace gantry::wire
