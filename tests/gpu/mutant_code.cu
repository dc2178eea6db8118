// The code that image_mutants.cu mutates: variables of every kind of section, relocations of every
// kind that nvcc makes for them, a texture, a device function's address, text for printf.
#include <cstdio>

__device__ unsigned long long seeds[512] = {0x9e3779b97f4a7c15ull, 0xbf58476d1ce4e5b9ull, 1, 2, 3};
__device__ unsigned zeros[1024];
__constant__ unsigned fixed[256] = {17, 34, 51};
__device__ unsigned* where = zeros;
__device__ const unsigned long long* first = seeds;

__device__ __noinline__ unsigned twice(unsigned x) { return 2 * x; }
__device__ __noinline__ unsigned thrice(unsigned x) { return 3 * x; }
typedef unsigned (*Function)(unsigned);
__device__ Function functions[2] = {twice, thrice};

extern "C" __global__ void answer(unsigned* out, unsigned n, cudaTextureObject_t texture) {
    __shared__ unsigned row[64];
    const unsigned i = threadIdx.x;
    row[i % 64] = fixed[i % 3];
    __syncthreads();
    if (n > 1000000) {
        printf("never: %u %f\n", i, tex1Dfetch<float>(texture, int(i)));
    }
    zeros[i] = functions[n % 2](row[i % 64]);
    out[i] = zeros[i] + unsigned(seeds[i % 2] >> 60) + unsigned(where == zeros) + unsigned(*first);
}
