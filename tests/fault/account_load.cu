// Launches two kernels of known lengths a known number of times, says "ready" and waits for a line.
#include <cstdio>
#include <cstdlib>

__global__ void short_kernel(unsigned* out, unsigned rounds) {
    unsigned value = threadIdx.x;
    for (unsigned i = 0; i < rounds; ++i) {
        value = value * 1664525u + 1013904223u;
    }
    out[threadIdx.x] = value;
}

// Ten times as long: twice as many warps, one block as well, whatever else the machine does.
__global__ void long_kernel(unsigned* out, unsigned rounds) {
    unsigned value = threadIdx.x;
    for (unsigned i = 0; i < 5 * rounds; ++i) {
        value = value * 1664525u + 1013904223u;
    }
    out[threadIdx.x] = value;
}

int main(int argc, char** argv) {
    const int shorts = argc > 1 ? atoi(argv[1]) : 300;
    const int longs = argc > 2 ? atoi(argv[2]) : 100;
    const unsigned rounds = argc > 3 ? (unsigned)atoi(argv[3]) : 100000;
    unsigned* out = nullptr;
    if (cudaMalloc(&out, 128 * sizeof(unsigned)) != cudaSuccess) {
        return 1;
    }
    for (int i = 0; i < shorts; ++i) {
        short_kernel<<<1, 64>>>(out, rounds);
    }
    for (int i = 0; i < longs; ++i) {
        long_kernel<<<1, 128>>>(out, rounds);
    }
    if (cudaDeviceSynchronize() != cudaSuccess) {
        return 2;
    }
    printf("ready\n");
    fflush(stdout);
    return getchar() == EOF ? 3 : 0;
}
