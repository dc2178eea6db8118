// A bad neighbour on the same card, for tests/gpu/isolation. Argument 1 is what it does:
//   illegal   writes where it owns nothing, must be told so, and finds that the error stays
//   busy      queues work without end, and waits to be killed; prints `busy` when it is under way
//   flood     launches as fast as it can for argument 2 seconds, never waiting; prints how many
#include <time.h>

#include "tests/programs/program.h"

__global__ void scribble(unsigned* words) { words[threadIdx.x] = 0xdeadbeef; }

__global__ void turn(unsigned* words, int rounds) {
    unsigned x = words[blockIdx.x * blockDim.x + threadIdx.x];
    for (int i = 0; i < rounds; ++i) {
        x = x * 1664525u + 1013904223u;
    }
    words[blockIdx.x * blockDim.x + threadIdx.x] = x;
}

static double now_s() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int illegal(unsigned* words) {
    turn<<<64, 256>>>(words, 1000);
    CHECK(cudaDeviceSynchronize());
    printf("about to offend\n");
    fflush(stdout);
    scribble<<<1, 32>>>((unsigned*)0x7f0000000000ull);
    const cudaError_t told = cudaDeviceSynchronize();
    EXPECT(told == cudaErrorIllegalAddress);
    turn<<<64, 256>>>(words, 1000);
    EXPECT(cudaDeviceSynchronize() != cudaSuccess);  // The error stays with its process.
    unsigned first = 0;
    EXPECT(cudaMemcpy(&first, words, 4, cudaMemcpyDeviceToHost) != cudaSuccess);
    printf("offended: %s\n", cudaGetErrorName(told));
    return 0;
}

static int busy(unsigned* words) {
    for (long launches = 0;; ++launches) {
        turn<<<64, 256>>>(words, 2000);
        CHECK(cudaGetLastError());
        if (launches == 200) {
            printf("busy\n");
            fflush(stdout);
        }
    }
}

static int flood(unsigned* words, double seconds) {
    long launches = 0;
    printf("flooding\n");
    fflush(stdout);
    for (const double end = now_s() + seconds; now_s() < end;) {
        for (int i = 0; i < 256; ++i, ++launches) {
            turn<<<1, 32>>>(words, 1);
        }
    }
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    printf("flooded: %ld launches\n", launches);
    return 0;
}

int main(int argc, char** argv) {
    EXPECT(argc >= 2);
    unsigned* words = nullptr;
    CHECK(cudaMalloc((void**)&words, 64 << 20));
    CHECK(cudaMemset(words, 1, 64 << 20));
    if (strcmp(argv[1], "illegal") == 0) {
        return illegal(words);
    }
    if (strcmp(argv[1], "busy") == 0) {
        return busy(words);
    }
    EXPECT(strcmp(argv[1], "flood") == 0 && argc == 3);
    return flood(words, atof(argv[2]));
}
