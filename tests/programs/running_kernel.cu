// Trap: work is queued and running while the snapshot is taken; nothing may be lost or done twice.
#include "program.h"

__global__ void churn(unsigned* data, unsigned count, unsigned rounds) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) {
        return;
    }
    unsigned value = data[i];
    for (unsigned round = 0; round < rounds; ++round) {
        value = value * 1664525u + 1013904223u;
    }
    data[i] = value;
}

int main() {
    const unsigned count = 1 << 16, launches = 40, rounds = 200;
    unsigned* device = nullptr;
    unsigned* host = (unsigned*)malloc(count * 4);
    CHECK(cudaMalloc((void**)&device, count * 4));
    for (unsigned i = 0; i < count; ++i) {
        host[i] = i;
    }
    CHECK(cudaMemcpy(device, host, count * 4, cudaMemcpyHostToDevice));
    for (unsigned i = 0; i < launches; ++i) {
        churn<<<count / 256, 256>>>(device, count, rounds);
        if (i == launches / 2) {
            midpoint();
        }
    }
    CHECK(cudaMemcpy(host, device, count * 4, cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < count; i += 97) {
        unsigned value = i;
        for (unsigned round = 0; round < launches * rounds; ++round) {
            value = value * 1664525u + 1013904223u;
        }
        EXPECT(host[i] == value);
    }
    printf("digest %016llx\n", (unsigned long long)digest(host, count * 4));
    return pass("running_kernel");
}
