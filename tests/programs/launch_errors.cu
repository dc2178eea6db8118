// Trap: launch errors that the native driver reports at the call must come at that call.
#include "program.h"

__global__ void nothing() {}

__global__ void __launch_bounds__(64) bounded(int* out) { *out = 1; }

int main() {
    CHECK(cudaFree(nullptr));
    for (int half = 0; half < 2; ++half) {
        nothing<<<1, 2048>>>();
        EXPECT_STATUS(cudaGetLastError(), cudaErrorInvalidConfiguration);
        nothing<<<0, 32>>>();
        EXPECT_STATUS(cudaGetLastError(), cudaErrorInvalidConfiguration);
        nothing<<<dim3(1, 70000), 32>>>();
        EXPECT_STATUS(cudaGetLastError(), cudaErrorInvalidConfiguration);
        nothing<<<1, dim3(1, 1, 128)>>>();
        EXPECT_STATUS(cudaGetLastError(), cudaErrorInvalidConfiguration);
        nothing<<<1, 32, 1 << 20>>>();
        EXPECT_STATUS(cudaGetLastError(), cudaErrorInvalidValue);
        nothing<<<1, 32>>>();
        CHECK(cudaGetLastError());
        CHECK(cudaDeviceSynchronize());
        if (half == 0) {
            midpoint();
        }
    }
    return pass("launch_errors");
}
