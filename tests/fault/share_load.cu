// Launches bursts of one kernel for some seconds: share_load ROUNDS BURST PAUSE_US SECONDS. With a
// PAUSE_US below 0 the next burst is launched before the last one is waited for. Says
// "ready" when the first has ended, waits for a line, and in the end prints the launches since then
// and the 50th and 99th percentile of how long a burst took, in microseconds.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

__global__ void spin(unsigned* out, unsigned rounds) {
    unsigned value = threadIdx.x;
    for (unsigned i = 0; i < rounds; ++i) {
        value = value * 1664525u + 1013904223u;
    }
    out[threadIdx.x] = value;
}

int main(int argc, char** argv) {
    using Clock = std::chrono::steady_clock;
    if (argc != 5) {
        return 1;
    }
    const unsigned rounds = (unsigned)atoi(argv[1]);
    const int burst = atoi(argv[2]);
    const int pause_us = atoi(argv[3]);
    const int seconds = atoi(argv[4]);
    unsigned* out = nullptr;
    if (cudaMalloc(&out, 32 * sizeof(unsigned)) != cudaSuccess) {
        return 2;
    }
    spin<<<1, 32>>>(out, rounds);
    if (cudaDeviceSynchronize() != cudaSuccess) {
        return 3;
    }
    printf("ready\n");
    fflush(stdout);
    if (getchar() == EOF) {
        return 4;
    }
    cudaEvent_t ended = nullptr;
    cudaEvent_t ending = nullptr;  // Of the burst before: one that was never recorded has ended.
    if (cudaEventCreate(&ended) != cudaSuccess || cudaEventCreate(&ending) != cudaSuccess) {
        return 6;
    }
    std::vector<double> took;
    const auto end = Clock::now() + std::chrono::seconds(seconds);
    while (Clock::now() < end) {
        const auto begun = Clock::now();
        for (int i = 0; i < burst; ++i) {
            spin<<<1, 32>>>(out, rounds);
        }
        if (pause_us < 0) {
            std::swap(ended, ending);
            if (cudaEventRecord(ended) != cudaSuccess ||
                cudaEventSynchronize(ending) != cudaSuccess) {
                return 5;
            }
        } else if (cudaDeviceSynchronize() != cudaSuccess) {
            return 5;
        }
        took.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begun).count());
        if (pause_us > 0) {
            usleep((unsigned)pause_us);
        }
    }
    std::sort(took.begin(), took.end());
    printf("%zu %.0f %.0f\n", took.size() * (size_t)burst, took[took.size() / 2],
           took[took.size() * 99 / 100]);
    return 0;
}
