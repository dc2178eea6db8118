// What tests/fuzz/worker_packets_fuzzer does, with some hundred inputs that are drawn at random.
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <random>
#include <vector>

#include "tests/fuzz/worker_packets.h"

namespace gantry::supervisor {
namespace {

TEST(HostileWorker, AgainstTheRegistryEndsNothingButItself) {
    constexpr unsigned kRuns = 200;
    constexpr std::size_t kInputBytes = 6000;
    constexpr std::chrono::seconds kEnough{15};
    const auto level = spdlog::get_level();
    const auto until = std::chrono::steady_clock::now() + kEnough;
    HostileRun all;
    unsigned runs = 0;
    for (; runs < kRuns && std::chrono::steady_clock::now() < until; ++runs) {
        std::mt19937 random(runs);
        std::vector<std::uint8_t> input(kInputBytes);
        for (std::uint8_t& byte : input) {
            byte = static_cast<std::uint8_t>(random());
        }
        const HostileRun run = run_hostile_worker(input);
        all.requests += run.requests;
        all.replies_fit += run.replies_fit;
    }
    spdlog::set_level(level);
    RecordProperty("runs", static_cast<int>(runs));
    RecordProperty("requests", all.requests);
    EXPECT_GT(all.requests, static_cast<int>(4 * runs)) << "it is asked for more than its status";
    EXPECT_GT(all.replies_fit, static_cast<int>(2 * runs));
}

}  // namespace
}  // namespace gantry::supervisor
