// How a worker's process ended, as gantryd says it.
#include "host-daemon/supervisor/workers/worker_process.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "proto/control/process_end.h"

namespace gantry::supervisor {
namespace {

class WorkerProcessTest : public testing::Test {
protected:
    WorkerProcessTest() {
        char pattern[] = "/tmp/gantry-process-XXXXXX";
        folder_ = mkdtemp(pattern);
        config_.executable = folder_ + "/worker";
        config_.user.clear();
        config_.private_tmp = false;
        config_.private_network = false;
    }
    ~WorkerProcessTest() override { std::filesystem::remove_all(folder_); }

    /// How a program of these shell commands ended.
    std::string end_of(const std::string& commands) {
        std::ofstream(config_.executable) << "#!/bin/sh\n" << commands << "\n";
        chmod(config_.executable.c_str(), 0755);
        auto process = WorkerProcess::start(config_, folder_ + "/worker.sock", log());
        EXPECT_TRUE(process.ok()) << process.error().to_string();
        const auto how = process->wait(std::chrono::seconds{20});
        EXPECT_TRUE(how.has_value());
        unlink((folder_ + "/worker.sock").c_str());
        return how.value_or("");
    }
    [[nodiscard]] std::string log() const { return folder_ + "/worker.log"; }

    std::string folder_;
    WorkerConfig config_;
};

TEST_F(WorkerProcessTest, AnEndIsNamedAndSaysWhereToLook) {
    EXPECT_EQ(end_of("exit 3"), "exit status 3");
    EXPECT_EQ(end_of("kill -KILL $$"),
              "signal 9 (Killed): killed from outside, or by the kernel for want of memory (then "
              "dmesg says so)");
    EXPECT_EQ(end_of("kill -SEGV $$"),
              "signal 11 (Segmentation fault): a fault of the worker or of the CUDA driver that it "
              "had loaded");
    EXPECT_EQ(end_of("kill -TERM $$"), "signal 15 (Terminated)");
}

TEST_F(WorkerProcessTest, TheLastLineOfItsLogIsQuotedSafely) {
    EXPECT_EQ(control::last_line_of(log()), "");
    end_of("echo first >&2; printf 'last \\033[31mwords\\n\\n' >&2; exit 1");
    EXPECT_EQ(control::last_line_of(log()), "last [31mwords");
    std::ofstream(log()) << std::string(10'000, 'x');
    EXPECT_EQ(control::last_line_of(log()), std::string(300, 'x'));
}

TEST_F(WorkerProcessTest, ItHasNoNetworkAndNoProcessesWithoutEnd) {
    if (geteuid() != 0) {
        GTEST_SKIP() << "needs root, as gantryd does for it";
    }
    chmod(folder_.c_str(), 0755);
    config_.private_network = true;
    config_.user = "nobody";
    // Two lines of heads, then one for each interface.
    EXPECT_EQ(end_of("test $(wc -l </proc/net/dev) = 3 && test $(awk '/Max processes/ { print $3 "
                     "}' /proc/self/limits) -le 32768"),
              "exit status 0");
    char own[64] = {};
    ASSERT_GT(readlink("/proc/self/ns/ipc", own, sizeof(own) - 1), 0);
    EXPECT_EQ(end_of(std::string("test $(readlink /proc/self/ns/ipc) != '") + own + "'"),
              "exit status 0");
}

}  // namespace
}  // namespace gantry::supervisor
