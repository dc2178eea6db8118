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
    }
    ~WorkerProcessTest() override { std::filesystem::remove_all(folder_); }

    /// How a program of these shell commands ended.
    std::string end_of(const std::string& commands) {
        WorkerConfig config;
        config.executable = folder_ + "/worker";
        config.user.clear();
        config.private_tmp = false;
        std::ofstream(config.executable) << "#!/bin/sh\n" << commands << "\n";
        chmod(config.executable.c_str(), 0700);
        auto process = WorkerProcess::start(config, folder_ + "/worker.sock", log());
        EXPECT_TRUE(process.ok()) << process.error().to_string();
        const auto how = process->wait(std::chrono::seconds{20});
        EXPECT_TRUE(how.has_value());
        unlink((folder_ + "/worker.sock").c_str());
        return how.value_or("");
    }
    [[nodiscard]] std::string log() const { return folder_ + "/worker.log"; }

    std::string folder_;
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

}  // namespace
}  // namespace gantry::supervisor
