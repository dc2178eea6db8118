// The books of a host whose device takes long to say what it is.
#include "host-daemon/supervisor/registry/registry.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

namespace gantry::supervisor {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Fails at once the first time, and answers nothing the second time.
constexpr const char* kWorker = R"(#!/bin/sh
cd "${0%/*}"
if [ -e has_failed ]; then
    echo $$ >pid.new
    mv pid.new pid
    exec sleep 100
fi
touch has_failed
exit 1
)";

TEST(Registry, ListsItsSessionsWhileTheDeviceIsLookedFor) {
    char pattern[] = "/tmp/registry_test.XXXXXX";
    const std::string folder = mkdtemp(pattern);
    Config config;
    config.daemon.run_directory = folder;
    config.worker.executable = folder + "/worker";
    config.worker.user.clear();
    config.worker.private_tmp = false;
    std::ofstream(config.worker.executable) << kWorker;
    chmod(config.worker.executable.c_str(), 0700);
    auto store = EpochStore::open(folder + "/state");
    ASSERT_TRUE(store.ok()) << store.error().to_string();
    const auto hypervisor = make_no_hypervisor();
    Registry registry(config, *store, *hypervisor);
    const auto started = registry.start();
    ASSERT_TRUE(started.ok()) << started.error().to_string();

    auto asked = std::async(std::launch::async, [&] { return registry.capabilities(); });
    pid_t worker = 0;
    while (worker == 0 && asked.wait_for(milliseconds{1}) == std::future_status::timeout) {
        std::ifstream(folder + "/pid") >> worker;
    }
    ASSERT_NE(worker, 0);
    auto listed = std::async(std::launch::async, [&] { return registry.list("").sessions_size(); });
    EXPECT_EQ(listed.wait_for(seconds{5}), std::future_status::ready);
    kill(worker, SIGKILL);
    const auto here = asked.get();
    ASSERT_TRUE(here.ok());
    EXPECT_TRUE(here->gpu_name.empty());
    EXPECT_EQ(listed.get(), 0);
    registry.stop();
    std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace gantry::supervisor
