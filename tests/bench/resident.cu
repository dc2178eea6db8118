// Fills device memory with bytes that no codec or deduplication can spare, says "ready", waits for
// a line on standard input and checks that every word is as it was. Argument 1: MiB.
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>

__host__ __device__ unsigned long long word_at(unsigned long long i) {
    i = (i ^ (i >> 30)) * 0xbf58476d1ce4e5b9ull;
    i = (i ^ (i >> 27)) * 0x94d049bb133111ebull;
    return i ^ (i >> 31);
}

__global__ void fill(unsigned long long* words, size_t count) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count;
         i += (size_t)gridDim.x * blockDim.x) {
        words[i] = word_at(i + 1);
    }
}

__global__ void check(const unsigned long long* words, size_t count, unsigned* wrong) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count;
         i += (size_t)gridDim.x * blockDim.x) {
        if (words[i] != word_at(i + 1)) {
            atomicAdd(wrong, 1);
        }
    }
}

int main(int argc, char** argv) {
    const size_t count = (argc > 1 ? atoi(argv[1]) : 256) * (size_t)131072;
    unsigned long long* words = nullptr;
    unsigned* wrong = nullptr;
    unsigned found = 0;
    if (cudaMalloc(&words, count * 8) != cudaSuccess || cudaMalloc(&wrong, 4) != cudaSuccess ||
        cudaMemset(wrong, 0, 4) != cudaSuccess) {
        printf("no memory\n");
        return 1;
    }
    fill<<<256, 256>>>(words, count);
    if (cudaDeviceSynchronize() != cudaSuccess) {
        return 1;
    }
    printf("ready\n");
    fflush(stdout);
    getchar();
    check<<<256, 256>>>(words, count, wrong);
    if (cudaMemcpy(&found, wrong, 4, cudaMemcpyDeviceToHost) != cudaSuccess || found != 0) {
        printf("%u words are wrong\n", found);
        return 1;
    }
    printf("intact\n");
    return 0;
}
