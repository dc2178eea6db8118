// A program that frees, allocates and fills buffers all the time and looks whether the others still
// hold what it put there. Argument 1: buffers, 2: steps. Prints "step N" now and then, at the end
// "PASS" with a digest of what it did, which does not depend on where the buffers lay.
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <vector>

__host__ __device__ unsigned mixed(unsigned i) {
    i = (i ^ (i >> 16)) * 0x7feb352du;
    i = (i ^ (i >> 15)) * 0x846ca68bu;
    return i ^ (i >> 16);
}

__global__ void fill(unsigned* words, unsigned count, unsigned seed) {
    const unsigned stride = gridDim.x * blockDim.x;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        words[i] = mixed(i + seed);
    }
}

__global__ void check(const unsigned* words, unsigned count, unsigned seed, unsigned* wrong) {
    const unsigned stride = gridDim.x * blockDim.x;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        if (words[i] != mixed(i + seed)) {
            atomicAdd(wrong, 1);
        }
    }
}

struct Buffer {
    unsigned* words = nullptr;
    unsigned count = 0;
    unsigned seed = 0;
};

#define MUST(call)                                                          \
    do {                                                                    \
        if (const cudaError_t error = (call); error != cudaSuccess) {       \
            printf("error: %s (%s)\n", cudaGetErrorString(error), #call);   \
            return 2;                                                       \
        }                                                                   \
    } while (0)

int main(int argc, char** argv) {
    std::vector<Buffer> buffers(argc > 1 ? atoi(argv[1]) : 8);
    const unsigned steps = argc > 2 ? atoi(argv[2]) : 200;
    unsigned* wrong = nullptr;
    MUST(cudaMalloc(&wrong, sizeof(*wrong)));
    MUST(cudaMemset(wrong, 0, sizeof(*wrong)));
    unsigned state = 1;
    unsigned digest = 0;
    for (unsigned step = 0; step < steps; ++step) {
        state = mixed(state + step);
        Buffer& fresh = buffers[state % buffers.size()];
        if (fresh.words != nullptr) {
            MUST(cudaFree(fresh.words));
        }
        // From a small one in a shared granule to 6 MiB. The same seed comes again: the bytes of
        // another buffer than before, or of this one, may be what they were.
        fresh.count = state % 5 == 0 ? 1000 + state % 5000 : 262144 + state % (5 * 262144);
        fresh.seed = state / 64 % 3;
        MUST(cudaMalloc(&fresh.words, fresh.count * sizeof(unsigned)));
        fill<<<16, 128>>>(fresh.words, fresh.count, fresh.seed);
        const Buffer& other = buffers[state / 7 % buffers.size()];
        if (other.words != nullptr) {
            check<<<16, 128>>>(other.words, other.count, other.seed, wrong);
        }
        digest = mixed(digest ^ state);
        if (step % 10 == 0) {
            MUST(cudaDeviceSynchronize());
            printf("step %u %08x\n", step, digest);
            fflush(stdout);
        }
    }
    for (const Buffer& each : buffers) {
        if (each.words != nullptr) {
            check<<<16, 128>>>(each.words, each.count, each.seed, wrong);
        }
    }
    unsigned found = 0;
    MUST(cudaMemcpy(&found, wrong, sizeof(found), cudaMemcpyDeviceToHost));
    printf(found == 0 ? "PASS churn\n" : "%u words are wrong\n", found);
    return found == 0 ? 0 : 1;
}
