// Trap: too much memory is cudaErrorMemoryAllocation, and the program goes on.
#include "program.h"

int main() {
    size_t free_bytes = 0, total_bytes = 0;
    CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    EXPECT(free_bytes <= total_bytes && total_bytes > 0);
    void* memory = nullptr;
    EXPECT_STATUS(cudaMalloc(&memory, total_bytes + (1ull << 30)), cudaErrorMemoryAllocation);
    cudaGetLastError();
    void* kept = nullptr;
    bool is_counted = false;
    for (int i = 0; !is_counted; ++i) {  // Others may free theirs on a shared card meanwhile.
        EXPECT(i < 20);
        CHECK(cudaFree(kept));
        CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
        CHECK(cudaMalloc(&kept, 64 << 20));
        size_t less = 0;
        CHECK(cudaMemGetInfo(&less, &total_bytes));
        is_counted = less + (60 << 20) <= free_bytes;
    }
    midpoint();
    EXPECT_STATUS(cudaMalloc(&memory, total_bytes), cudaErrorMemoryAllocation);
    cudaGetLastError();
    CHECK(cudaFree(kept));
    CHECK(cudaMalloc(&kept, 32 << 20));
    CHECK(cudaMemset(kept, 1, 32 << 20));
    CHECK(cudaDeviceSynchronize());
    return pass("out_of_memory");
}
