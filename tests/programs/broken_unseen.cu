// Trap: a kernel has poisoned the context, and no call has told so yet when the process is moved.
#include "program.h"

__global__ void wild(int* where) { *where = 1; }
__global__ void count_up(int* where) { atomicAdd(where, 1); }

int main() {
    int *device = nullptr, *pinned = nullptr;
    CHECK(cudaMalloc((void**)&device, 8 << 20));
    CHECK(cudaMemset(device, 0, 8 << 20));
    CHECK(cudaMallocHost((void**)&pinned, 4096));
    *pinned = 77;
    CHECK(cudaDeviceSynchronize());
    wild<<<1, 1>>>((int*)0x10);
    count_up<<<64, 64>>>(device);
    midpoint();
    count_up<<<64, 64>>>(device);
    EXPECT_STATUS(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    EXPECT_STATUS(cudaMemcpy(pinned, device, 4, cudaMemcpyDeviceToHost), cudaErrorIllegalAddress);
    EXPECT(*pinned == 77);
    EXPECT_STATUS(cudaFree(device), cudaErrorIllegalAddress);
    return pass("broken_unseen");
}
