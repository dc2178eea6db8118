// Trap: several host threads, built with --default-stream per-thread; each has its own stream.
#include <thread>
#include <vector>

#include "program.h"

__global__ void step(unsigned* data, unsigned count, unsigned seed) {
    for (unsigned i = threadIdx.x; i < count; i += blockDim.x) {
        data[i] = data[i] * 1664525u + seed;
    }
}

static void work(unsigned seed, bool* good) {
    const unsigned count = 4096;
    unsigned* device = nullptr;
    std::vector<unsigned> wanted(count, seed), back(count);
    CHECK(cudaMalloc((void**)&device, count * 4));
    CHECK(cudaMemcpy(device, wanted.data(), count * 4, cudaMemcpyHostToDevice));
    for (unsigned round = 0; round < 50; ++round) {
        step<<<1, 128>>>(device, count, round + seed);
        for (unsigned& word : wanted) {
            word = word * 1664525u + round + seed;
        }
    }
    CHECK(cudaStreamSynchronize(0));
    CHECK(cudaMemcpy(back.data(), device, count * 4, cudaMemcpyDeviceToHost));
    *good = back == wanted;
    CHECK(cudaFree(device));
}

int main() {
    for (int half = 0; half < 2; ++half) {
        bool good[6] = {};
        std::vector<std::thread> threads;
        for (unsigned i = 0; i < 6; ++i) {
            threads.emplace_back(work, i * 17 + 1, &good[i]);
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        for (bool one : good) {
            EXPECT(one);
        }
        if (half == 0) {
            midpoint();
        }
    }
    return pass("thread_streams");
}
