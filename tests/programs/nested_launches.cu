// Trap: kernels that launch kernels, in named streams, with memory operations in between, with a
// tail launch and with launches that must be refused; the host waits for all of them at once.
#include "program.h"

__device__ unsigned grids;
__device__ unsigned value;
__device__ unsigned copied;
__device__ unsigned seen;
__device__ unsigned deep;
__device__ unsigned refused;

__global__ void tree(unsigned depth) {
    atomicAdd(&grids, 1);
    if (depth > 0) {
        tree<<<1, 1>>>(depth - 1);
        tree<<<1, 1>>>(depth - 1);
    }
}

__global__ void append(unsigned digit) { value = value * 10 + digit; }

__global__ void below(unsigned levels) {
    if (levels == 0) {
        deep = 77;
    } else {
        below<<<1, 1>>>(levels - 1);
    }
}

__global__ void look() { seen = deep; }

__global__ void add_to(unsigned* cell, unsigned amount) { atomicAdd(cell, amount); }

__global__ void in_order() {
    append<<<1, 1, 0, cudaStreamTailLaunch>>>(9);
    append<<<1, 1>>>(1);
    cudaMemcpyAsync(&copied, &value, sizeof copied, cudaMemcpyDeviceToDevice, 0);
    append<<<1, 1>>>(2);
    below<<<1, 1>>>(5);
    look<<<1, 1>>>();  // after everything that `below` launches
    cudaStream_t stream;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess) {
        cudaEvent_t event;
        cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
        cudaEventRecord(event, 0);
        cudaStreamWaitEvent(stream, event, 0);
        append<<<1, 1, 0, stream>>>(3);
        cudaEventDestroy(event);
        cudaStreamDestroy(stream);
    }
    if (cudaGetLastError() == cudaSuccess) {
        append<<<1, 2048>>>(8);
        refused = cudaGetLastError() != cudaSuccess && cudaGetLastError() == cudaSuccess;
    }
}

__global__ void fan_out(unsigned* cell) {
    unsigned* own = nullptr;
    if (cudaMalloc(&own, sizeof(unsigned)) == cudaSuccess) {
        *own = 1;
        add_to<<<2, 32>>>(cell, *own + threadIdx.x);
        cudaFree(own);
    }
}

template <typename T>
static T fetch(const T& symbol) {
    T host{};
    CHECK(cudaMemcpyFromSymbol(&host, symbol, sizeof host));
    return host;
}

int main() {
    tree<<<1, 1>>>(6);
    CHECK(cudaDeviceSynchronize());
    EXPECT(fetch(grids) == 127);

    in_order<<<1, 1>>>();
    CHECK(cudaDeviceSynchronize());
    EXPECT(fetch(value) == 1239);
    EXPECT(fetch(copied) == 1);
    EXPECT(fetch(seen) == 77);
    EXPECT(fetch(refused) == 1);

    midpoint();
    unsigned* cell = nullptr;
    CHECK(cudaMalloc(&cell, sizeof(unsigned)));
    CHECK(cudaMemset(cell, 0, sizeof(unsigned)));
    fan_out<<<4, 32>>>(cell);
    unsigned sum = 0;
    CHECK(cudaMemcpy(&sum, cell, sizeof sum, cudaMemcpyDeviceToHost));
    EXPECT(sum == 4 * 64 * (32 + 31 * 32 / 2));
    return pass("nested_launches");
}
