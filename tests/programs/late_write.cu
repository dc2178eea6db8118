// Trap: pinned memory written by the CPU after the launch was queued must be what the kernel reads.
#include "program.h"

__global__ void gather(const unsigned* in, unsigned* out, volatile unsigned* go, unsigned count) {
    if (threadIdx.x == 0) {
        while (*go == 0) {
        }
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < count; i += blockDim.x) {
        out[i] = in[i] + 1;
    }
}

int main() {
    const unsigned count = 4096;
    unsigned *in = nullptr, *go = nullptr, *out = nullptr;
    CHECK(cudaMallocHost((void**)&in, count * 4));
    CHECK(cudaMallocHost((void**)&go, 4096));
    CHECK(cudaMalloc((void**)&out, count * 4));
    static unsigned back[4096];
    for (int half = 0; half < 2; ++half) {
        memset(in, 0, count * 4);
        *go = 0;
        gather<<<1, 128>>>(in, out, go, count);
        CHECK(cudaGetLastError());
        usleep(2000);
        for (unsigned i = 0; i < count; ++i) {
            in[i] = i * 7 + (unsigned)half;
        }
        __sync_synchronize();
        *(volatile unsigned*)go = 1;
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaMemcpy(back, out, count * 4, cudaMemcpyDeviceToHost));
        for (unsigned i = 0; i < count; ++i) {
            EXPECT(back[i] == i * 7 + (unsigned)half + 1);
        }
        if (half == 0) {
            midpoint();
        }
    }
    return pass("late_write");
}
