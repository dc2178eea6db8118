// Trap: -rdc=true keeps PTX per translation unit; calls and variables cross them.
#include "program.h"

extern __device__ unsigned shared_table[64];
extern __device__ unsigned far_function(unsigned value);

__global__ void run(unsigned* out) {
    unsigned i = threadIdx.x;
    shared_table[i] += i;
    out[i] = far_function(i) + shared_table[i];
}

int main() {
    unsigned* out = nullptr;
    unsigned back[64];
    CHECK(cudaMalloc((void**)&out, sizeof back));
    for (unsigned half = 1; half <= 2; ++half) {
        run<<<1, 64>>>(out);
        CHECK(cudaMemcpy(back, out, sizeof back, cudaMemcpyDeviceToHost));
        for (unsigned i = 0; i < 64; ++i) {
            EXPECT(back[i] == i * i + 3 + 100 + half * i);
        }
        if (half == 1) {
            midpoint();
        }
    }
    return pass("rdc");
}
