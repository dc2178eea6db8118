// Trap: an asynchronous copy from pageable memory has taken its bytes when the call returns.
#include "program.h"

__global__ void add(unsigned* data, unsigned count, unsigned what) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        data[i] += what;
    }
}

int main() {
    const unsigned count = 3 << 20;
    unsigned* host = (unsigned*)malloc(count * 4);
    unsigned* back = (unsigned*)malloc(count * 4);
    unsigned* device = nullptr;
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaMalloc((void**)&device, count * 4));
    for (int half = 0; half < 2; ++half) {
        for (unsigned i = 0; i < count; ++i) {
            host[i] = i ^ (unsigned)half;
        }
        CHECK(cudaMemcpyAsync(device, host, count * 4, cudaMemcpyHostToDevice, stream));
        memset(host, 0xee, count * 4);
        add<<<(count + 255) / 256, 256, 0, stream>>>(device, count, 5);
        CHECK(cudaMemcpyAsync(back, device, count * 4, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamSynchronize(stream));
        for (unsigned i = 0; i < count; ++i) {
            EXPECT(back[i] == (i ^ (unsigned)half) + 5);
        }
        if (half == 0) {
            midpoint();
        }
    }
    return pass("pageable_async");
}
