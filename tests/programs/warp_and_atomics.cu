// Trap: shuffles, votes, atomics and barriers give exact integer results everywhere.
#include "program.h"

__global__ void reduce(const unsigned* in, unsigned count, unsigned long long* total,
                       unsigned* histogram, unsigned* ballots) {
    __shared__ unsigned partial[32];
    unsigned sum = 0;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += gridDim.x * blockDim.x) {
        sum += in[i];
        atomicAdd(&histogram[in[i] & 15], 1u);
    }
    for (int offset = 16; offset > 0; offset >>= 1) {
        sum += __shfl_down_sync(0xffffffffu, sum, offset);
    }
    if ((threadIdx.x & 31) == 0) {
        partial[threadIdx.x >> 5] = sum;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0;
        for (int offset = 16; offset > 0; offset >>= 1) {
            sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        }
        unsigned ballot = __ballot_sync(0xffffffffu, (threadIdx.x % 3) == 0);
        if (threadIdx.x == 0) {
            atomicAdd(total, (unsigned long long)sum);
            atomicMax(ballots, ballot);
        }
    }
}

int main() {
    const unsigned count = 1 << 18;
    unsigned* host = (unsigned*)malloc(count * 4);
    unsigned long long wanted = 0;
    unsigned buckets[16] = {};
    for (unsigned i = 0; i < count; ++i) {
        host[i] = (i * 2654435761u) >> 20;
        wanted += host[i];
        ++buckets[host[i] & 15];
    }
    unsigned *in = nullptr, *histogram = nullptr;
    unsigned long long* total = nullptr;
    CHECK(cudaMalloc((void**)&in, count * 4));
    CHECK(cudaMalloc((void**)&histogram, 17 * 4));
    CHECK(cudaMalloc((void**)&total, 8));
    CHECK(cudaMemcpy(in, host, count * 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemset(histogram, 0, 17 * 4));
    CHECK(cudaMemset(total, 0, 8));
    reduce<<<16, 256>>>(in, count, total, histogram, histogram + 16);
    midpoint();
    reduce<<<16, 256>>>(in, count, total, histogram, histogram + 16);
    unsigned long long got = 0;
    unsigned got_buckets[17];
    CHECK(cudaMemcpy(&got, total, 8, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(got_buckets, histogram, sizeof got_buckets, cudaMemcpyDeviceToHost));
    EXPECT(got == 2 * wanted);
    for (int i = 0; i < 16; ++i) {
        EXPECT(got_buckets[i] == 2 * buckets[i]);
    }
    EXPECT(got_buckets[16] == 0x49249249u);
    return pass("warp_and_atomics");
}
