// The policy of a shared GPU, simulated: sessions with random shares and loads, a GPU that gives
// processes slices of time, and the arbiter in between. The same seed gives the same run.
//
// Steps of kStep. Claims reach the arbiter a random time late, as its thread's wake-up is;
// verdicts are read at once, as shared memory is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host-daemon/scheduling/arbiter.h"

namespace gantry::sharing_sim {

using scheduling::Time;

enum class Manner {
    kHonest,
    kAlwaysWants,  ///< Claims work that it does not have.
    kAlwaysRuns,   ///< Never says that its work has ended.
    kGreedy,       ///< Launches whatever its verdict is.
    kLiesOfTimes,  ///< Its kernels take no time, and it will be away for long: so it says.
};

struct Load {
    scheduling::Share share;
    Manner manner = Manner::kHonest;
    Time kernel{};
    std::uint32_t burst = 0;  ///< Kernels; 0: endless.
    Time pause{};             ///< Between two bursts.
};

/// A policy, or a worker, that does one thing wrong: the checks must notice.
enum class Mutation {
    kNone,
    kNobodyStarves,
    kNoWindow,
    kNoHold,
    kNoWeights,
    kFillsBlindly,  ///< It does not look when the gap ends.
};

struct Schedule {
    std::uint64_t seed = 1;
    std::vector<Load> loads;
    Time length{};
    scheduling::Settings settings;
    bool is_scheduled = true;  ///< Else the GPU's slices alone decide.
    Mutation mutation = Mutation::kNone;
};

struct Outcome {
    std::string violation;  ///< Empty: none.
    std::vector<Time> gpu_time;
    std::vector<Time> wait_max;
    std::vector<std::uint64_t> ended;       ///< Kernels.
    std::vector<std::vector<Time>> bursts;  ///< From a burst's first kernel to its last one's end.
    std::uint64_t windows_once = 0;
    std::uint64_t holds = 0;
    std::uint64_t fills = 0;
};

Outcome run(const Schedule& what);
/// A random one.
Schedule random_run(std::uint64_t seed, Mutation mutation);

}  // namespace gantry::sharing_sim
