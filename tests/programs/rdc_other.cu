// The second translation unit of the rdc program.
__device__ unsigned shared_table[64] = {
    100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100,
    100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100,
    100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100,
    100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100};

static __device__ unsigned helper(unsigned value) { return value * value; }

__device__ __noinline__ unsigned far_function(unsigned value) { return helper(value) + 3; }
