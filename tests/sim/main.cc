// gantry-sim: runs seeded simulations of the migration engine. Exit 1 at the first failing seed,
// with the command that replays it.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/sim/world.h"

namespace {

int usage() {
    std::fprintf(stderr,
                 "usage: gantry-sim [--seeds N] [--start S] [--mutation M] [--keep-going] "
                 "[--trace]\n"
                 "  M: 0 none, 1 grant before durable, 2 grant without frozen, 3 ignore RESUMED,\n"
                 "     4 activate before grant, 5 apply stale batches,\n"
                 "     6 keep a returned grant, 7 return without proof, 8 announce each attempt,\n"
                 "     9 count batches early, 10 a hook without a bound, 11 take any ticket,\n"
                 "     12 imagine jobs\n");
    return 2;
}

}  // namespace

int main(int argc, char** argv) {
    std::uint64_t seeds = 10'000;
    std::uint64_t start = 1;
    bool keep_going = false;
    gantry::sim::Options options;
    for (int i = 1; i < argc; ++i) {
        const auto number = [&] {
            return i + 1 < argc ? std::strtoull(argv[++i], nullptr, 10) : 0;
        };
        if (std::strcmp(argv[i], "--seeds") == 0) {
            seeds = number();
        } else if (std::strcmp(argv[i], "--start") == 0) {
            start = number();
        } else if (std::strcmp(argv[i], "--mutation") == 0) {
            options.mutation = static_cast<gantry::sim::Mutation>(number());
        } else if (std::strcmp(argv[i], "--keep-going") == 0) {
            keep_going = true;
        } else if (std::strcmp(argv[i], "--trace") == 0) {
            options.trace = true;
        } else {
            return usage();
        }
    }
    gantry::sim::Verdict sum;
    std::uint64_t failed = 0;
    const auto begun = std::chrono::steady_clock::now();
    for (std::uint64_t seed = start; seed < start + seeds; ++seed) {
        options.seed = seed;
        const gantry::sim::Verdict verdict = gantry::sim::run_seed(options);
        sum.event_count += verdict.event_count;
        sum.moved_count += verdict.moved_count;
        sum.rolled_back_count += verdict.rolled_back_count;
        sum.crash_count += verdict.crash_count;
        sum.split_brain_count += verdict.split_brain_count;
        sum.returned_count += verdict.returned_count;
        sum.pause_refused_count += verdict.pause_refused_count;
        sum.theft_count += verdict.theft_count;
        sum.silence_count += verdict.silence_count;
        sum.behind_count += verdict.behind_count;
        if (!verdict.ok) {
            ++failed;
            std::printf("seed %llu: %s\n  replay: gantry-sim --start %llu --seeds 1 --trace\n",
                        static_cast<unsigned long long>(seed), verdict.violation.c_str(),
                        static_cast<unsigned long long>(seed));
            if (!keep_going) {
                return 1;
            }
        }
    }
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    std::printf(
        "%llu seeds, %llu failed, %.1f s: %llu events, %llu moves, %llu rollbacks, "
        "%llu crashes of gantryd, %llu split brains, %llu grants returned, %llu pauses refused, "
        "%llu thefts tried, %llu silences of libvirt, %llu guests before their session\n",
        static_cast<unsigned long long>(seeds), static_cast<unsigned long long>(failed), seconds,
        static_cast<unsigned long long>(sum.event_count),
        static_cast<unsigned long long>(sum.moved_count),
        static_cast<unsigned long long>(sum.rolled_back_count),
        static_cast<unsigned long long>(sum.crash_count),
        static_cast<unsigned long long>(sum.split_brain_count),
        static_cast<unsigned long long>(sum.returned_count),
        static_cast<unsigned long long>(sum.pause_refused_count),
        static_cast<unsigned long long>(sum.theft_count),
        static_cast<unsigned long long>(sum.silence_count),
        static_cast<unsigned long long>(sum.behind_count));
    return failed == 0 ? 0 : 1;
}
