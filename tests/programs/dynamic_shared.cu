// Trap: a function attribute set once (dynamic shared memory above 48 KiB) must stay in force.
#include "program.h"

__global__ void reverse(unsigned* data, unsigned count) {
    extern __shared__ unsigned room[];
    for (unsigned i = threadIdx.x; i < count; i += blockDim.x) {
        room[i] = data[i];
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < count; i += blockDim.x) {
        data[i] = room[count - 1 - i];
    }
}

int main() {
    const unsigned count = 20000;
    unsigned* device = nullptr;
    static unsigned host[20000], back[20000];
    for (unsigned i = 0; i < count; ++i) {
        host[i] = i;
    }
    CHECK(cudaMalloc((void**)&device, sizeof host));
    CHECK(cudaMemcpy(device, host, sizeof host, cudaMemcpyHostToDevice));
    reverse<<<1, 256, sizeof host>>>(device, count);
    EXPECT_STATUS(cudaGetLastError(), cudaErrorInvalidValue);
    CHECK(cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               (int)sizeof host));
    reverse<<<1, 256, sizeof host>>>(device, count);
    CHECK(cudaDeviceSynchronize());
    midpoint();
    cudaFuncAttributes attributes;
    CHECK(cudaFuncGetAttributes(&attributes, reverse));
    EXPECT(attributes.maxDynamicSharedSizeBytes == (int)sizeof host);
    reverse<<<1, 256, sizeof host>>>(device, count);
    // Down and up again, as libraries do it from launch to launch.
    CHECK(cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, 4096));
    reverse<<<1, 256, sizeof host>>>(device, count);
    EXPECT_STATUS(cudaGetLastError(), cudaErrorInvalidValue);
    EXPECT_STATUS(
        cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 30),
        cudaErrorInvalidValue);
    (void)cudaGetLastError();
    CHECK(cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               (int)sizeof host));
    reverse<<<1, 256, sizeof host>>>(device, count);
    CHECK(cudaMemcpy(back, device, sizeof back, cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < count; ++i) {
        EXPECT(back[i] == count - 1 - i);
    }
    return pass("dynamic_shared");
}
