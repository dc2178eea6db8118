// The device code of sass_variables.cu, which loads it from files: machine code without PTX.
__device__ unsigned counter;
__device__ unsigned squares[16] = {0,  1,  4,   9,   16,  25,  36,  49,
                                   64, 81, 100, 121, 144, 169, 196, 225};
__device__ unsigned* cursor = &squares[3];
__device__ unsigned* next_cursor;
__device__ unsigned long long sums[300];
__device__ unsigned unnamed[5] = {3, 1, 4, 1, 5};
__device__ const unsigned factors[4] = {7, 11, 13, 17};

// Keeps addresses of variables in variables, and changes both through them.
extern "C" __global__ void step(unsigned* out) {
    const unsigned i = threadIdx.x;
    atomicAdd(&counter, 1);
    sums[i] += squares[i % 16] * factors[i % 4];
    __syncthreads();
    if (i == 0) {
        *cursor += 2;
        next_cursor = cursor + 1 == squares + 16 ? squares : cursor + 1;
        cursor = next_cursor;
        out[0] = counter;
        out[1] = (unsigned)(cursor - squares);
        out[2] = *next_cursor;
        out[3] = (unsigned)sums[17];
    }
}
