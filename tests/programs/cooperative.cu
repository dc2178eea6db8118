// Trap: a cooperative grid is wholly resident; one block too many is refused with 720.
#include <cooperative_groups.h>

#include "driver_entry.h"

namespace cg = cooperative_groups;

__global__ void pass_on(unsigned* data, unsigned rounds) {
    cg::grid_group grid = cg::this_grid();
    const unsigned count = gridDim.x;
    for (unsigned round = 0; round < rounds; ++round) {
        unsigned value = 0;
        if (threadIdx.x == 0) {
            value = data[(blockIdx.x + 1) % count];
        }
        grid.sync();
        if (threadIdx.x == 0) {
            data[blockIdx.x] = value + 1;
        }
        grid.sync();
    }
}

int main() {
    const unsigned blocks = 8;
    unsigned rounds = 20;
    unsigned* data = nullptr;
    unsigned host[blocks];
    CHECK(cudaMalloc((void**)&data, sizeof host));
    for (unsigned i = 0; i < blocks; ++i) {
        host[i] = i;
    }
    CHECK(cudaMemcpy(data, host, sizeof host, cudaMemcpyHostToDevice));
    void* args[] = {&data, &rounds};
    for (int half = 0; half < 2; ++half) {
        CHECK(
            cudaLaunchCooperativeKernel((void*)pass_on, dim3(blocks), dim3(64), args, 0, nullptr));
        CHECK(cudaDeviceSynchronize());
        if (half == 0) {
            midpoint();
        }
    }
    CHECK(cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < blocks; ++i) {
        EXPECT(host[i] == (i + 40) % blocks + 40);
    }
    int per_sm = 0, sms = 0;
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, pass_on, 64, 0));
    CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    EXPECT(per_sm >= 1 && sms >= 1);
    EXPECT_STATUS(cudaLaunchCooperativeKernel((void*)pass_on, dim3((unsigned)(per_sm * sms) + 1),
                                              dim3(64), args, 0, nullptr),
                  cudaErrorCooperativeLaunchTooLarge);
    cudaGetLastError();

    // The launch on several devices, as far as there are several: one of a kind a device.
    int several = 0;
    CHECK(cudaDeviceGetAttribute(&several, (cudaDeviceAttr)96, 0));
    if (several != 0) {
        ENTRY(cuLaunchCooperativeKernelMultiDevice, 9000);
        cudaStream_t stream;
        cudaFunction_t function;
        CHECK(cudaStreamCreate(&stream));
        CHECK(cudaGetFuncBySymbol(&function, (void*)pass_on));
        CUDA_LAUNCH_PARAMS one = {};
        one.function = function;
        one.gridDimX = blocks;
        one.gridDimY = one.gridDimZ = one.blockDimY = one.blockDimZ = 1;
        one.blockDimX = 64;
        one.hStream = stream;
        one.kernelParams = args;
        OK(cuLaunchCooperativeKernelMultiDevice_(&one, 1, 0));
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost));
        for (unsigned i = 0; i < blocks; ++i) {
            EXPECT(host[i] == (i + 60) % blocks + 60);
        }
        one.hStream = nullptr;
        EXPECT(cuLaunchCooperativeKernelMultiDevice_(&one, 1, 0) != CUDA_SUCCESS);
    }
    return pass("cooperative");
}
