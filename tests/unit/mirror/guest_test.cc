// gantry-guest itself, with a process and a host that the test plays.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "proto/wire/mirror/endpoint.h"

namespace gantry::wire {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

#ifdef __SANITIZE_THREAD__
constexpr std::ptrdiff_t kThreadsOfTheSanitizer = 1;  // It comes with the first thread of ours.
#else
constexpr std::ptrdiff_t kThreadsOfTheSanitizer = 0;
#endif

std::ptrdiff_t threads_of(pid_t process) {
    return std::distance(
        std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/task"), {});
}

/// What follows the answer waits for a region, which cannot be made.
TEST(Guest, ForgetsAProcessForWhichItHasNoRegion) {
    const std::string path = "/tmp/gantry-guest-test-" + std::to_string(getpid()) + ".sock";
    const int listener = listen_tcp("127.0.0.1:0");
    ASSERT_GE(listener, 0);
    const std::string address = "127.0.0.1:" + std::to_string(local_port(listener));
    const pid_t guest = fork();
    if (guest == 0) {
        execl(GANTRY_GUEST, "gantry-guest", "--host", address.c_str(), "--listen", path.c_str(),
              nullptr);
        _exit(127);
    }
    const auto end = steady_clock::now() + seconds{30};
    while (!std::filesystem::exists(path) && steady_clock::now() < end) {
        std::this_thread::sleep_for(milliseconds{1});
    }
    const std::ptrdiff_t threads_idle = threads_of(guest) + kThreadsOfTheSanitizer;
    int process = -1;
    while (process < 0 && steady_clock::now() < end) {
        process = connect_unix(path);
    }
    ASSERT_GE(process, 0);
    const AttachRequest request;
    ASSERT_TRUE(send_packet(process, &request, sizeof request, -1));

    ResumableLink host([](std::span<const std::byte>) {}, [] {}, 60'000);
    const int connection = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    LinkHello theirs;
    ASSERT_TRUE(read_exactly(connection, &theirs, sizeof theirs));
    LinkHello mine;
    mine.session[0] = 1;
    host.adopt(connection, theirs, mine);
    GuestAttached attached;
    attached.reply.accepted = 1;
    attached.reply.region_bytes = 1;
    const FrameHeader opening{FrameKind::kAttached, sizeof attached, 0};
    const FrameHeader next{FrameKind::kHostWords, 0, 0};
    std::vector<std::byte> stream(sizeof opening + sizeof attached + sizeof next);
    std::memcpy(stream.data(), &opening, sizeof opening);
    std::memcpy(stream.data() + sizeof opening, &attached, sizeof attached);
    std::memcpy(stream.data() + sizeof opening + sizeof attached, &next, sizeof next);
    ASSERT_TRUE(host.send(stream));

    AttachReply reply;
    int passed = -1;
    ASSERT_TRUE(receive_packet(process, &reply, sizeof reply, &passed));
    EXPECT_EQ(reply.accepted, 0U);
    EXPECT_NE(std::strstr(reply.text, "cannot make a region"), nullptr) << reply.text;
    const auto most = steady_clock::now() + seconds{10};
    while (threads_of(guest) > threads_idle && steady_clock::now() < most) {
        std::this_thread::sleep_for(milliseconds{1});
    }
    EXPECT_EQ(threads_of(guest), threads_idle) << "threads of the process are left";
    kill(guest, SIGKILL);
    waitpid(guest, nullptr, 0);
    close(process);
    close(listener);
    unlink(path.c_str());
}

}  // namespace
}  // namespace gantry::wire
