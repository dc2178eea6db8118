// Trap: a kernel's printf comes out on the application's stdout, in order with the host's own.
#include "program.h"

__global__ void speak(int round, float value) {
    if (threadIdx.x < 3) {
        printf("device %d thread %u value %.2f text %s\n", round, threadIdx.x, value, "ok");
    }
}

int main() {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    for (int round = 0; round < 4; ++round) {
        printf("host before %d\n", round);
        speak<<<1, 32>>>(round, 1.5f * (float)round);
        CHECK(cudaDeviceSynchronize());
        printf("host after %d\n", round);
        if (round == 1) {
            midpoint();
        }
    }
    return pass("kernel_printf");
}
