// Trap: launches as before CUDA 4, whose block shape, shared bytes and parameters are state of the
// function: it lasts from launch to launch, over a move too, and each launch takes it as it is.
#include "driver_entry.h"

__global__ void add(float* out, int count, float term) {
    extern __shared__ float staged[];
    const int block = blockIdx.y * gridDim.x + blockIdx.x;
    const int i = block * blockDim.x * blockDim.y + threadIdx.y * blockDim.x + threadIdx.x;
    staged[threadIdx.y * blockDim.x + threadIdx.x] = term;
    __syncthreads();
    if (i < count) {
        out[i] += staged[threadIdx.y * blockDim.x + threadIdx.x];
    }
}

__global__ void one(int* out) { *out += 1; }

static const int kCount = 512;
static const int kCapacity = 1024;

static void expect_all(const float* device, int first, int last, float wanted) {
    float host[kCapacity];
    CHECK(cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost));
    for (int i = first; i < last; ++i) {
        if (host[i] != wanted) {
            fprintf(stderr, "legacy_launch: out[%d] is %g, expected %g\n", i, host[i], wanted);
            exit(1);
        }
    }
}

int main() {
    ENTRY(cuFuncSetBlockShape, 2000);
    ENTRY(cuFuncSetSharedSize, 2000);
    ENTRY(cuParamSetSize, 2000);
    ENTRY(cuParamSeti, 2000);
    ENTRY(cuParamSetf, 2000);
    ENTRY(cuParamSetv, 2000);
    ENTRY(cuLaunch, 2000);
    ENTRY(cuLaunchGrid, 2000);
    ENTRY(cuLaunchGridAsync, 2000);
    CHECK(cudaFree(nullptr));
    cudaFunction_t add_function;
    cudaFunction_t one_function;
    CHECK(cudaGetFuncBySymbol(&add_function, (const void*)add));
    CHECK(cudaGetFuncBySymbol(&one_function, (const void*)one));
    float* out;
    int* counter;
    CHECK(cudaMalloc(&out, kCapacity * sizeof(float)));
    CHECK(cudaMalloc(&counter, sizeof(int)));
    CHECK(cudaMemset(out, 0, kCapacity * sizeof(float)));
    CHECK(cudaMemset(counter, 0, sizeof(int)));
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));

    OK(cuFuncSetBlockShape_(add_function, 16, 8, 1));
    OK(cuFuncSetSharedSize_(add_function, 128 * sizeof(float)));
    OK(cuParamSetv_(add_function, 0, &out, sizeof out));
    OK(cuParamSeti_(add_function, 8, kCount));
    OK(cuParamSetf_(add_function, 12, 1.5f));
    OK(cuParamSetSize_(add_function, 16));
    OK(cuFuncSetBlockShape_(one_function, 1, 1, 1));
    OK(cuParamSetv_(one_function, 0, &counter, sizeof counter));
    OK(cuParamSetSize_(one_function, sizeof counter));
    OK(cuLaunchGrid_(add_function, 2, 4));  // 1024 threads; 512 of them add.
    OK(cuLaunch_(one_function));
    expect_all(out, 0, kCount, 1.5f);
    expect_all(out, kCount, kCapacity, 0.0f);

    midpoint();

    // A launch has taken its parameters when it returns.
    for (int i = 1; i <= 8; ++i) {
        OK(cuParamSetf_(add_function, 12, (float)i));
        OK(cuLaunchGridAsync_(add_function, 2, 2, stream));
    }
    OK(cuLaunchGridAsync_(one_function, 1, 1, stream));
    CHECK(cudaStreamSynchronize(stream));
    expect_all(out, 0, kCount, 37.5f);
    expect_all(out, kCount, kCapacity, 0.0f);
    OK(cuParamSeti_(add_function, 8, kCapacity));
    OK(cuLaunchGrid_(add_function, 8, 1));
    expect_all(out, 0, kCount, 45.5f);
    expect_all(out, kCount, kCapacity, 8.0f);
    int ones = 0;
    CHECK(cudaMemcpy(&ones, counter, sizeof ones, cudaMemcpyDeviceToHost));
    EXPECT(ones == 2);

    EXPECT_STATUS(cuFuncSetBlockShape_(add_function, 0, 1, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_STATUS(cuFuncSetBlockShape_(add_function, 2048, 1, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_STATUS(cuLaunchGrid_(add_function, 0, 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuLaunchGrid_(add_function, 8, 1));  // What was refused has changed nothing.
    expect_all(out, kCount, kCapacity, 16.0f);
    return pass("legacy_launch");
}
