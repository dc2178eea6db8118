// A program that keeps a state on the GPU, changes it in steps and prints a digest of each: moved
// or not, the digests must be the same. Argument 1: MiB of device memory, 2: steps (0: until it is
// told to end, see told_to_end.h), 3: milliseconds between, 4: MiB of device memory that it has
// beside it, all zeros but for a word in 32 MiB.
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tests/programs/told_to_end.h"

__global__ void advance(unsigned* state, size_t count, unsigned step) {
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < count) {
        state[i] = state[i] * 1664525u + 1013904223u + step + (unsigned)i;
    }
}

/// A word in every `step`-th.
__global__ void mark(unsigned* idle, size_t count, size_t step) {
    for (size_t i = 0; i < count; i += step) {
        idle[i] = (unsigned)i + 1;
    }
}

int main(int argc, char** argv) {
    const size_t mib = argc > 1 ? atoi(argv[1]) : 16;
    const int steps = argc > 2 ? atoi(argv[2]) : 20;
    const int pause_ms = argc > 3 ? atoi(argv[3]) : 100;
    const size_t idle_mib = argc > 4 ? atoi(argv[4]) : 0;
    const size_t count = mib * 262144;
    const size_t changing = count / 4;
    unsigned* state = nullptr;
    unsigned* idle = nullptr;
    if (cudaMalloc(&state, count * sizeof(unsigned)) != cudaSuccess ||
        (idle_mib != 0 && cudaMalloc(&idle, idle_mib << 20) != cudaSuccess)) {
        printf("error: out of memory\n");
        return 1;
    }
    cudaMemset(state, 1, count * sizeof(unsigned));
    if (idle_mib != 0) {
        mark<<<1, 1>>>(idle, idle_mib * 262144, 32 * 262144);
    }
    std::vector<unsigned> copy(count);
    for (int step = 0; steps != 0 ? step < steps : !told_to_end(); ++step) {
        advance<<<(unsigned)((changing + 255) / 256), 256>>>(state, changing, step);
        const cudaError_t error =
            cudaMemcpy(copy.data(), state, count * sizeof(unsigned), cudaMemcpyDeviceToHost);
        if (error != cudaSuccess) {
            printf("error: %s\n", cudaGetErrorString(error));
            return 2;
        }
        unsigned long long digest = 0;
        for (const unsigned value : copy) {
            digest = digest * 31 + value;
        }
        printf("step %d %016llx\n", step, digest);
        fflush(stdout);
        usleep(pause_ms * 1000);
    }
    return 0;
}
