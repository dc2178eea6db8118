// gantry-carrier-sim: runs seeded simulations of gantryd's carriers. Exit 1 at the first failing
// seed, with the command that replays it.
#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/sim/carriers/carriers.h"

int main(int argc, char** argv) {
    std::uint64_t seeds = 2'500;
    std::uint64_t start = 1;
    bool keeps_going = false;
    gantry::sim::Options options;
    spdlog::set_level(spdlog::level::off);
    for (int i = 1; i < argc; ++i) {
        const auto number = [&] {
            return i + 1 < argc ? std::strtoull(argv[++i], nullptr, 10) : 0;
        };
        if (std::strcmp(argv[i], "--seeds") == 0) {
            seeds = number();
        } else if (std::strcmp(argv[i], "--start") == 0) {
            start = number();
        } else if (std::strcmp(argv[i], "--keep-going") == 0) {
            keeps_going = true;
        } else if (std::strcmp(argv[i], "--trace") == 0) {
            options.trace = true;
            spdlog::set_level(spdlog::level::info);
        } else {
            std::fprintf(stderr,
                         "usage: gantry-carrier-sim [--seeds N] [--start S] [--keep-going] "
                         "[--trace]\n");
            return 2;
        }
    }
    gantry::sim::Verdict sum;
    std::uint64_t failed = 0;
    const auto begun = std::chrono::steady_clock::now();
    for (std::uint64_t seed = start; seed < start + seeds && (failed == 0 || keeps_going); ++seed) {
        options.seed = seed;
        const gantry::sim::Verdict verdict = gantry::sim::run_carrier_seed(options);
        sum.event_count += verdict.event_count;
        sum.moved_count += verdict.moved_count;
        sum.rolled_back_count += verdict.rolled_back_count;
        sum.crash_count += verdict.crash_count;
        sum.returned_count += verdict.returned_count;
        if (!verdict.ok) {
            ++failed;
            const auto which = static_cast<unsigned long long>(seed);
            std::printf(
                "seed %llu: %s\n  replay: gantry-carrier-sim --start %llu --seeds 1 "
                "--trace\n",
                which, verdict.violation.c_str(), which);
        }
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    std::printf(
        "%llu seeds failed, %.1f s: %llu events, %llu moves, %llu rollbacks, %llu crashes "
        "of gantryd, %llu grants returned\n",
        static_cast<unsigned long long>(failed), took.count(),
        static_cast<unsigned long long>(sum.event_count),
        static_cast<unsigned long long>(sum.moved_count),
        static_cast<unsigned long long>(sum.rolled_back_count),
        static_cast<unsigned long long>(sum.crash_count),
        static_cast<unsigned long long>(sum.returned_count));
    return failed == 0 ? 0 : 1;
}
