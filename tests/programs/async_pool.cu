// Trap: stream-ordered allocation; memory of a pool keeps its address and content.
#include "program.h"

__global__ void fill(unsigned* data, unsigned count, unsigned seed) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        data[i] = i * seed;
    }
}

int main() {
    const unsigned count = 100000;
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    unsigned *a = nullptr, *b = nullptr;
    static unsigned back[100000];
    CHECK(cudaMallocAsync((void**)&a, count * 4, stream));
    fill<<<(count + 255) / 256, 256, 0, stream>>>(a, count, 3);
    CHECK(cudaMallocAsync((void**)&b, count * 4, stream));
    fill<<<(count + 255) / 256, 256, 0, stream>>>(b, count, 5);
    CHECK(cudaFreeAsync(b, stream));
    CHECK(cudaStreamSynchronize(stream));
    midpoint();
    CHECK(cudaMemcpyAsync(back, a, count * 4, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    for (unsigned i = 0; i < count; ++i) {
        EXPECT(back[i] == i * 3);
    }
    CHECK(cudaMallocAsync((void**)&b, count * 8, stream));
    CHECK(cudaMemsetAsync(b, 0, count * 8, stream));
    CHECK(cudaFreeAsync(a, stream));
    CHECK(cudaFreeAsync(b, stream));
    CHECK(cudaStreamSynchronize(stream));
    return pass("async_pool");
}
