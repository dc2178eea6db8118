// The device code of other_runtime.c.
__device__ int counter = 5;

extern "C" __global__ void twice(float* memory, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        memory[i] *= 2;
    }
}
