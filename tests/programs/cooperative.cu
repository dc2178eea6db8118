// Trap: a cooperative grid is wholly resident; one block too many is refused with 720.
#include <cooperative_groups.h>

#include "program.h"

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
    return pass("cooperative");
}
