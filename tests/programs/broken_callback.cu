// Trap: a kernel poisons the context in front of a host callback, which then never comes, and
// beside one that the application is still running. Nothing may wait for either, a move neither.
#include "program.h"

__global__ void wild(int* where) { *where = 1; }

static volatile int entered;

/// Returns when the runner has done what it does at the midpoint; soon where there is none.
static void CUDART_CB slow(void*) {
    entered = 1;
    const char* path = getenv("PROGRAM_MIDPOINT");
    char go[4096];
    snprintf(go, sizeof go, "%s.go", path != NULL ? path : "/nowhere");
    struct stat info;
    for (int tries = 0; stat(go, &info) != 0 && tries < (path != NULL ? 60000 : 50); ++tries) {
        usleep(1000);
    }
}

static void CUDART_CB behind(void*) {}

int main() {
    int* device = nullptr;
    cudaStream_t running, broken;
    CHECK(cudaMalloc((void**)&device, 4 << 20));
    CHECK(cudaStreamCreateWithFlags(&running, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&broken, cudaStreamNonBlocking));
    wild<<<1, 1>>>(device);  // Loads the kernel: that may wait for all work, callbacks too.
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaLaunchHostFunc(running, slow, NULL));
    while (!entered) {
        usleep(1000);
    }
    wild<<<1, 1, 0, broken>>>((int*)0x10);
    cudaLaunchHostFunc(broken, behind, NULL);
    midpoint();
    EXPECT_STATUS(cudaStreamSynchronize(broken), cudaErrorIllegalAddress);
    EXPECT_STATUS(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    EXPECT_STATUS(cudaFree(device), cudaErrorIllegalAddress);
    return pass("broken_callback");
}
