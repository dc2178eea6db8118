// Trap: an illegal address poisons the context: every later call says 700, the device count does
// not.
#include "program.h"

__global__ void wild(int* where) { *where = 1; }

int main() {
    int* device = nullptr;
    CHECK(cudaMalloc((void**)&device, 4096));
    midpoint();
    wild<<<1, 1>>>((int*)0x10);
    EXPECT_STATUS(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    void* more = nullptr;
    EXPECT_STATUS(cudaMalloc(&more, 4096), cudaErrorIllegalAddress);
    int host = 0;
    EXPECT_STATUS(cudaMemcpy(&host, device, 4, cudaMemcpyDeviceToHost), cudaErrorIllegalAddress);
    EXPECT_STATUS(cudaFree(device), cudaErrorIllegalAddress);
    EXPECT_STATUS(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    int count = 0;
    EXPECT_STATUS(cudaGetDeviceCount(&count), cudaSuccess);
    EXPECT(count >= 1);
    return pass("sticky_error");
}
