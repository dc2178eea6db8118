// Trap: pinned memory is live to a running kernel, in both directions, with no synchronisation.
#include "program.h"

__global__ void ping_pong(volatile unsigned* to_host, volatile unsigned* to_device,
                          unsigned rounds) {
    for (unsigned i = 1; i <= rounds; ++i) {
        while (*to_device != i) {
        }
        *to_host = i * 2;
        __threadfence_system();
    }
}

int main() {
    unsigned* words = nullptr;
    CHECK(cudaHostAlloc((void**)&words, 8192, cudaHostAllocMapped));
    memset(words, 0, 8192);
    volatile unsigned* to_host = words;
    volatile unsigned* to_device = words + 1024;
    for (int half = 0; half < 2; ++half) {
        words[0] = words[1024] = 0;
        ping_pong<<<1, 1>>>(words, words + 1024, 100);
        CHECK(cudaGetLastError());
        for (unsigned i = 1; i <= 100; ++i) {
            *to_device = i;
            while (*to_host != i * 2) {
                usleep(1);
            }
        }
        CHECK(cudaDeviceSynchronize());
        if (half == 0) {
            midpoint();
        }
    }
    return pass("pinned_flag");
}
