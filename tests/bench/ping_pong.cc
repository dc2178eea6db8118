// The floor under every synchronous call: two processes spin on two words of shared memory.
// Prints nanoseconds a round trip, the median of `rounds` batches.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>

#include "proto/wire/wait.h"

namespace {

struct Words {
    alignas(4096) std::atomic<std::uint64_t> request{0};
    alignas(4096) std::atomic<std::uint64_t> answer{0};
};

constexpr std::uint64_t kStop = ~0ull;

void serve(Words* words) {
    for (std::uint64_t seen = 0;;) {
        const std::uint64_t request = words->request.load(std::memory_order_acquire);
        if (request == kStop) {
            return;
        }
        if (request != seen) {
            seen = request;
            words->answer.store(seen, std::memory_order_release);
        }
        gantry::wire::cpu_relax();
    }
}

}  // namespace

int main(int argc, char** argv) {
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 21;
    constexpr std::uint64_t kBatch = 20'000;
    void* shared =
        ::mmap(nullptr, sizeof(Words), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        std::perror("mmap");
        return 1;
    }
    auto* words = new (shared) Words;
    const pid_t child = ::fork();
    if (child == 0) {
        serve(words);
        ::_exit(0);
    }
    std::vector<double> batches;
    std::uint64_t number = 0;
    for (int round = 0; round < rounds; ++round) {
        const std::uint64_t start = gantry::wire::monotonic_ns();
        for (std::uint64_t i = 0; i < kBatch; ++i) {
            words->request.store(++number, std::memory_order_release);
            while (words->answer.load(std::memory_order_acquire) != number) {
                gantry::wire::cpu_relax();
            }
        }
        batches.push_back(static_cast<double>(gantry::wire::monotonic_ns() - start) / kBatch);
    }
    words->request.store(kStop, std::memory_order_release);
    ::waitpid(child, nullptr, 0);
    std::sort(batches.begin(), batches.end());
    std::printf("%.1f\n", batches[batches.size() / 2]);
    return 0;
}
