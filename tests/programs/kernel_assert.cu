// Trap: a failing device assert prints on the application's stderr and gives 710, sticky.
#undef NDEBUG
#include <assert.h>

#include "program.h"

__global__ void check(int value) { assert(value < 10 && "value is small"); }

int main() {
    check<<<1, 1>>>(3);
    CHECK(cudaDeviceSynchronize());
    midpoint();
    check<<<1, 1>>>(11);
    EXPECT_STATUS(cudaDeviceSynchronize(), cudaErrorAssert);
    void* more = nullptr;
    EXPECT_STATUS(cudaMalloc(&more, 16), cudaErrorAssert);
    return pass("kernel_assert");
}
