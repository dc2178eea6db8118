// Trap: launch errors that the native driver reports at the call must come at that call.
#include "program.h"

__global__ void nothing() {}

__global__ void __launch_bounds__(64) bounded(int* out) { *out = 1; }

struct Shape {
    dim3 grid;
    dim3 block;
    size_t shared_bytes;
    cudaError_t wanted;
    const char* what;
};

// What driver 580 with runtime 13.0 answers on an H200.
static const Shape kShapes[] = {
    {dim3(1), dim3(2048), 0, cudaErrorInvalidValue, "2048 threads a block"},
    {dim3(0), dim3(32), 0, cudaErrorInvalidValue, "an empty grid"},
    {dim3(1), dim3(0), 0, cudaErrorInvalidValue, "an empty block"},
    {dim3(1, 70000), dim3(32), 0, cudaErrorInvalidValue, "70000 blocks in y"},
    {dim3(1), dim3(1, 1, 128), 0, cudaErrorInvalidValue, "128 threads in z"},
    {dim3(1), dim3(32), 1 << 20, cudaErrorInvalidValue, "1 MiB of shared memory"},
    {dim3(1), dim3(32), 0, cudaSuccess, "a good launch"},
};

int main() {
    CHECK(cudaFree(nullptr));
    int wrong = 0;
    for (int half = 0; half < 2; ++half) {
        for (const Shape& shape : kShapes) {
            nothing<<<shape.grid, shape.block, shape.shared_bytes>>>();
            const cudaError_t status = cudaGetLastError();
            if (status != shape.wanted) {
                fprintf(stderr, "%s: %d, expected %d\n", shape.what, (int)status,
                        (int)shape.wanted);
                ++wrong;
            }
        }
        bounded<<<1, 128>>>(nullptr);
        const cudaError_t status = cudaGetLastError();
        if (status != cudaErrorInvalidValue) {
            fprintf(stderr, "more threads than launch bounds: %d\n", (int)status);
            ++wrong;
        }
        CHECK(cudaDeviceSynchronize());
        if (half == 0) {
            midpoint();
        }
    }
    EXPECT(wrong == 0);
    return pass("launch_errors");
}
