// gantry-share-sim: any number of seeds of the simulation of a shared GPU, by hand.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/sim/sharing/world.h"

int main(int argc, char** argv) {
    using namespace gantry::sharing_sim;
    std::uint64_t start = 1;
    std::uint64_t seeds = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::uint64_t value = std::strtoull(argv[i + 1], nullptr, 10);
        if (std::strcmp(argv[i], "--start") == 0) {
            start = value;
        } else if (std::strcmp(argv[i], "--seeds") == 0) {
            seeds = value;
        } else {
            std::fprintf(stderr, "usage: gantry-share-sim [--start SEED] [--seeds COUNT]\n");
            return 2;
        }
    }
    std::uint64_t windows_once = 0;
    std::uint64_t fills = 0;
    std::uint64_t failed = 0;
    for (std::uint64_t seed = start; seed < start + seeds; ++seed) {
        const Outcome outcome = run(random_run(seed, Mutation::kNone));
        windows_once += outcome.windows_once;
        fills += outcome.fills;
        if (!outcome.violation.empty()) {
            ++failed;
            std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed),
                        outcome.violation.c_str());
        }
    }
    std::printf(
        "%llu seeds, %llu failed, %llu windows while another held the GPU, "
        "%llu gaps filled\n",
        static_cast<unsigned long long>(seeds), static_cast<unsigned long long>(failed),
        static_cast<unsigned long long>(windows_once), static_cast<unsigned long long>(fills));
    return failed == 0 ? 0 : 1;
}
