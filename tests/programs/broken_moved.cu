// Trap: a process whose context is poisoned goes on, and may be moved like that: it keeps its error
// and what lies in host memory, and its new worker's sound context is not for it.
#include "program.h"

__global__ void wild(int* where) { *where = 1; }

int main() {
    int *device = nullptr, *pinned = nullptr;
    const size_t count = 1 << 18;
    cudaStream_t stream;
    cudaEvent_t event;
    CHECK(cudaMalloc((void**)&device, count * sizeof(int)));
    CHECK(cudaMemset(device, 0x5a, count * sizeof(int)));
    CHECK(cudaMallocHost((void**)&pinned, count * sizeof(int)));
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaEventCreate(&event));
    CHECK(cudaMemcpy(pinned, device, count * sizeof(int), cudaMemcpyDeviceToHost));
    const uint64_t before = digest(pinned, count * sizeof(int));
    wild<<<1, 1, 0, stream>>>((int*)0x10);
    EXPECT_STATUS(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    midpoint();
    EXPECT(digest(pinned, count * sizeof(int)) == before);
    wild<<<1, 1, 0, stream>>>(device);
    EXPECT_STATUS(cudaGetLastError(), cudaErrorIllegalAddress);
    EXPECT_STATUS(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
    EXPECT_STATUS(cudaEventRecord(event, stream), cudaErrorIllegalAddress);
    void* more = nullptr;
    EXPECT_STATUS(cudaMalloc(&more, 4096), cudaErrorIllegalAddress);
    EXPECT_STATUS(cudaMemcpy(pinned, device, 4, cudaMemcpyDeviceToHost), cudaErrorIllegalAddress);
    EXPECT_STATUS(cudaFree(device), cudaErrorIllegalAddress);
    int devices = 0;
    EXPECT_STATUS(cudaGetDeviceCount(&devices), cudaSuccess);
    EXPECT(devices >= 1);
    EXPECT(digest(pinned, count * sizeof(int)) == before);
    return pass("broken_moved");
}
