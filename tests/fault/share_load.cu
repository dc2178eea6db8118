// Launches bursts of one kernel for some seconds: share_load ROUNDS BURST PAUSE_US SECONDS [BLOCKS
// [BESIDE]]. With a PAUSE_US below 0 the next burst is launched before the last one is waited for.
// BESIDE: two kernels of so many rounds and as many blocks are kept queued on a stream of the
// lowest priority, and the bursts go to one of the highest. Says "ready" when the first kernel has
// ended, waits for a line, and in the end prints the launches since then, the 50th and 99th
// percentile of how long a burst took, in microseconds, and the launches beside them.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>
#include <vector>

__global__ void spin(unsigned* out, unsigned rounds) {
    unsigned value = threadIdx.x;
    for (unsigned i = 0; i < rounds; ++i) {
        value = value * 1664525u + 1013904223u;
    }
    out[threadIdx.x] = value;
}

struct Beside {  // Kernels of the lowest priority, until told to end.
    unsigned* out = nullptr;
    unsigned rounds = 0;
    unsigned blocks = 1;
    std::atomic<bool> is_ending{false};
    size_t launches = 0;
    bool failed = false;

    void run() {
        int lowest = 0, highest = 0;
        cudaStream_t stream = nullptr;
        cudaEvent_t ended[2] = {};
        failed =
            cudaDeviceGetStreamPriorityRange(&lowest, &highest) != cudaSuccess ||
            cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, lowest) != cudaSuccess ||
            cudaEventCreate(&ended[0]) != cudaSuccess || cudaEventCreate(&ended[1]) != cudaSuccess;
        for (; !failed && !is_ending; ++launches) {
            failed = cudaEventSynchronize(ended[launches % 2]) != cudaSuccess;
            spin<<<blocks, 32, 0, stream>>>(out, rounds);
            failed = failed || cudaEventRecord(ended[launches % 2], stream) != cudaSuccess;
        }
    }
};

int main(int argc, char** argv) {
    using Clock = std::chrono::steady_clock;
    if (argc < 5 || argc > 7) {
        return 1;
    }
    const unsigned rounds = (unsigned)atoi(argv[1]);
    const int burst = atoi(argv[2]);
    const int pause_us = atoi(argv[3]);
    const int seconds = atoi(argv[4]);
    const unsigned blocks = argc > 5 ? (unsigned)atoi(argv[5]) : 1;
    unsigned* out = nullptr;
    int lowest = 0, highest = 0;
    cudaStream_t stream = nullptr;
    if (cudaMalloc(&out, 2 * 32 * sizeof(unsigned)) != cudaSuccess ||
        cudaDeviceGetStreamPriorityRange(&lowest, &highest) != cudaSuccess ||
        cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest) != cudaSuccess) {
        return 2;
    }
    spin<<<blocks, 32, 0, stream>>>(out, rounds);
    if (cudaStreamSynchronize(stream) != cudaSuccess) {
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
    Beside beside;
    std::thread other;
    if (argc > 6) {
        beside.out = out + 32;
        beside.rounds = (unsigned)atoi(argv[6]);
        beside.blocks = blocks;
        other = std::thread([&beside] { beside.run(); });
    }
    std::vector<double> took;
    const auto end = Clock::now() + std::chrono::seconds(seconds);
    cudaError_t result = cudaSuccess;
    while (result == cudaSuccess && Clock::now() < end) {
        const auto begun = Clock::now();
        for (int i = 0; i < burst; ++i) {
            spin<<<blocks, 32, 0, stream>>>(out, rounds);
        }
        if (pause_us < 0) {
            std::swap(ended, ending);
            result = cudaEventRecord(ended, stream);
            result = result == cudaSuccess ? cudaEventSynchronize(ending) : result;
        } else {
            result = cudaStreamSynchronize(stream);
        }
        took.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begun).count());
        if (pause_us > 0) {
            usleep((unsigned)pause_us);
        }
    }
    beside.is_ending = true;
    if (other.joinable()) {
        other.join();
    }
    if (result != cudaSuccess || beside.failed) {
        return 5;
    }
    std::sort(took.begin(), took.end());
    printf("%zu %.0f %.0f %zu\n", took.size() * (size_t)burst, took[took.size() / 2],
           took[took.size() * 99 / 100], beside.launches);
    return 0;
}
